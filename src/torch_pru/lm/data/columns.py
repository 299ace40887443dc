"""A text as B columns, which are read in parallel."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_positive


def columns(ids: Tensor, batch: int) -> Tensor:
    """Cut text into ``batch`` stretches of equal length, one a column; what is left over is dropped.

    Args:
        ids: (N,) the text.
        batch: B, how many columns.

    Returns:
        (R, B) with R = N // B, a view of ``ids``. Column b is ``ids[b * R : (b + 1) * R]``: a state that is
        carried from row to row reads one stretch of text.

    Example:
        >>> columns(torch.arange(7), 2)
        tensor([[0, 3],
                [1, 4],
                [2, 5]])
    """
    check_positive("batch", batch)
    if ids.dim() != 1:
        raise PRUError(f"ids has shape {tuple(ids.shape)}; give a text as one row of ids, (N,)")
    rows = len(ids) // batch
    if rows < 2:  # the second row is the first one's target
        raise PRUError(
            f"batch={batch} is too large for a text of {len(ids)} tokens: every column needs 2 at least; "
            f"use a batch of at most {len(ids) // 2}, or more text"
        )
    return ids[: rows * batch].view(batch, rows).t()


def to_device(text: Tensor, device: torch.device) -> Tensor:
    """Columns on a device. On a CPU they stay a view of the text, which may be mapped from disk."""
    if device.type != "cuda":
        return text
    text = text.int() if text.dtype == torch.uint16 else text  # which CUDA kernels hardly support
    return text.contiguous().to(device)
