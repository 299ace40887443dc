"""How the weights of a unit are first drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from torch_pru.errors import PRUError
from torch_pru.ops.spec import LayerSpec
from torch_pru.parameters import GATES, ParameterNames

SCHEMES = ("authors", "orthogonal", "lstm")
FLOAT64_DEVICES = ("cpu", "cuda", "meta")  # others may lack it; orthogonal matrices are drawn in it
LARGE = 2**33  # operations: of a larger matrix a QR decomposition would take seconds
BLOCK = 128


@torch.no_grad()
def initialize(module: nn.Module, spec: LayerSpec, names: ParameterNames, scheme: str) -> None:
    """Draw all weights of one layer in one direction anew.

    * ``"authors"``: as the paper's code. Each input level orthogonal over its four gates at once;
      a grouped context weight orthogonal when flattened to one row per group, so that each group's
      whole matrix has norm 1, which is very small; biases zero.
    * ``"orthogonal"``: the matrix of each gate of each group orthogonal; biases zero.
    * ``"lstm"``: everything uniform within ±1/sqrt(hidden_size), as ``nn.LSTM``.

    Learned pooling kernels are drawn from N(0, 1) under every scheme, as in the paper. A projection is
    orthogonal but with ``"lstm"``.
    """
    for name in (*names.input_kernels, *names.context_kernels):
        assign(module, name, torch.randn_like(getattr(module, name)))
    if scheme == "lstm":
        bound = 1 / math.sqrt(spec.hidden_size)
        for name in names.weights_and_biases:
            assign(module, name, torch.empty_like(getattr(module, name)).uniform_(-bound, bound))
        return
    for name in names.biases:
        assign(module, name, torch.zeros_like(getattr(module, name)))
    flatten_context = scheme == "authors" and spec.context.levels == 1
    for transform, weights, flatten in (
        (spec.input, names.input, False),
        (spec.context, names.context, flatten_context),
    ):
        for name, groups in zip(weights, transform.matrix_groups, strict=True):
            assign(module, name, _orthogonal_like(getattr(module, name), groups, scheme, flatten))
    for name in names.projection:
        weight = getattr(module, name)
        rows, columns = weight.shape
        assign(module, name, draw_orthogonal(1, rows, columns, _drawing_device(weight))[0])


def _orthogonal_like(weight: Tensor, groups: int, scheme: str, flatten: bool) -> Tensor:
    """A weight (4·m, n/g) whose parts are orthogonal: see :func:`initialize`."""
    rows, columns = weight.shape
    units = rows // (GATES * groups)
    device = _drawing_device(weight)
    if flatten:
        drawn = draw_orthogonal(1, groups, GATES * units * columns, device)
    elif scheme == "authors":
        drawn = draw_orthogonal(groups, GATES * units, columns, device)
    else:
        drawn = draw_orthogonal(groups * GATES, units, columns, device)
    return drawn.view(groups, GATES, units, columns).transpose(0, 1).reshape(rows, columns)


def _drawing_device(weight: Tensor) -> torch.device:
    return weight.device if weight.device.type in FLOAT64_DEVICES else torch.device("cpu")


def draw_orthogonal(count: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Random matrices (count, rows, columns) with orthonormal rows or columns, whichever are fewer.

    They are distributed uniformly, as those of ``nn.init.orthogonal_``. Very large ones are drawn as a
    product of random permutations and block-diagonal orthogonal matrices: exactly orthogonal too, and
    every element is a sum of many random numbers, but drawn in a tenth of the time.
    """
    few, many = min(rows, columns), max(rows, columns)
    if many * few**2 > LARGE:
        tall = torch.stack([_draw_in_blocks(many, few, device) for _ in range(count)])
        return tall if rows >= columns else tall.mT
    if many >= 64 * few:  # a Cholesky decomposition is accurate then, and quicker
        drawn = torch.randn(count, few, many, device=device)
        wide = drawn.to(torch.float64)
        root = torch.linalg.cholesky(wide @ wide.mT).to(drawn.dtype)
        flat = torch.linalg.solve_triangular(root, drawn, upper=False)
        return flat if rows <= columns else flat.mT
    matrices = torch.empty(count, rows, columns, dtype=torch.float64, device=device)
    for matrix in matrices:
        nn.init.orthogonal_(matrix)
    return matrices


def _draw_in_blocks(rows: int, columns: int, device: torch.device) -> Tensor:
    """A matrix with orthonormal columns: three times, permute all rows and mix them in blocks."""
    count = rows // BLOCK
    mixed = count * BLOCK  # the last few rows are left out of a round, but not of the next
    matrix, buffer = torch.zeros(2, rows, columns, device=device).unbind()
    where = torch.randperm(rows, device=device)[:columns]
    matrix[where, torch.arange(columns, device=device)] = 1
    for turn in range(3):
        blocks = torch.linalg.qr(torch.randn(count, BLOCK, BLOCK, device=device)).Q
        blocks *= torch.randint(0, 2, (count, 1, BLOCK), device=device) * 2 - 1  # QR fixes the signs
        if turn > 0:
            torch.index_select(matrix, 0, torch.randperm(rows, device=device), out=buffer)
            matrix, buffer = buffer, matrix
        by_block = matrix[:mixed].view(count, BLOCK, columns)
        torch.bmm(blocks, by_block, out=buffer[:mixed].view(count, BLOCK, columns))
        buffer[mixed:] = matrix[mixed:]
        matrix, buffer = buffer, matrix
    return matrix


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
