"""The recurrence as fused CUDA kernels, compiled at first use.

Importing this needs neither a GPU nor cuda-bindings.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .launch import device_of, missing, share
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


def covers(gates: Tensor, weight: Tensor, lengths: Tensor | None, training: bool) -> str | None:
    """None when the fused kernels serve this call, else a short reason why not."""
    if gates.device.type != "cuda":
        return f"tensors are on {gates.device.type}, not on a CUDA device"
    if gates.dtype not in (torch.float16, torch.bfloat16):
        return f"{gates.dtype} operands: the kernels take float16 and bfloat16"
    steps, batch, _, _ = gates.shape
    if steps == 0 or batch == 0:
        return "there is nothing to do: no steps or no batch"
    if missing():
        return missing()
    device = device_of(gates.device.index)
    groups, _, size, _ = weight.shape
    bf16 = gates.dtype == torch.bfloat16
    plan = choose if torch.compiler.is_compiling() else choose_once
    for direction in (False, True) if training else (False,):
        answer = plan(device, size, batch, groups, bf16, direction, steps)
        if isinstance(answer, str):
            return answer
    return None
