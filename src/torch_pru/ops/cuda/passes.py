"""Kernels that pass over memory once where PyTorch would more often: masks, penalties, recurrence's tail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.folding import aligned
from torch_pru.ops.operators import OnceDifferentiable

from .launch import bits, launch_on, pass_over, unserved
from .plan import Launch, operand_dtype

LARGEST = 2**31  # elements: the kernels count in 32 bits


def _reason(values: Tensor, other: torch.dtype) -> str | None:
    """Why :func:`drop_kernel` and the penalties cannot take these values, together with another dtype."""
    kinds = {values.dtype, other}
    if not (kinds <= {torch.float32, torch.float16} or kinds <= {torch.float32, torch.bfloat16}):
        return f"{values.dtype} with {other}: the kernels take float32 with one of float16 and bfloat16"
    if values.numel() >= LARGEST:
        return f"{values.numel()} elements: the kernels count in 32 bits"
    return unserved(values.device.index)


def drop_reason(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool) -> str | None:
    return _reason(values, dtype)


def drop_kernel(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype) -> Tensor:
    """As :func:`torch_pru.ops.reference.drop`."""
    out = torch.empty(values.shape, dtype=dtype, device=values.device)
    if out.numel() == 0:
        return out
    size = values.shape[-1]
    as_gradient = _lies_as_a_weight_gradient(values) and mask.shape == values.shape
    if as_gradient:
        mask = mask.contiguous()
        rows, columns, strides, pitch = out.numel() // size, size, values.stride()[:3], size
    else:
        values = values.contiguous()
        mask = mask if mask[0].is_contiguous() else mask.contiguous()
        rows, columns, strides = len(values), values[0].numel(), (0, 0, 0)
        pitch = 0 if len(mask) == 1 else mask.stride(0)
    constants = (
        ("BF16", int(torch.bfloat16 in (values.dtype, dtype))),
        ("FROM32", int(values.dtype == torch.float32)),
        ("TO32", int(dtype == torch.float32)),
        ("D", size if as_gradient else 0),
        ("VEC", _width((values, mask, out), columns, pitch, *strides)),
    )
    numbers = (rows, columns, pitch, *strides, bits(keep))
    launch_on(pass_over("drop", constants, values.device), values.device, (values, mask, out), numbers)
    return out


def _lies_as_a_weight_gradient(values: Tensor) -> bool:
    """Whether it is a view (G, 4, D, D), as the recurrence leaves the gradient of its weight."""
    size = values.shape[-1]
    return (
        values.dim() == 4
        and values.shape[1:] == (4, size, size)
        and values.stride(3) == 1
        and not values.is_contiguous()
    )


def penalties_reason(
    dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
) -> str | None:
    like = raw if dropped is None else dropped
    assert like is not None
    if raw is not None and raw.dtype != like.dtype:
        return f"outputs of {like.dtype} and {raw.dtype}: the kernel takes one dtype"
    return _reason(like, like.dtype)


def penalties(dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float) -> Tensor:
    """As :func:`torch_pru.ops.reference.penalties`, each way in one pass; sums are in float32."""
    return _Penalties.apply(dropped, raw, activation, temporal)


class _Penalties(Function):
    @staticmethod
    def forward(
        ctx: Any, dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
    ) -> Tensor:
        dropped, raw = (None if output is None else output.contiguous() for output in (dropped, raw))
        ctx.save_for_backward(dropped, raw)
        ctx.rates = activation, temporal
        return penalties_forward(dropped, raw, activation, temporal)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        reason = "the fused penalties is not possible; compute them in PyTorch"
        arguments = (*grads, *ctx.saved_tensors, *ctx.rates)
        return *OnceDifferentiable.apply(penalties_backward, reason, *arguments), None, None


def penalties_forward(
    dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
) -> Tensor:
    """The sum of both terms, 0-d, float32; ``dropped`` and ``raw`` are contiguous."""
    like = raw if dropped is None else dropped
    assert like is not None
    launch, numbers = _penalties_launch("penalties", dropped, raw, activation, temporal)
    parts = torch.empty(launch.blocks[0], dtype=torch.float32, device=like.device)
    launch_on(launch, like.device, (dropped, raw, parts), numbers)
    return parts.sum()


def penalties_backward(
    gradient: Tensor, dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of dropped and raw, in their dtype, from that of :func:`penalties`, 0-d."""
    grads = [None if tensor is None else torch.empty_like(tensor) for tensor in (dropped, raw)]
    launch, numbers = _penalties_launch("penalties_backward", dropped, raw, activation, temporal)
    launch_on(launch, gradient.device, (dropped, raw, gradient, *grads), numbers)
    return grads[0], grads[1]


def _penalties_launch(
    kernel: str, dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float
) -> tuple[Launch, tuple[int, ...]]:
    tensors = [tensor for tensor in (dropped, raw) if tensor is not None]
    like = tensors[0]
    count, step = like.numel(), like[0].numel()
    constants = (
        ("BF16", int(like.dtype == torch.bfloat16)),
        ("FROM32", int(like.dtype == torch.float32)),
        ("VEC", _width(tensors, step)),
    )
    means = (activation / count, temporal / (count - step))
    return pass_over(kernel, constants, like.device), (count, step, *map(bits, means))


def backward_tail(
    out: Tensor,
    h0: Tensor | None,
    bias_parts: Tensor,
    groups: int,
    lengths: Tensor | None,
    reverse: bool,
    biases: int = 1,
    bias_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """What the recurrence's backward needs after its kernel.

    Args:
        out: (T, B, M), contiguous.
        h0: (B, M), any dtype, or None for zeros.
        bias_parts: (rows, M, 4) float32, whose sum is the bias's gradient.
        lengths: (B,) int64 or None.
        biases: how many have this gradient.
        bias_dtype: float32, or the dtype of ``out``.

    Returns:
        The hidden state that each step started from, (T, B, G, padded) as ``operand_dtype`` says, and the
        biases' gradients (biases, 4, M). Groups start at multiples of 16 bytes, without which the product
        takes four times as long. Idle steps hold something finite, for their gradients are zero.
    """
    steps, batch, width = out.shape
    size = width // groups
    if h0 is not None:
        h0 = (h0 if h0.dtype == torch.float32 else h0.to(out.dtype)).contiguous()
    before = out.new_empty(steps, batch, groups, aligned(size), dtype=operand_dtype(out.dtype))
    dbias = bias_parts.new_empty(biases, 4, width, dtype=bias_dtype)
    numbers = (steps, batch, groups, reverse, bias_parts.shape[0], biases)
    tensors = (out, h0, lengths, bias_parts, before, dbias)
    launch = tail_launch(out, (out if h0 is None else h0).dtype, bias_dtype, size)
    launch_on(launch, out.device, tensors, numbers)
    return before, dbias


def tail_launch(out: Tensor, h0_dtype: torch.dtype, bias_dtype: torch.dtype, size: int) -> Launch:
    """Of :func:`backward_tail`, for groups of ``size`` units."""
    constants = (
        ("BF16", int(out.dtype == torch.bfloat16)),
        ("OUT_32", int(out.dtype == torch.float32)),
        ("H0_32", int(h0_dtype == torch.float32)),
        ("BIAS_32", int(bias_dtype == torch.float32)),
        ("D", size),
    )
    return pass_over("backward_tail", constants, out.device)


def gradient_scale(grads: Sequence[Tensor | None], device: torch.device) -> Tensor:
    """From the gradients of out, hn and cn, contiguous float32 or None, what the float32 backward scales by.

    Returns:
        (blocks,) int32 whose maximum is the largest magnitude, as bits.
    """
    launch = pass_over("gradient_scale", (), device)
    largest = torch.empty(launch.blocks[0], dtype=torch.int32, device=device)
    counts = (0 if grad is None else grad.numel() for grad in grads)
    launch_on(launch, device, (*grads, largest), counts)
    return largest


def _width(tensors: tuple[Tensor, ...] | list[Tensor], *strides: int) -> int:
    """How many elements move at once, up to 8: what divides every stride and where each tensor begins."""
    return math.gcd(8, *strides, *(tensor.data_ptr() // tensor.element_size() for tensor in tensors))
