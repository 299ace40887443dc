"""What the benchmarks compare their numbers with, before they show a time."""

from __future__ import annotations

from torch import Tensor, nn

from torch_pru.cell import PRUCell


def in_plain_code(module: nn.Module) -> nn.Module:
    """The same module, its recurrences as the paper writes them: no fault of the fast ones is in it too."""
    for cell in module.modules():
        if isinstance(cell, PRUCell):
            cell.backend = "reference"
    return module


def relative_error(ours: Tensor, right: Tensor) -> float:
    """Of a tensor as a whole, beside float64; NaN where it holds one."""
    return ((ours - right).norm() / right.norm()).item()
