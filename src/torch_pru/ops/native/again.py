"""What the compiled kernels compute, in plain PyTorch, for gradients that can be differentiated again."""

from __future__ import annotations

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
