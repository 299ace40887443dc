"""Fused CUDA kernels, compiled at first use.

Importing this needs neither a GPU nor cuda-bindings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_pru.ops import dropping
from torch_pru.ops.gates import transform
from torch_pru.ops.layer import context_groups, run_layer, run_recurrence, unsupported_context
from torch_pru.ops.spec import LayerCall, LayerSpec, Outputs, RecurrenceCall, TransformSpec, product_dtype
from torch_pru.ops.torch_private import assume_constant_result

from . import folding
from .decoder import add_rows, add_rows_reason, cross_entropy, cross_entropy_reason
from .folding import size_reason
from .launch import device_of, share, unserved
from .layer import is_fused
from .layer import run as run_fused
from .passes import drop_kernel, drop_reason, penalties, penalties_reason
from .plan import Device, choose
from .recurrent import (
    backward,
    forward,
    gradients_like,
    saved_like,
    state_gradients_like,
    weight_gradient_like,
)
from .token import token_model, token_model_reason
from .updates import dynamic_update, sgd_update, update_reason

__all__ = [
    "add_rows",
    "backward",
    "cross_entropy",
    "drop",
    "drop_kernel",
    "dynamic_update",
    "folding",
    "forward",
    "gradients_like",
    "input_gates",
    "layer",
    "penalties",
    "recurrence",
    "saved_like",
    "sgd_update",
    "share",
    "state_gradients_like",
    "token_model",
    "unsupported_reason",
    "weight_gradient_like",
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GATE_MAJOR = True  # ``recurrence`` reads a weight without a copy if it is stored as (4, G, D, D)


def recurrence(call: RecurrenceCall, *, eager: bool) -> Outputs:
    """See :func:`torch_pru.ops.recurrence`; weights may be float32 whatever the dtype of gates."""
    return run_recurrence(call, "cuda", eager)


def layer(call: LayerCall, *, eager: bool) -> Outputs:
    """As :func:`torch_pru.ops.reference.layer`."""
    if eager and is_fused(call, dtype := product_dtype(call.x)):
        return run_fused(call, dtype)
    return run_layer(recurrence, "cuda", call, eager=eager)


input_gates = functools.partial(transform, backend="cuda")


def layer_reason(call: LayerCall, *, eager: bool) -> str | None:
    x, weights, h0, c0, _, spec, _ = call
    reason, groups, size = _structure_once(spec) if eager else _structure(spec)
    if reason is not None:
        return reason
    training = _is_training((x, *weights.input, *weights.context, *weights.biases, h0, c0))
    return shape_reason(x, product_dtype(x), groups, size, training)


def _structure(spec: LayerSpec) -> tuple[str | None, int, int]:
    """Why the kernels cannot run this structure, or None; the groups of the recurrence; the size of one."""
    groups = context_groups(spec)
    reason = unsupported_context(spec) or size_reason(spec.input, 4)
    return reason, groups, spec.hidden_size // groups


_structure_once = functools.lru_cache(maxsize=1024)(_structure)


def recurrence_reason(call: RecurrenceCall, *, eager: bool) -> str | None:
    gates, weight, *others, _, _ = call
    training = _is_training((gates, weight, *others))
    return shape_reason(gates, gates.dtype, weight.shape[0], weight.shape[-1], training)


def input_gates_reason(
    x: Tensor, *others: Any, spec: TransformSpec, gates: int = 4, **options: Any
) -> str | None:
    return size_reason(spec, gates) or unserved(x.device.index)


def _is_training(tensors: tuple[Tensor | None, ...]) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def shape_reason(x: Tensor, dtype: torch.dtype, groups: int, size: int, training: bool) -> str | None:
    """Why the kernels cannot run on x (T, B, …) with gates of ``dtype`` and groups of ``size``, or None."""
    if not x.is_cuda:
        return f"tensors are on {x.device.type}, not on a CUDA device"
    if dtype not in DTYPES:
        return f"{dtype} gates: the kernels take float32, float16 and bfloat16"
    if dtype == torch.float32 and not tf32_is_allowed():
        return "float32 gates while torch.backends.cudnn.allow_tf32 is off: the kernels have TF32's precision"
    steps, batch = x.shape[:2]
    if steps == 0 or batch == 0:
        return "there is nothing to do: no steps or no batch"
    index = x.device.index
    shape = (index, device_of(index), size, batch, groups, dtype, training, steps == 1)
    return _plan_reason(*shape) if torch.compiler.is_compiling() else _plan_reason_once(*shape)


def _plan_reason(
    index: int,
    device: Device,
    size: int,
    batch: int,
    groups: int,
    dtype: torch.dtype,
    training: bool,
    single_step: bool,
) -> str | None:
    reason = unserved(index)
    if reason is not None:
        return reason
    for backwards in (False, True) if training else (False,):
        plan = choose(device, size, batch, groups, dtype, backwards, single_step)
        if isinstance(plan, str):
            return plan
    return None


_plan_reason_once = functools.lru_cache(maxsize=1024)(_plan_reason)


@assume_constant_result
def tf32_is_allowed() -> bool:
    """Whether ``nn.LSTM`` may round to TF32: ``torch.backends.cudnn.allow_tf32`` or its newer names."""
    return torch.backends.cudnn.rnn.fp32_precision == "tf32"  # type: ignore[attr-defined]


_REASONS: dict[str, Callable[..., str | None]] = {
    "layer": layer_reason,
    "input_gates": input_gates_reason,
    "recurrence": recurrence_reason,
    "drop": drop_reason,
    "add_rows": add_rows_reason,
    "cross_entropy": cross_entropy_reason,
    "penalties": penalties_reason,
    "token_model": token_model_reason,
    "sgd_update": update_reason,
    "dynamic_update": update_reason,
}


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    """Why the kernels cannot run a piece with these arguments, or None."""
    reason = _REASONS.get(piece)  # the other pieces run on any GPU
    return None if reason is None else reason(*arguments, **options)


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool) -> Tensor:
    """As :func:`torch_pru.ops.reference.drop`."""
    return dropping.operator(values, mask, keep, dtype, "cuda", eager=eager)
