"""How the weights of a cell are first drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from torch_pru.errors import PRUError

if TYPE_CHECKING:
    from torch_pru.cell import PRUCell

SCHEMES = ("authors", "orthogonal", "lstm")
FLOAT64_DEVICES = ("cpu", "cuda", "meta")  # others may lack it; orthogonal matrices are drawn in it


@torch.no_grad()
def initialize(cell: PRUCell, scheme: str) -> None:
    """Draw all weights of ``cell`` anew.

    * ``"authors"``: as the paper's code. Each input level orthogonal over its four gates at once;
      a grouped context weight orthogonal when flattened to one row a group, so that each group's
      whole matrix has norm 1, which is very small; biases zero.
    * ``"orthogonal"``: the matrix of each gate of each group orthogonal; biases zero.
    * ``"lstm"``: everything uniform within ±1/sqrt(hidden_size), as ``nn.LSTM``.

    Learned pooling kernels keep their N(0, 1) under every scheme.
    """
    matrices = [*cell.input_transform.matrices(), *cell.context_transform.matrices()]
    if scheme == "lstm":
        bound = 1 / math.sqrt(cell.hidden_size)
        for parameter in (p for matrix in matrices for p in matrix.parameters()):
            nn.init.uniform_(parameter, -bound, bound)
        return
    for matrix in matrices:
        if matrix.bias is not None:
            assign(matrix, "bias", torch.zeros_like(matrix.bias))
        weight = matrix.weight
        place = weight.device if weight.device.type in FLOAT64_DEVICES else "cpu"
        drawn = torch.empty(weight.shape, dtype=torch.float64, device=place)
        for part in _orthogonal_parts(drawn, scheme, is_context=matrix is cell.context_transform):
            nn.init.orthogonal_(part)
        assign(matrix, "weight", drawn)


def _orthogonal_parts(weight: Tensor, scheme: str, is_context: bool) -> list[Tensor]:
    """The 2-D views of a weight (g, gates, out, in) that are each drawn orthogonal."""
    groups, gates, wide_out, wide_in = weight.shape
    if scheme == "orthogonal":
        return list(weight.view(groups * gates, wide_out, wide_in))
    if is_context:
        return [weight.view(groups, -1)]
    return list(weight.view(groups, gates * wide_out, wide_in))


@torch.no_grad()
def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Copy ``value`` into a weight, or into what it is computed from where it is parametrized."""
    weight = getattr(module, name)
    value = value.to(weight.dtype)
    if not is_parametrized(module, name):
        weight.copy_(value)
        return
    try:  # with a copy: a parametrization may keep what it is given
        setattr(module, name, torch.empty_like(weight).copy_(value))
    except RuntimeError as error:
        reason = str(error).rstrip(".")
        raise PRUError(f"{name} cannot be set: {reason}; set it before it is parametrized") from None
