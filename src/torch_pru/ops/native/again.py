"""Gradients of compiled layers that can be differentiated again.

The compiled backward pass cannot. Where a caller asks for ``create_graph=True``, the layer is computed once
more in plain PyTorch, and autograd finds its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_pru.ops import reference
from torch_pru.ops.layer import recurrent_weights
from torch_pru.ops.native.calls import Arguments
from torch_pru.ops.spec import LayerCall, LayerSpec, LayerWeights, Outputs, RecurrenceCall, TransformSpec


def run(given: Arguments) -> Outputs:
    """What the kernels compute of these arguments, in plain PyTorch."""
    x, matrices, windows, context, bias, h0, c0, lengths, residual, reverse, _ = given
    hidden, width = context.shape[0] // 4, context.shape[1]
    weights = LayerWeights(tuple(matrices), (context,), () if bias is None else (bias,))
    context_spec = TransformSpec(hidden, (hidden,), hidden // width)
    if not matrices:  # x is the input's share of the gates
        spec = LayerSpec(context_spec, context_spec)
        weight, bias = recurrent_weights(weights, spec)
        call = RecurrenceCall(x.unflatten(-1, (4, -1)), weight, bias, h0, c0, lengths, reverse)
        return reference.recurrence(call)
    features, sizes = x.shape[-1], tuple(matrix.shape[0] // 4 for matrix in matrices)
    input_spec = TransformSpec(features, sizes, features // matrices[0].shape[1], windows=tuple(windows[1:]))
    spec = LayerSpec(input_spec, context_spec, residual)
    out, hn, cn = reference.layer(LayerCall(x, weights, h0, c0, lengths, spec, reverse))
    return out, hn[0], cn[0]


def gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of ``function(*inputs)``, which can be differentiated; None where they are not needed.

    Args:
        inputs: the tensors that ``function`` takes.
        needed: for each of them, whether its gradient is wanted.
        grads: the gradient of each result; None for zero.
    """
    with torch.enable_grad():
        # A view of each, so that a tensor that is given twice has a gradient for each place.
        views = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        results = function(*views)
    wanted = [view for view, need in zip(views, needed, strict=True) if need and view is not None]
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
    outputs, given = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]
