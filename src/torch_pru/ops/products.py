"""The dense products of the input transform, each on the path and in the layout its device likes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.ops import torch_private as private
from torch_pru.ops.gates import input_gates
from torch_pru.ops.torch_private import Mode, current_mode

FEW_ROWS = 64
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


def gate_linear(x: Tensor, weight: Tensor, residual: bool = False) -> Tensor:
    """One linear map for each gate: (…, N) by (1, gates, M, N) gives (…, gates, M).

    With ``residual`` x is added to every gate. In 16 bits on a GPU the result is a view of storage
    (…, M, gates); see :func:`torch_pru.ops.gates.input_gates`.
    """
    if is_unit_major(x):
        return input_gates(x, [weight], (), product_dtype(x), residual)
    _, gates, units, features = weight.shape
    y = _linear(x, weight[0].reshape(gates * units, features)).unflatten(-1, (gates, units))
    return add_input(y, x) if residual else y


def add_input(gates: Tensor, x: Tensor) -> Tensor:
    """gates (…, gates, M) plus x (…, M) for each gate, in the dtype of gates: autocast may have chosen it."""
    if current_mode() is Mode.DERIVATIVE:  # ``torch.func.linearize`` does not support writing in place
        return (gates + x.unsqueeze(-2)).to(gates.dtype)
    gates += x.unsqueeze(-2)
    return gates


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
    """What a product of x is computed in; autocast leaves float64 alone, and knows no meta device."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """As ``F.linear``, with the quicker library for few rows.

    A generated token is one row. On a CPU PyTorch hands float32 products to MKL, which needs two to
    four times as long as oneDNN for a handful of rows; oneDNN's product has no derivative of any kind.
    """
    if _onednn_is_better(x, weight):
        return private.onednn_linear(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def _onednn_is_better(x: Tensor, weight: Tensor) -> bool:
    if x.device.type != "cpu" or current_mode() is not Mode.EAGER:
        return False  # under a transform no tensor says that it wants a derivative
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (
        0 < x.shape[:-1].numel() <= FEW_ROWS
        and product_dtype(x) == x.dtype == weight.dtype == torch.float32
        and not needs_gradient
        and private.onednn_is_enabled()
        and private.onednn_linear is not None
    )
