"""AR and TAR, the penalties on the last layer's output; on a GPU each way in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_pru.lm.config import RegularisationConfig
from torch_pru.lm.model import Hidden
from torch_pru.lm.softmax import full_precision


def penalties(hidden: Hidden, rates: RegularisationConfig) -> Tensor | float:
    """AR on the *dropped* output, TAR on the change over time of the *raw* output, in float32.

    Args:
        hidden: of a window of T at least 2.
        rates: ``activation`` and ``temporal`` are the factors of the two means; 0 leaves one out.

    Returns:
        0-d, or 0.0 where both are left out.
    """
    dropped = hidden.dropped if rates.activation else None
    raw = hidden.raw if rates.temporal else None
    if dropped is None and raw is None:
        return 0.0
    if _covered(hidden):
        return _Fused.apply(dropped, raw, rates.activation, rates.temporal)
    total: Tensor | float = 0.0
    if dropped is not None:
        total = total + rates.activation * full_precision(dropped).pow(2).mean()
    if raw is not None:
        raw = full_precision(raw)
        total = total + rates.temporal * (raw[1:] - raw[:-1]).pow(2).mean()
    return total


def _covered(hidden: Hidden) -> bool:
    if not hidden.raw.is_cuda or hidden.raw.dtype != hidden.dropped.dtype:
        return False
    from torch_pru.ops.cuda import passes  # only where there is a GPU

    return passes.covers(hidden.raw, hidden.dropped.dtype)


class _Fused(torch.autograd.Function):
    """Sums and gradients in float32; 16-bit outputs get 16-bit gradients."""

    @staticmethod
    def forward(
        ctx: Any, dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
    ) -> Tensor:
        from torch_pru.ops.cuda import passes

        dropped, raw = (None if output is None else output.contiguous() for output in (dropped, raw))
        ctx.save_for_backward(dropped, raw)
        ctx.rates = activation, temporal
        return passes.penalties(dropped, raw, activation, temporal)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        from torch_pru.ops.cuda import passes

        return *passes.penalties_backward(grads[0], *ctx.saved_tensors, *ctx.rates), None, None
