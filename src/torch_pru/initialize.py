"""How the weights of a cell are first drawn."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torch_pru.transforms import GroupedLinear

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
            nn.init.zeros_(matrix.bias)
        for part in _orthogonal_parts(matrix, scheme, is_context=matrix is cell.context_transform):
            place = part.device if part.device.type in FLOAT64_DEVICES else "cpu"
            drawn = nn.init.orthogonal_(torch.empty_like(part, dtype=torch.float64, device=place))
            part.copy_(drawn.to(part.dtype))


def _orthogonal_parts(matrix: GroupedLinear, scheme: str, is_context: bool) -> list[Tensor]:
    """The 2-D views of a weight (g, gates, out, in) that are each drawn orthogonal."""
    groups, gates, wide_out, wide_in = matrix.weight.shape
    if scheme == "orthogonal":
        return list(matrix.weight.view(groups * gates, wide_out, wide_in))
    if is_context:
        return [matrix.weight.view(groups, -1)]
    return list(matrix.weight.view(groups, gates * wide_out, wide_in))
