"""The recurrence as fused CUDA kernels, compiled at first use.

Importing this needs neither a GPU nor cuda-bindings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import device_of, share, unserved
from .plan import choose, choose_once
from .recurrence import (
    backward,
    forward,
    gradients_like,
    saved_like,
    state_gradients_like,
    weight_gradient_like,
)

__all__ = [
    "backward",
    "covers",
    "forward",
    "gradients_like",
    "saved_like",
    "share",
    "state_gradients_like",
    "weight_gradient_like",
]


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
