"""The dense products of the input transform, in the layout that is fastest on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.ops import torch_private as private
from torch_pru.ops.dense import level_matrices
from torch_pru.ops.gates import input_gates
from torch_pru.ops.spec import TransformSpec
from torch_pru.pooling import pyramid

FEW_ROWS = 64
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def transform(
    x: Tensor,
    matrices: Sequence[Tensor],
    kernels: Sequence[Tensor],
    *,
    spec: TransformSpec,
    gates: int = 4,
    residual: bool = False,
    backend: str = "loop",
    eager: bool,
) -> Tensor:
    """A transform of x (…, N), without a bias: (…, gates, M). With ``residual`` x is added to every gate.

    In 16 bits on a GPU the result is a view of storage (…, M, gates); see
    :func:`torch_pru.ops.gates.input_gates`.
    """
    unit_major = is_unit_major(x)
    if unit_major and spec.is_linear and (spec.levels > 1 or spec.groups == 1):
        # On a GPU one large product is faster than several, the pooling and the concatenation.
        # Of grouped levels, too, at the paper's widths; at 4096 features the zeros cost a tenth.
        dense = [matrix.unsqueeze(0) for matrix in level_matrices(matrices, spec)]
        dtype = product_dtype(x)
        return input_gates(x, dense, spec.windows, dtype, residual, backend=backend, eager=eager)
    views = pyramid(x, spec.pooling, spec.windows, kernels)
    levels = zip(views, spec.matrices_by_level(tuple(matrices)), strict=True)
    parts = [_level(view, blocks, spec.groups, gates, backend, eager) for view, blocks in levels]
    y = _concatenate_units(parts, unit_major)
    return _add_input(y, x, eager) if residual else y


def _level(
    x: Tensor, blocks: tuple[Tensor, ...], groups: int, gates: int, backend: str, eager: bool
) -> Tensor:
    """One level of a transform: (…, n) to (…, gates, m)."""
    if len(blocks) == groups:
        inputs = x.tensor_split(groups, dim=-1) if groups > 1 else (x,)
        pairs = zip(inputs, blocks, strict=True)
        parts = [
            gate_linear(part, block.view(1, gates, -1, block.shape[1]), backend=backend, eager=eager)
            for part, block in pairs
        ]
        return _concatenate_units(parts, is_unit_major(x))
    [weight] = blocks
    rows, features = weight.shape
    units = rows // (gates * groups)
    by_group = x.reshape(-1, groups, features).transpose(0, 1)  # (g, rows, n/g)
    weight = weight.view(gates, groups, units, features).transpose(0, 1)
    y = by_group @ weight.reshape(groups, gates * units, features).transpose(1, 2)
    y = y.view(groups, by_group.shape[1], gates, units).permute(1, 2, 0, 3)
    return y.reshape(*x.shape[:-1], gates, groups * units)


def gate_linear(
    x: Tensor, weight: Tensor, residual: bool = False, *, backend: str = "loop", eager: bool
) -> Tensor:
    """One linear map per gate: (…, N) by (1, gates, M, N) to (…, gates, M), laid out as by ``transform``."""
    if is_unit_major(x):
        return input_gates(x, [weight], (), product_dtype(x), residual, backend=backend, eager=eager)
    _, gates, units, features = weight.shape
    y = _linear(x, weight[0].reshape(gates * units, features), eager).unflatten(-1, (gates, units))
    return _add_input(y, x, eager) if residual else y


def _add_input(gates: Tensor, x: Tensor, eager: bool) -> Tensor:
    """gates (…, gates, M) plus x (…, M) for each gate, in the dtype of gates: autocast may have chosen it."""
    if not eager:  # ``torch.func.linearize`` does not support writing in place
        return (gates + x.unsqueeze(-2)).to(gates.dtype)
    gates += x.unsqueeze(-2)
    return gates


def _concatenate_units(parts: Sequence[Tensor], unit_major: bool) -> Tensor:
    """(…, gates, m) each to (…, gates, M), in the layout of the parts."""
    if len(parts) == 1:
        return parts[0]
    if unit_major:
        return torch.cat([part.transpose(-1, -2) for part in parts], dim=-2).transpose(-1, -2)
    return torch.cat(list(parts), dim=-1)


def is_unit_major(x: Tensor) -> bool:
    """Whether the gates of a unit are adjacent in products of x: the layout for 16 bits on a GPU."""
    return x.is_cuda and product_dtype(x) in SIXTEEN_BITS


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a product of x; autocast does not affect float64 or the meta device."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def cell_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the cell state, which is summed over all steps: float32 at least."""
    return torch.float32 if dtype in SIXTEEN_BITS else dtype


def _linear(x: Tensor, weight: Tensor, eager: bool) -> Tensor:
    """As ``F.linear``, with the faster library for few rows.

    A generated token is one row. On a CPU PyTorch computes float32 products with MKL, which takes two to
    four times as long as oneDNN for a few rows. oneDNN's product cannot be differentiated.
    """
    if eager and _onednn_is_better(x, weight):
        return private.onednn_linear(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def _onednn_is_better(x: Tensor, weight: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (
        x.is_cpu
        and 0 < x.shape[:-1].numel() <= FEW_ROWS
        and product_dtype(x) == x.dtype == weight.dtype == torch.float32
        and not needs_gradient
        and private.onednn_is_enabled()
        and private.onednn_linear is not None
    )
