"""Layers on a CPU, compiled: all steps in one call, with vectorized gates and products in registers.

The C++ source is in ``source``; :mod:`torch_pru.ops.native.library` says where its binary comes from. It is
built for x86-64 Linux and turned off by ``TORCH_PRU_NATIVE=0``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.ops.native.library import missing_reason
from torch_pru.ops.products import product_dtype
from torch_pru.ops.spec import LayerSpec, LayerWeights

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

__all__ = ["layer", "recurrence", "unsupported_reason"]


def unsupported_reason(
    piece: str, x: Tensor, *others, spec: LayerSpec | None = None, **options
) -> str | None:
    """Why a call needs another backend; None where this one can run it."""
    if not x.is_cpu:
        return f"x is on {x.device}, and this backend is for CPUs"
    if product_dtype(x) not in DTYPES:
        return f"there are no CPU kernels for {product_dtype(x)}"
    if spec is not None:
        if not spec.is_grouped_lstm:
            return "the context transform has levels"
        if not spec.input.is_linear:
            return f"pooling={spec.input.pooling!r} is not linear"
        if not spec.input.is_even:
            return "the groups of the input transform differ in size"
    return missing_reason()


def layer(
    x: Tensor,
    weights: LayerWeights,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    *,
    spec: LayerSpec,
    reverse: bool = False,
    eager: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer in one direction over x (T, B, N); see :mod:`torch_pru.ops.backends`."""
    windows = (1, *spec.input.windows)
    return _run(
        x, weights.input, windows, weights.context[0], weights.bias, h0, c0, lengths, spec.residual, reverse
    )


def recurrence(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    *,
    reverse: bool = False,
    eager: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The recurrence over gates (T, B, 4, M); see :mod:`torch_pru.ops.backends`."""
    return _run(gates.flatten(2), (), (), weight, bias, h0, c0, lengths, False, reverse)


def _run(x, input, windows, context, bias, h0, c0, lengths, residual, reverse):
    """Compute in float32, whatever the dtypes of the arguments; return the dtypes that callers expect."""
    from torch_pru.ops.native.operators import forward  # here, because importing the package must stay light

    dtype, c_dtype = product_dtype(x), c0 if c0 is None else c0.dtype
    x, context, bias, h0, c0, *input = (_wide(tensor) for tensor in (x, context, bias, h0, c0, *input))
    out, hn, cn, _, _ = forward(x, input, windows, context, bias, h0, c0, lengths, residual, reverse, False)
    if dtype == torch.float32 and c_dtype in (None, dtype):
        return out, hn, cn
    return out.to(dtype), hn.to(dtype), cn.to(c_dtype or dtype)


def _wide(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.dtype == torch.float32 else tensor.float()
