"""The gradient of a lookup, added to a gradient that is there already."""

from __future__ import annotations

import torch
from torch import Tensor


def add_rows(table: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add each of ``rows`` to the row of ``table`` that its token names, in place and in a fixed order.

    Args:
        table: (V, E).
        tokens: (n,), whole numbers below V; a number may occur many times.
        rows: (n, E).

    Example:
        >>> table = torch.zeros(3, 2)
        >>> add_rows(table, torch.tensor([2, 0, 2]), torch.ones(3, 2))
        >>> table
        tensor([[1., 1.],
                [0., 0.],
                [2., 2.]])
    """
    if table.is_cuda and table.dtype == rows.dtype == torch.float32 and table.stride(1) == 1:
        from torch_pru.ops.cuda import decoder, launch  # here: importing the package must stay light

        if launch.unserved(table.device.index) is None:
            decoder.add_rows(table, tokens, rows)
            return
    if table.is_cpu:  # on a CPU the threads of index_put_ race for their turns, on a GPU those of index_add_
        table.index_add_(0, tokens, rows)
    else:
        table.index_put_((tokens,), rows, accumulate=True)
