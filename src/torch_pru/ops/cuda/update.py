"""The update of all weights as two launches: the gradient's norm, then clip, decay, step and average."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from .launch import bits, launch_on, pass_over
from .plan import Launch, ceil_div

THREADS = 256
ENTRIES = 64  # weights in one launch's list: together with the rest of the argument it stays below 4 KB
CHUNK = 8 * THREADS  # elements, see sgd.cu
CONSTANTS = (("BF16", 0), ("ENTRIES", ENTRIES))
BLOCKS_PER_MULTIPROCESSOR = {"gradient_squares": 8, "sgd": 4}
LARGEST = 2**31 - 1  # elements of one weight


def update(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    *,
    rate: Tensor,
    share: Tensor,
    factor: Tensor | None,
    watch: tuple[Tensor, Tensor, Tensor] | None,
    clip: float,
    decay: float,
) -> Tensor:
    """One step of clipped, averaged SGD on all weights, in place; see ``sgd.cu``.

    Args:
        weights: float32, contiguous, none above ``LARGEST`` elements; ``averages`` likewise.
        gradients: float32; without a copy where they are rows of adjacent elements, evenly apart.
        rate: 0-d, the learning rate.
        share: 0-d, of the new weights in the averages.
        factor: 0-d, what the gradients were multiplied by. Where they overflowed, the step is taken with a
            gradient of zero.
        watch: loss (0-d), steps and first bad step (0-d, int64), which are kept up to date.
        clip, decay: largest norm of the gradient, and what of the weight is added to it.

    Returns:
        0-d, the norm of ``gradients`` as they are.
    """
    device = weights[0].device
    gradients = [gradient if _rows(gradient) else gradient.contiguous() for gradient in gradients]
    lists = [
        _entries(weights[part], gradients[part], None if averages is None else averages[part])
        for part in (slice(start, start + ENTRIES) for start in range(0, len(weights), ENTRIES))
    ]
    square, step = _launch("gradient_squares", device), _launch("sgd", device)
    blocks = square.blocks[0]
    sums = torch.empty(len(lists) * blocks, dtype=torch.float64, device=device)
    norm = torch.empty((), dtype=torch.float32, device=device)
    numbers = (bits(clip), bits(decay), len(sums))
    for part, entries in zip(sums.split(blocks), lists, strict=True):
        launch_on(square, device, (part, *[None] * 7), (*numbers, *entries))
    kept: tuple[Tensor | None, ...] = (norm, *(watch or (None,) * 3))  # by the first launch only
    for entries in lists:
        launch_on(step, device, (sums, rate, share, factor, *kept), (*numbers, *entries))
        kept = (None,) * 4
    return norm


def _entries(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], averages: Sequence[Tensor] | None
) -> list[int]:
    """How many weights and chunks there are, and the list of weights, as the words of ``sgd.cu``."""
    counts = [weight.numel() for weight in weights]
    chunks = list(itertools.accumulate((ceil_div(count, CHUNK) for count in counts), initial=0))
    words = [len(weights), chunks[-1]]
    for index, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        average = 0 if averages is None else averages[index].data_ptr()
        layout = _rows(gradient) or (counts[index], counts[index])
        words += [weight.data_ptr(), gradient.data_ptr(), average, counts[index], *layout, chunks[index]]
    return words + [0] * (7 * (ENTRIES - len(weights)))


def _rows(tensor: Tensor) -> tuple[int, int] | None:
    """How many adjacent elements a row has and how far rows are apart, or None where there are no such rows.

    All of a contiguous tensor is one row.
    """
    sizes = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    columns = 1
    while sizes and sizes[-1][1] == columns:
        columns *= sizes.pop()[0]
    if not sizes:
        return columns, columns
    between = expected = sizes[-1][1]
    for size, stride in reversed(sizes):
        if stride != expected:
            return None
        expected = stride * size
    return columns, between


def _launch(kernel: str, device: torch.device) -> Launch:
    many = BLOCKS_PER_MULTIPROCESSOR[kernel]
    return pass_over(kernel, CONSTANTS, device, threads=THREADS, per_multiprocessor=many)
