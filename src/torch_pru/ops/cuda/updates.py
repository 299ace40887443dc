"""Updates of all weights in place: SGD with clipping and averaging, and that of dynamic evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .launch import PASSES, bits, launch_on, pass_over, unserved
from .plan import ceil_div

ENTRIES = 64  # weights in one launch's list; a kernel's argument holds at most 4 KB
CHUNK = 8 * PASSES["sgd"][0]  # elements, see sgd.cu
CONSTANTS = (("BF16", 0), ("ENTRIES", ENTRIES))
LARGEST = 2**31 - 1  # elements of one weight
TENSORS = 64  # in one launch of the dynamic update
DYNAMIC_CONSTANTS = (("BF16", 0), ("TENSORS", TENSORS))


def update_reason(weights: Sequence[Tensor], *others: Any, **options: Any) -> str | None:
    """Why the kernels cannot update these weights; both updates take the same."""
    for weight in weights:
        if weight.dtype != torch.float32 or not weight.is_contiguous():
            return f"a weight of {weight.dtype}, or not contiguous: the kernels take contiguous float32"
        if weight.numel() > LARGEST:
            return f"a weight of {weight.numel()} elements: the kernels count in 32 bits"
    return unserved(weights[0].device.index)


def sgd_update(
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
    """As :func:`torch_pru.ops.reference.sgd_update`, in two launches: the gradient's norm, then the rest.

    Gradients are read without a copy where they are rows of adjacent elements, evenly apart.
    """
    device = weights[0].device
    gradients = [gradient if _rows(gradient) else gradient.contiguous() for gradient in gradients]
    lists = [
        _entries(weights[part], gradients[part], None if averages is None else averages[part])
        for part in (slice(start, start + ENTRIES) for start in range(0, len(weights), ENTRIES))
    ]
    square, step = (pass_over(kernel, CONSTANTS, device) for kernel in ("gradient_squares", "sgd"))
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
    """The number of adjacent elements in a row and the distance between rows; None if there are no such rows.

    A contiguous tensor is one row.
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


class DynamicUpdate:
    """As :class:`torch_pru.ops.reference.training.DynamicUpdate`; one kernel reads each number once."""

    def __init__(self, weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> None:
        self.weights, self.trained = weights, trained
        self.rms = [each.contiguous() for each in rms]
        self.rates = torch.zeros(3, device=weights[0].device)

    def prepare(self, learning_rate: float, decay: Tensor, epsilon: float) -> None:
        self.rates[0], self.rates[1], self.rates[2] = learning_rate, decay, epsilon

    def apply(self, gradients: tuple[Tensor, ...], losses: int) -> None:
        device = self.weights[0].device
        launch = pass_over("dynamic", DYNAMIC_CONSTANTS, device)
        contiguous = [gradient.contiguous() for gradient in gradients]
        for first in range(0, len(self.weights), TENSORS):
            columns = (self.weights, self.trained, contiguous, self.rms)
            table = [column[first : first + TENSORS] for column in columns]
            places = [tensor for column in table for tensor in _padded(column)]
            counts = [0 if weight is None else weight.numel() for weight in _padded(table[0])]
            launch_on(launch, device, (self.rates, *places), (*counts, losses))


def dynamic_update(weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> DynamicUpdate:
    """As :func:`torch_pru.ops.reference.dynamic_update`."""
    return DynamicUpdate(weights, trained, rms)


def _padded(column: Sequence[Tensor]) -> list[Tensor | None]:
    return [*column, *[None] * (TENSORS - len(column))]
