"""A layer in one direction as operators: ``torch_pru::cpu_layer`` and ``torch_pru::cpu_layer_backward``.

They compute in float32. Compilers see one node for all steps. The matrices of the levels are arguments of
their own, not a list: PyTorch maps operators over batches (``vmap``) only without lists of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.native import again, calls
from torch_pru.ops.native.calls import Arguments, Saved, Wanted
from torch_pru.ops.operators import ONCE, OnceDifferentiable, Operator, differentiable_gradients

MOST_LEVELS = 4


def run(given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The layer as a differentiable operator: output (T, B, M), last states h and c (B, M)."""
    x, matrices, *others = given
    save = False  # the operator itself finds out whether a gradient is wanted
    out, hn, cn, _, _ = forward(x, *_padded(matrices), *others, save)
    return out, hn, cn


def _padded(matrices: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return (*matrices, *(None,) * (MOST_LEVELS - len(matrices)))


def _given(matrices: Sequence[Tensor | None]) -> list[Tensor]:
    return [matrix for matrix in matrices if matrix is not None]


def _forward(
    x: Tensor,
    w0: Tensor | None,
    w1: Tensor | None,
    w2: Tensor | None,
    w3: Tensor | None,
    windows: Sequence[int],
    context: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    residual: bool,
    reverse: bool,
    bfloat16: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :class:`torch_pru.ops.native.calls.Arguments`; the last two results are empty unless ``save``."""
    matrices = _given((w0, w1, w2, w3))
    settings = (residual, reverse, bfloat16)
    arguments = Arguments(x, matrices, windows, context, bias, h0, c0, lengths, *settings)
    out, hn, cn, saved = calls.forward(arguments, save)
    return out, hn, cn, *(saved or _saved_like(x, context, save))


def _forward_fake(
    x, w0, w1, w2, w3, windows, context, bias, h0, c0, lengths, residual, reverse, bfloat16, save
):
    steps, batch, _ = x.shape
    hidden = context.shape[0] // 4
    shapes = ((steps, batch, hidden), (batch, hidden), (batch, hidden))
    return *(x.new_empty(shape) for shape in shapes), *_saved_like(x, context, save)


def _saved_like(x: Tensor, context: Tensor, save: bool) -> Saved:
    steps, batch, _ = x.shape
    steps, hidden = steps if save else 0, context.shape[0] // 4
    return Saved(x.new_empty(steps, batch, 4, hidden), x.new_empty(steps, batch, hidden))


def _backward(
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    x: Tensor,
    w0: Tensor | None,
    w1: Tensor | None,
    w2: Tensor | None,
    w3: Tensor | None,
    windows: Sequence[int],
    context: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    residual: bool,
    reverse: bool,
    bfloat16: bool,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, w0 to w3, context, bias, h0 and c0; empty where they are not wanted."""
    matrices, wants = _given((w0, w1, w2, w3)), Wanted(*wanted)
    settings = (residual, reverse, bfloat16)
    arguments = Arguments(x, matrices, windows, context, None, h0, c0, lengths, *settings)
    saved = Saved(activations, cells)
    grads = calls.backward(arguments, out, saved, grad_out, grad_hn, grad_cn, wants)
    grad_x = grads.x if wants.x else None
    flat = (grad_x, *_padded(grads.input or ()), *grads[2:])
    return tuple(x.new_empty(0) if grad is None else grad for grad in flat)  # type: ignore[return-value]


def _backward_fake(
    grad_out,
    grad_hn,
    grad_cn,
    x,
    w0,
    w1,
    w2,
    w3,
    windows,
    context,
    h0,
    c0,
    lengths,
    residual,
    reverse,
    bfloat16,
    out,
    activations,
    cells,
    wanted,
):
    matrices, wants = (w0, w1, w2, w3), Wanted(*wanted)
    state = (x.shape[1], context.shape[0] // 4)
    shapes = (
        x.shape if wants.x else (0,),
        *(matrix.shape if matrix is not None and wants.input else (0,) for matrix in matrices),
        context.shape if wants.context else (0,),
        context.shape[:1] if wants.bias else (0,),
        state if wants.h0 else (0,),
        state if wants.c0 else (0,),
    )
    return tuple(x.new_empty(shape) for shape in shapes)


class _Layer(Function):
    @staticmethod
    def forward(ctx, x, w0, w1, w2, w3, windows, context, bias, h0, c0, lengths, *settings):
        residual, reverse, bfloat16, _ = settings
        save = True  # autograd calls this only if a gradient is wanted
        matrices = (w0, w1, w2, w3)
        states = (bias, h0, c0, lengths, residual, reverse, bfloat16)
        results = forward.below_autograd(x, *matrices, windows, context, *states, save)
        out, _, _, activations, cells = results
        ctx.settings = windows, residual, reverse, bfloat16
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, *matrices, context, bias, h0, c0, lengths, out, activations, cells)
        return results

    @staticmethod
    def backward(ctx, grad_out, grad_hn, grad_cn, _grad_activations, _grad_cells):
        x, *matrices, context, bias, h0, c0, lengths, out, activations, cells = ctx.saved_tensors
        windows, *settings = ctx.settings
        needs = ctx.needs_input_grad[:10]
        x_needed, *input_needed, _, context_needed, bias_needed, h0_needed, c0_needed = needs
        others_needed = (context_needed, bias_needed, h0_needed, c0_needed)
        needed = (x_needed, *input_needed, *others_needed)
        grads = (grad_out, grad_hn, grad_cn)
        if torch.is_grad_enabled():  # create_graph=True
            tensors = (x, *matrices, context, bias, h0, c0)
            kept = differentiable_gradients(_in_pytorch(lengths, *ctx.settings), tensors, needed, grads)
        else:
            wanted = Wanted(x_needed, any(input_needed), *others_needed)
            states = (h0, c0, lengths, *settings, out, activations, cells)
            found = backward(*grads, x, *matrices, windows, context, *states, list(wanted))
            kept = [grad if need else None for grad, need in zip(found, needed, strict=True)]
        return *kept[:5], None, *kept[5:], None, None, None, None, None


def _in_pytorch(lengths, windows, *settings):
    """What the operator computes, in plain PyTorch: a function of the tensors that have gradients."""

    def layer(x, w0, w1, w2, w3, context, bias, h0, c0):
        matrices = _given((w0, w1, w2, w3))
        return again.run(Arguments(x, matrices, windows, context, bias, h0, c0, lengths, *settings))

    return layer


def _backward_once(*arguments):
    return OnceDifferentiable.apply(backward.below_autograd, ONCE, *arguments)


forward = Operator("cpu_layer", _forward, _forward_fake, _Layer.apply)
backward = Operator("cpu_layer_backward", _backward, _backward_fake, _backward_once)
