"""The dense products of the input transform, each on the path and in the layout its device likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 64
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def gate_linear(x: Tensor, weight: Tensor) -> Tensor:
    """One linear map for each gate: (…, N) by (gates, M, N) gives (…, gates, M).

    In 16 bits on a GPU the result is a view of storage (…, M, gates): the fused recurrence reads the
    gates of a unit at once. Reordering the weight costs less than reordering the result.
    """
    gates, units, features = weight.shape
    if is_unit_major(x):
        return unit_major_linear(x, unit_major_weight(weight, product_dtype(x)), gates)
    return _linear(x, weight.reshape(gates * units, features)).unflatten(-1, (gates, units))


def unit_major_linear(x: Tensor, weight: Tensor, gates: int) -> Tensor:
    """(…, N) by a unit-major weight (M·gates, N) gives (…, gates, M), a view of (…, M, gates)."""
    return F.linear(x, weight).unflatten(-1, (-1, gates)).transpose(-1, -2)


def unit_major_weight(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """(gates, M, N) as (M·gates, N) in ``dtype``: the gates of a unit side by side."""
    return _Reordered.apply(weight, dtype)


class _Reordered(torch.autograd.Function):
    """Reorders and converts in one pass, and so does its backward: autograd would take two each way."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.gates, ctx.dtype = weight.shape[0], weight.dtype
        reordered = torch.empty_like(
            weight.transpose(0, 1), dtype=dtype, memory_format=torch.contiguous_format
        )
        return reordered.copy_(weight.transpose(0, 1)).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        by_unit = grads[0].unflatten(0, (-1, ctx.gates))  # (M, gates, N)
        gates, units, features = ctx.gates, by_unit.shape[0], by_unit.shape[2]
        return by_unit.new_empty(gates, units, features, dtype=ctx.dtype).copy_(by_unit.transpose(0, 1)), None


def concatenate_units(parts: Sequence[Tensor]) -> Tensor:
    """(…, gates, m) each to (…, gates, M), in the layout that :func:`gate_linear` gave them."""
    if len(parts) == 1:
        return parts[0]
    if is_unit_major(parts[0]):
        return torch.cat([part.transpose(-1, -2) for part in parts], dim=-2).transpose(-1, -2)
    return torch.cat(list(parts), dim=-1)


def is_unit_major(x: Tensor) -> bool:
    """Whether products of x keep the gates of a unit side by side."""
    return x.is_cuda and product_dtype(x) in SIXTEEN_BITS


def product_dtype(x: Tensor) -> torch.dtype:
    """What a product of x is computed in."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """As ``F.linear``, with the quicker library for few rows.

    A generated token is one row. On a CPU PyTorch hands float32 products to MKL, which needs two to
    four times as long as oneDNN for a handful of rows; oneDNN's product has no gradient.
    """
    if _onednn_is_better(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def _onednn_is_better(x: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (
        0 < x.shape[:-1].numel() <= FEW_ROWS
        and product_dtype(x) == x.dtype == weight.dtype == torch.float32
        and not needs_gradient
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
