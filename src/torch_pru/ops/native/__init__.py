"""Layers on a CPU, compiled: all steps in one call, with vectorized gates and products in registers.

The C++ source is in ``source``; :mod:`torch_pru.ops.native.library` says where its binary comes from. It is
built for x86-64 Linux and turned off by ``TORCH_PRU_NATIVE=0``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_pru.ops import torch_private as private
from torch_pru.ops.layer import PROJECTED
from torch_pru.ops.native import decoder, operators
from torch_pru.ops.native.decoder import cross_entropy
from torch_pru.ops.native.library import missing_reason
from torch_pru.ops.native.operators import Arguments, padded
from torch_pru.ops.spec import LayerCall, LayerSpec, Outputs, RecurrenceCall, product_dtype

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

__all__ = ["cross_entropy", "layer", "missing_reason", "recurrence", "unsupported_reason"]


def unsupported_reason(piece: str, *arguments: Any, eager: bool = False) -> str | None:
    """Why a call needs another backend; None if this one can run it."""
    if not eager and private.is_exporting():
        return "an exported program must run without compiled kernels"
    if piece == "cross_entropy":
        return decoder.unsupported_reason(*arguments)
    call: LayerCall | RecurrenceCall = arguments[0]
    x = call[0]
    if not x.is_cpu:
        return f"x is on {x.device}, and this backend is for CPUs"
    if (dtype := product_dtype(x)) not in DTYPES:
        return f"there are no CPU kernels for {dtype}"
    if not isinstance(call, LayerCall):
        return None
    return _unsupported_once(call.spec) if eager else unsupported_structure(call.spec)


def unsupported_structure(spec: LayerSpec) -> str | None:
    """Why there are no kernels for layers of this structure; None if there are."""
    if spec.is_projected:
        return PROJECTED
    if not spec.is_grouped_lstm:
        return "the context transform has levels"
    if not spec.input.is_linear:
        return f"pooling={spec.input.pooling!r} is not linear"
    if spec.input.levels > operators.MOST_LEVELS:
        return f"the input transform has more than {operators.MOST_LEVELS} levels"
    if not spec.input.is_even:
        return "the groups of the input transform differ in size"
    return None


_unsupported_once = functools.lru_cache(maxsize=1024)(unsupported_structure)


def layer(call: LayerCall, *, eager: bool) -> Outputs:
    """As :func:`torch_pru.ops.reference.layer`."""
    x, weights, h0, c0, lengths, spec, reverse = call
    tensors = (x, *padded(weights.input), weights.context[0], weights.bias, h0, c0, lengths)
    return _run(Arguments(*tensors, (1, *spec.input.windows), spec.residual, reverse), eager)


GATE_MAJOR = True  # ``recurrence`` reads a weight without a copy if it is stored as (4, G, D, D)


def recurrence(call: RecurrenceCall, *, eager: bool) -> Outputs:
    """See :func:`torch_pru.ops.recurrence`."""
    gates, weight, bias, h0, c0, lengths, reverse = call
    context = weight.transpose(0, 1).reshape(-1, weight.shape[-1])  # (4·M, D), usually without a copy
    flat = None if bias is None else bias.reshape(-1)
    tensors = (gates.flatten(2), *padded(()), context, flat, h0, c0, lengths)
    out, hn, cn = _run(Arguments(*tensors, (), False, reverse), eager)
    return out, hn.squeeze(0), cn.squeeze(0)


def _run(given: Arguments, eager: bool) -> Outputs:
    """Compute in float32, whatever the dtypes of the arguments; return the dtypes that callers expect."""
    dtype, c_dtype = product_dtype(given.x), None if given.c0 is None else given.c0.dtype
    dtypes = (dtype, given.x.dtype, given.context.dtype, c_dtype or dtype)
    if dtypes != (torch.float32,) * 4:
        given = given.to_float32()._replace(bfloat16=dtype == torch.bfloat16)
    save = False  # the operator itself finds out whether a gradient is wanted
    if eager and not (torch.is_grad_enabled() and private.any_requires_grad(*given)):
        out, hn, cn = operators.run_forward(given, save)
    else:
        out, hn, cn, _, _ = operators.forward(*given, save, eager=eager)
    if dtype == torch.float32 and c_dtype in (None, dtype):
        return out, hn, cn
    return out.to(dtype), hn.to(dtype), cn.to(c_dtype or dtype)
