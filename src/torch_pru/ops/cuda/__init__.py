"""Fused CUDA kernels, compiled at first use.

Importing this needs neither a GPU nor cuda-bindings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_pru.ops import dropping

from .decoder import add_rows, add_rows_reason, cross_entropy, cross_entropy_reason
from .launch import device_of, share, unserved
from .passes import drop_kernel, drop_reason, penalties, penalties_reason
from .plan import choose, choose_once
from .recurrence import (
    backward,
    forward,
    gradients_like,
    saved_like,
    state_gradients_like,
    weight_gradient_like,
)
from .updates import dynamic_update, sgd_update, update_reason

__all__ = [
    "add_rows",
    "backward",
    "covers",
    "cross_entropy",
    "drop",
    "drop_kernel",
    "dynamic_update",
    "forward",
    "gradients_like",
    "penalties",
    "saved_like",
    "sgd_update",
    "share",
    "state_gradients_like",
    "unsupported_reason",
    "weight_gradient_like",
]

_REASONS: dict[str, Callable[..., str | None]] = {
    "drop": drop_reason,
    "add_rows": add_rows_reason,
    "cross_entropy": cross_entropy_reason,
    "penalties": penalties_reason,
    "sgd_update": update_reason,
    "dynamic_update": update_reason,
}


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    """Why the kernels cannot run a piece with these arguments, or None."""
    return _REASONS[piece](*arguments, **options)


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool) -> Tensor:
    """As :func:`torch_pru.ops.reference.drop`."""
    return dropping.operator(values, mask, keep, dtype, "cuda", eager=eager)


DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def covers(gates: Tensor, weight: Tensor, training: bool) -> str | None:
    """None when the fused kernels serve this call, else a short reason why not."""
    if not gates.is_cuda:
        return f"tensors are on {gates.device.type}, not on a CUDA device"
    if gates.dtype not in DTYPES:
        return f"{gates.dtype} gates: the kernels take float32, float16 and bfloat16"
    if gates.dtype == torch.float32 and not tf32_is_allowed():
        return "float32 gates while torch.backends.cudnn.allow_tf32 is off: the kernels have TF32's precision"
    steps, batch, _, _ = gates.shape
    if steps == 0 or batch == 0:
        return "there is nothing to do: no steps or no batch"
    reason = unserved(gates.device.index)
    if reason is not None:
        return reason
    device = device_of(gates.device.index)
    groups, _, size, _ = weight.shape
    plan = choose if torch.compiler.is_compiling() else choose_once
    for direction in (False, True) if training else (False,):
        answer = plan(device, size, batch, groups, gates.dtype, direction, steps == 1)
        if isinstance(answer, str):
            return answer
    return None


@torch.compiler.assume_constant_result
def tf32_is_allowed() -> bool:
    """Whether ``nn.LSTM`` may round to TF32: ``torch.backends.cudnn.allow_tf32`` or its newer names."""
    return torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]
