"""The recurrence as operators: ``torch_pru::recurrence`` and ``torch_pru::recurrence_backward``.

Both take the name of the backend as an argument, because the choice has been made before.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops import reference
from torch_pru.ops.backends import module
from torch_pru.ops.operators import ONCE, OnceDifferentiable, Operator, differentiable_gradients
from torch_pru.ops.spec import Outputs, RecurrenceCall, SavedRecurrence


def _forward(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `torch_pru.ops.cpu.loop.forward`; with ``"cuda"`` the states may be None."""
    return module(backend).forward(RecurrenceCall(gates, weight, bias, h0, c0, lengths, reverse), save)


def _forward_fake(gates, weight, bias, h0, c0, lengths, reverse, save, backend):
    steps, batch, _, hidden = gates.shape
    return (
        gates.new_empty(steps, batch, hidden),
        gates.new_empty(batch, hidden),
        gates.new_empty(batch, hidden, dtype=gates.dtype if c0 is None else c0.dtype),
        *module(backend).saved_like(gates, save),
    )


def _backward(
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    weight: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
    lengths: Tensor | None,
    reverse: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See `torch_pru.ops.cpu.loop.backward`."""
    saved = SavedRecurrence(weight, h0, c0, out, activations, cells, lengths, reverse)
    return module(backend).backward(grad_out, grad_hn, grad_cn, saved)


def _backward_fake(
    grad_out, grad_hn, grad_cn, weight, h0, c0, out, activations, cells, lengths, reverse, backend
):
    kernels = module(backend)
    grad_gates, grad_bias = kernels.gradients_like(out)
    states = kernels.state_gradients_like(out, h0, c0)
    return grad_gates, kernels.weight_gradient_like(weight), grad_bias, *states


class _Recurrence(Function):
    @staticmethod
    def forward(ctx, gates, weight, bias, h0, c0, lengths, reverse, _, backend):
        save = True  # autograd calls this only if a gradient is wanted
        results = forward.below_autograd(gates, weight, bias, h0, c0, lengths, reverse, save, backend)
        out, _, _, activations, cells = results
        ctx.reverse, ctx.backend = reverse, backend
        ctx.set_materialize_grads(False)  # zeros for unused results would take as much memory as the gates
        # For second derivatives, in float64 only: the gates take as much memory as the activations.
        again = (gates, bias) if gates.dtype == torch.float64 else (None, None)
        ctx.save_for_backward(*again, weight, h0, c0, out, activations, cells, lengths)
        return results

    @staticmethod
    def backward(ctx, grad_out, grad_hn, grad_cn, grad_activations, grad_cells):
        gates, bias, *saved = ctx.saved_tensors
        needed, grads = ctx.needs_input_grad[:5], (grad_out, grad_hn, grad_cn)
        if torch.is_grad_enabled() and gates is not None:  # create_graph=True
            weight, h0, c0, *_, lengths = saved
            tensors = (gates, weight, bias, h0, c0)
            kept = differentiable_gradients(_in_pytorch(lengths, ctx.reverse), tensors, needed, grads)
        else:  # autograd converts to the dtypes of the arguments
            found = backward(*grads, *saved, ctx.reverse, ctx.backend)
            kept = [grad if need else None for grad, need in zip(found, needed, strict=True)]
        return *kept, None, None, None, None


def _in_pytorch(lengths, reverse):
    """What the operator computes, in plain PyTorch: a function of the tensors that have gradients."""

    def recurrence(gates, weight, bias, h0, c0):
        return reference.recurrence(RecurrenceCall(gates, weight, bias, h0, c0, lengths, reverse))

    return recurrence


def _backward_once(*arguments):
    return OnceDifferentiable.apply(backward.below_autograd, ONCE, *arguments)


forward = Operator("recurrence", _forward, _forward_fake, _Recurrence.apply)
backward = Operator("recurrence_backward", _backward, _backward_fake, _backward_once)


def run(call: RecurrenceCall, backend: str, eager: bool) -> Outputs:
    """The recurrence as a differentiable operator, computed by ``forward`` and ``backward`` of a backend."""
    save = False  # the differentiable operator saves, so that one trace serves for both
    out, hn, cn, _, _ = forward(*call, save, backend, eager=eager)
    return out, hn, cn
