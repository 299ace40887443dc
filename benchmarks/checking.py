"""What the benchmarks compare their numbers with, before they show a time."""

from __future__ import annotations

from torch import Tensor, nn

from torch_pru import PRU, PRUCell


def in_plain_code(module: nn.Module) -> nn.Module:
    """The same module, its recurrences as the paper writes them: no fault of the fast ones is in it too."""
    for part in module.modules():
        if isinstance(part, PRU | PRUCell):
            part.backend = "reference"
    return module


def relative_error(ours: Tensor, right: Tensor) -> float:
    """Of a tensor as a whole, beside float64; NaN where it holds one."""
    return ((ours - right).norm() / right.norm()).item()
