"""Checks of packed sequences, which PyTorch's native code does not make."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torch_pru.errors import PRUError


def check_packed(packed: PackedSequence) -> None:
    """Raise unless the fields of ``packed`` fit together: PyTorch's native code relies on it."""
    data, sizes = packed.data, packed.batch_sizes
    if not isinstance(sizes, Tensor) or sizes.dtype != torch.int64 or sizes.dim() != 1 or not sizes.is_cpu:
        raise PRUError("packed input: batch_sizes must be a one-dimensional int64 tensor on the CPU")
    steps = sizes.tolist()
    if not steps or steps[-1] < 1 or any(now < later for now, later in itertools.pairwise(steps)):
        raise PRUError(
            f"packed input: batch_sizes {_shortened(steps)} must be positive and must not increase"
        )
    if sum(steps) != data.shape[0]:
        raise PRUError(f"packed input: batch_sizes add up to {sum(steps)}, but data has {data.shape[0]} rows")
    for name in ("sorted_indices", "unsorted_indices"):
        _check_order(name, getattr(packed, name), steps[0], data.device)


def _check_order(name: str, order: Tensor | None, batch: int, device: torch.device) -> None:
    """Raise unless ``order`` is None or holds indices of a batch. On a GPU the values are not read."""
    if order is None:
        return
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.device != device:
        raise PRUError(f"packed input: {name} must be an int64 tensor on {device}, where data is")
    if order.shape != (batch,):
        raise PRUError(f"packed input: {name} has shape {tuple(order.shape)}; expected ({batch},)")
    if order.is_cpu and order.sort().values.tolist() != list(range(batch)):
        raise PRUError(f"packed input: {name} must contain each of 0 to {batch - 1} once")


def _shortened(numbers: list[int]) -> str:
    """The list as text, with at most eight numbers."""
    return str(numbers) if len(numbers) <= 8 else f"[{', '.join(map(str, numbers[:8]))}, ...]"
