"""A layer in two pieces, the input's gates and the recurrence, as ``loop`` and ``cuda`` run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_pru.ops.dense import dense_matrix
from torch_pru.ops.products import SIXTEEN_BITS, product_dtype, transform
from torch_pru.ops.spec import LayerCall, LayerSpec, LayerWeights, Outputs, RecurrenceCall, with_layer_axis

PROJECTED = "it has no projection of the state (proj_size)"
ROWS_AT_ONCE = 1400  # steps times batch: what a CPU computes in one part


def run_layer(recurrence: Callable[..., Outputs], backend: str, call: LayerCall, *, eager: bool) -> Outputs:
    """The piece ``layer``, with the piece ``recurrence`` of a backend; the context must be linear."""
    x, weights, h0, c0, lengths, spec, reverse = call
    weight, bias = recurrent_weights(weights, spec)
    h, c, outputs = h0, c0, []
    for part in _in_parts(x, lengths, reverse, eager):
        gates = transform(
            part,
            weights.input,
            weights.input_kernels,
            spec=spec.input,
            residual=spec.residual,
            backend=backend,
            eager=eager,
        )
        y, h, c = recurrence(RecurrenceCall(gates, weight, bias, h, c, lengths, reverse), eager=eager)
        outputs.append(y)
    assert h is not None
    assert c is not None
    out = outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1] if reverse else outputs)
    return with_layer_axis((out, h, c))


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


def _in_parts(x: Tensor, lengths: Tensor | None, reverse: bool, eager: bool) -> Sequence[Tensor]:
    """x (T, B, N) as parts of consecutive steps, in the order in which they are run.

    On a CPU a long input is computed in parts: the products are as fast, and the allocator reuses its
    buffers, while for the whole input the system would map new memory at every call. A trace is not divided,
    because it would fix the number of parts.
    """
    steps, batch, _ = x.shape
    whole = not (eager and x.is_cpu) or lengths is not None or product_dtype(x) in SIXTEEN_BITS
    if whole or steps * batch <= ROWS_AT_ONCE:
        return (x,)
    parts = x.tensor_split(min(steps, -(-steps * batch // ROWS_AT_ONCE)))
    return parts[::-1] if reverse else parts
