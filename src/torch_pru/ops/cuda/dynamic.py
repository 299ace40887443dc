"""The update of dynamic evaluation as one kernel over all weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .launch import launch_on, pass_over, unserved

TENSORS = 64  # in one launch; a kernel's argument holds at most 4 KB
THREADS = 512
BLOCKS_PER_MULTIPROCESSOR = 4
CONSTANTS = (("BF16", 0), ("TENSORS", TENSORS))


def dynamic_step(
    weights: Sequence[Tensor],
    trained: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rms: Sequence[Tensor],
    rates: Tensor,
    losses: int,
) -> None:
    """Let ``weights`` learn from one segment, in place.

    w <- w + min(1, decay * rms) * (w0 - w) - learning_rate / (rms + epsilon) * gradient / losses

    Args:
        weights, trained, gradients, rms: tensor by tensor of one shape; float32, contiguous, on one GPU.
        rates: (3,) float32: learning rate; decay over the mean of all rms; epsilon.
        losses: how many losses the gradients are of the sum of.
    """
    device = weights[0].device
    many = BLOCKS_PER_MULTIPROCESSOR
    launch = pass_over("dynamic", CONSTANTS, device, threads=THREADS, per_multiprocessor=many)
    for first in range(0, len(weights), TENSORS):
        table = [column[first : first + TENSORS] for column in (weights, trained, gradients, rms)]
        places = [tensor for column in table for tensor in _padded(column)]
        counts = [0 if weight is None else weight.numel() for weight in _padded(table[0])]
        launch_on(launch, device, (rates, *places), (*counts, losses))


def covers(weights: Sequence[Tensor]) -> bool:
    """Whether ``dynamic_step`` can update these."""
    fitting = all(w.is_cuda and w.dtype == torch.float32 and w.is_contiguous() for w in weights)
    return fitting and unserved(weights[0].device.index) is None


def _padded(column: Sequence[Tensor]) -> list[Tensor | None]:
    return [*column, *[None] * (TENSORS - len(column))]
