"""A layer in one direction as operators: ``torch_pru::cpu_layer`` and ``torch_pru::cpu_layer_backward``.

They compute in float32. Compilers and exporters see one node for all steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.native import calls
from torch_pru.ops.native.calls import Arguments, Saved, Wanted
from torch_pru.ops.operators import OnceDifferentiable, Operator

ONCE = "this backend is not possible; build the layer as PRU(..., backend='reference')"
"""Why there is no double backward."""


def _forward(
    x: Tensor,
    input: Sequence[Tensor],
    windows: Sequence[int],
    context: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    residual: bool,
    reverse: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :class:`torch_pru.ops.native.calls.Arguments`; the last two results are empty unless ``save``."""
    arguments = Arguments(x, input, windows, context, bias, h0, c0, lengths, residual, reverse)
    out, hn, cn, saved = calls.forward(arguments, save)
    return out, hn, cn, *(saved or _saved_like(x, context, save))


def _forward_fake(x, input, windows, context, bias, h0, c0, lengths, residual, reverse, save):
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
    input: Sequence[Tensor],
    windows: Sequence[int],
    context: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    residual: bool,
    reverse: bool,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """The gradients that are wanted, in the order of :class:`torch_pru.ops.native.calls.Wanted`."""
    arguments = Arguments(x, input, windows, context, None, h0, c0, lengths, residual, reverse)
    saved, wants = Saved(activations, cells), Wanted(*wanted)
    grads = calls.backward(arguments, out, saved, grad_out, grad_hn, grad_cn, wants)
    return _listed(grads._replace(x=grads.x if wants.x else None))


def _backward_fake(
    grad_out,
    grad_hn,
    grad_cn,
    x,
    input,
    windows,
    context,
    h0,
    c0,
    lengths,
    residual,
    reverse,
    out,
    activations,
    cells,
    wanted,
):
    state = (x.shape[1], context.shape[0] // 4)
    shapes = calls.Gradients(
        x.shape, [w.shape for w in input], context.shape, (context.shape[0],), state, state
    )
    kept = (shape if want else None for shape, want in zip(shapes, wanted, strict=True))
    return [x.new_empty(tuple(shape)) for shape in _listed(calls.Gradients(*kept))]


def _listed(grads: calls.Gradients) -> list:
    """All that are not None, those of the input's matrices one by one."""
    flat = (grads.x, *(grads.input or ()), *grads[2:])
    return [grad for grad in flat if grad is not None]


class _Layer(Function):
    @staticmethod
    def forward(ctx, x, windows, context, bias, h0, c0, lengths, residual, reverse, *input):
        results = forward.below_autograd(
            x, input, windows, context, bias, h0, c0, lengths, residual, reverse, True
        )
        out, _, _, activations, cells = results
        ctx.settings = windows, residual, reverse
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, context, h0, c0, lengths, out, activations, cells, *input)
        return results

    @staticmethod
    def backward(ctx, grad_out, grad_hn, grad_cn, grad_activations, grad_cells):
        x, context, h0, c0, lengths, out, activations, cells, *input = ctx.saved_tensors
        windows, residual, reverse = ctx.settings
        needs = ctx.needs_input_grad
        wanted = Wanted(needs[0], any(needs[9:]), needs[2], needs[3], needs[4], needs[5])
        grads = iter(
            backward(
                grad_out,
                grad_hn,
                grad_cn,
                x,
                input,
                windows,
                context,
                h0,
                c0,
                lengths,
                residual,
                reverse,
                out,
                activations,
                cells,
                wanted,
            )
        )
        grad_x = next(grads) if wanted.x else None
        grad_input = [next(grads) if wanted.input else None for _ in input]
        others = [next(grads) if want else None for want in wanted[2:]]
        return grad_x, None, *others, None, None, None, *grad_input


def _with_gradient(x, input, windows, context, bias, h0, c0, lengths, residual, reverse, _save):
    return _Layer.apply(x, windows, context, bias, h0, c0, lengths, residual, reverse, *input)


def _backward_once(*arguments):
    return OnceDifferentiable.apply(backward.below_autograd, ONCE, *arguments)


forward = Operator("cpu_layer", _forward, _forward_fake, _with_gradient)
backward = Operator("cpu_layer_backward", _backward, _backward_fake, _backward_once)
