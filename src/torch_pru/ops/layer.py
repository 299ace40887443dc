"""A layer in two pieces, the input's gates and the recurrence, as ``loop`` and ``cuda`` run it.

The recurrence is an operator, ``torch_pru::recurrence``. It takes the name of the backend whose ``forward``
and ``backward`` compute it, because the choice has been made before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops import reference
from torch_pru.ops.backends import module
from torch_pru.ops.folding import dense_matrix
from torch_pru.ops.gates import transform
from torch_pru.ops.operators import ONCE, Operator, differentiable_gradients
from torch_pru.ops.spec import (
    LayerCall,
    LayerSpec,
    LayerWeights,
    Outputs,
    RecurrenceCall,
    SavedRecurrence,
    with_layer_axis,
)

PROJECTED = "it has no projection of the state (proj_size)"


def run_layer(recurrence: Callable[..., Outputs], backend: str, call: LayerCall, *, eager: bool) -> Outputs:
    """The piece ``layer``, with the piece ``recurrence`` of a backend; the context must be linear."""
    x, weights, h0, c0, lengths, spec, reverse = call
    weight, bias = recurrent_weights(weights, spec)
    gates = transform(
        x,
        weights.input,
        weights.input_kernels,
        spec=spec.input,
        residual=spec.residual,
        backend=backend,
        eager=eager,
    )
    rest = RecurrenceCall(gates, weight, bias, h0, c0, lengths, reverse)
    return with_layer_axis(recurrence(rest, eager=eager))


def recurrent_weights(weights: LayerWeights, spec: LayerSpec) -> tuple[Tensor, Tensor | None]:
    """Weight (G, 4, D, D), a view where possible, and bias (4, M) of a recurrence with a linear context."""
    weight = weights.context[0] if spec.is_grouped_lstm else dense_matrix(weights.context, spec.context)
    bias = weights.bias
    weight = weight.view(4, context_groups(spec), -1, weight.shape[1]).transpose(0, 1)
    return weight, None if bias is None else bias.view(4, -1)


def context_groups(spec: LayerSpec) -> int:
    """The groups of the recurrence: a pyramidal context becomes one dense matrix."""
    return spec.groups if spec.is_grouped_lstm else 1


def unsupported_context(spec: LayerSpec) -> str | None:
    """Why a recurrence with one weight matrix cannot run a layer, or None."""
    if spec.is_projected:
        return PROJECTED
    if spec.context.is_linear:
        return None
    return (
        "it runs linear contexts only, and context_transform='pyramidal' with "
        f"pooling={spec.context.pooling!r} is not linear"
    )


def run_recurrence(call: RecurrenceCall, backend: str, eager: bool) -> Outputs:
    """The recurrence as a differentiable operator, computed by ``forward`` and ``backward`` of a backend."""
    save = False  # the differentiable operator saves, so that one trace serves for both
    out, hn, cn, _, _ = recurrence_forward(*call, save, backend, eager=eager)
    return out, hn, cn


def _forward(*arguments):
    """See `torch_pru.ops.cpu.loop.forward`; with ``"cuda"`` the states may be None."""
    *call, save, backend = arguments
    return module(backend).forward(RecurrenceCall(*call), save)


def _forward_fake(gates, weight, bias, h0, c0, lengths, reverse, save, backend):
    steps, batch, _, hidden = gates.shape
    return (
        gates.new_empty(steps, batch, hidden),
        gates.new_empty(batch, hidden),
        gates.new_empty(batch, hidden, dtype=gates.dtype if c0 is None else c0.dtype),
        *module(backend).saved_like(gates, save),
    )


def _backward(grad_out, grad_hn, grad_cn, *arguments):
    """See `torch_pru.ops.cpu.loop.backward`."""
    *saved, backend = arguments
    return module(backend).backward(grad_out, grad_hn, grad_cn, SavedRecurrence(*saved))


def _backward_fake(grad_out, grad_hn, grad_cn, *arguments):
    *saved, backend = arguments
    saved, kernels = SavedRecurrence(*saved), module(backend)
    grad_gates, grad_bias = kernels.gradients_like(saved.out)
    states = kernels.state_gradients_like(saved.out, saved.h0, saved.c0)
    return grad_gates, kernels.weight_gradient_like(saved.weight), grad_bias, *states


class _Recurrence(Function):
    @staticmethod
    def forward(ctx, *arguments):
        *call, _, backend = arguments
        save = True  # autograd calls this only if a gradient is wanted
        results = recurrence_forward.below_autograd(*call, save, backend)
        out, _, _, activations, cells = results
        gates, weight, bias, h0, c0, lengths, ctx.reverse = call
        ctx.backend = backend
        ctx.set_materialize_grads(False)  # zeros for unused results would take as much memory as the gates
        # For second derivatives, in float64 only: the gates take as much memory as the activations.
        again = (gates, bias) if gates.dtype == torch.float64 else (None, None)
        ctx.save_for_backward(*again, weight, h0, c0, out, activations, cells, lengths)
        return results

    @staticmethod
    def backward(ctx, *grads):
        gates, bias, *saved = ctx.saved_tensors
        needed, grads = ctx.needs_input_grad[:5], grads[:3]
        if torch.is_grad_enabled() and gates is not None:  # create_graph=True
            weight, h0, c0, *_, lengths = saved

            def in_pytorch(*tensors):
                return reference.recurrence(RecurrenceCall(*tensors, lengths, ctx.reverse))

            kept = differentiable_gradients(in_pytorch, (gates, weight, bias, h0, c0), needed, grads)
        else:  # autograd converts to the dtypes of the arguments
            found = recurrence_backward(*grads, *saved, ctx.reverse, ctx.backend)
            kept = [grad if need else None for grad, need in zip(found, needed, strict=True)]
        return *kept, None, None, None, None


recurrence_forward = Operator(
    "recurrence(Tensor gates, Tensor weight, Tensor? bias, Tensor? h0, Tensor? c0, Tensor? lengths, "
    "bool reverse, bool save, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    _Recurrence.apply,
)
recurrence_backward = Operator(
    "recurrence_backward(Tensor? grad_out, Tensor? grad_hn, Tensor? grad_cn, Tensor weight, Tensor? h0, "
    "Tensor? c0, Tensor out, Tensor activations, Tensor cells, Tensor? lengths, bool reverse, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    ONCE,
)
