"""One layer in one direction over all steps: the input's gates, then the recurrence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.ops import lstm, native, or_zeros, recurrence, reference
from torch_pru.ops.dense import dense_matrix, level_matrices, lstm_matrices
from torch_pru.ops.gates import input_gates as fused_input_gates
from torch_pru.ops.products import (
    SIXTEEN_BITS,
    add_input,
    concatenate_units,
    gate_linear,
    is_unit_major,
    product_dtype,
)
from torch_pru.ops.spec import LayerSpec, LayerWeights, TransformSpec
from torch_pru.ops.torch_private import Mode, are_plain, current_mode
from torch_pru.pooling import pyramid

ROWS_AT_ONCE = 1400  # steps times batch: what a CPU computes in one part


def layer(
    x: Tensor,
    weights: LayerWeights,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    *,
    spec: LayerSpec,
    reverse: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over x (T, B, N); see :func:`torch_pru.ops.recurrence` for the other arguments.

    Returns:
        out (T, B, M), and the states after the last step, (B, M) each.
    """
    if backend == "reference":
        return reference.layer(x, weights, h0, c0, lengths, spec=spec, reverse=reverse)
    if x.is_cpu and backend in ("auto", "native") and (mode := current_mode()) is not Mode.DERIVATIVE:
        arguments = (x, weights, h0, c0, lengths)
        reason = native.unsupported_reason("layer", *arguments, spec=spec, reverse=reverse)
        if reason is None:
            eager = mode is Mode.EAGER and are_plain(arguments)
            return native.layer(*arguments, spec=spec, reverse=reverse, eager=eager)
        if backend == "native":
            raise PRUError(f"backend='native' cannot run this call: {reason}; use backend='auto'")
    if _is_quicker_as_lstm(x, weights, spec, backend):
        matrices = lstm_matrices(weights, spec)
        biases = () if weights.bias is None else (weights.bias, torch.zeros_like(weights.bias))
        return lstm.run(x, h0, c0, lstm.Weights(*matrices, biases), lengths, reverse)
    h, c, outputs = h0, c0, []
    for part in _in_parts(x, lengths, reverse):
        gates = input_gates(part, weights, spec)
        y, h, c = recur(gates, weights, h, c, lengths, spec=spec, reverse=reverse, backend=backend)
        outputs.append(y)
    assert h is not None
    assert c is not None
    if len(outputs) == 1:
        return outputs[0], h, c
    return torch.cat(outputs[::-1] if reverse else outputs), h, c


def input_gates(x: Tensor, weights: LayerWeights, spec: LayerSpec) -> Tensor:
    """What the input x (…, N) contributes to the gates, without a bias: (…, 4, M)."""
    return transform(x, weights.input, weights.input_kernels, spec.input, residual=spec.residual)


def transform(
    x: Tensor,
    matrices: Sequence[Tensor],
    kernels: Sequence[Tensor],
    spec: TransformSpec,
    *,
    gates: int = 4,
    residual: bool = False,
) -> Tensor:
    """A transform of x (…, N), without a bias: (…, gates, M). With ``residual`` x is added to every gate."""
    if is_unit_major(x) and spec.is_linear and (spec.levels > 1 or spec.groups == 1):
        # On a GPU one large product is quicker than several, the pooling and the concatenation.
        # Of grouped levels, too, at the paper's widths; at 4096 features the zeros cost a tenth.
        dense = [matrix.unsqueeze(0) for matrix in level_matrices(matrices, spec)]
        return fused_input_gates(x, dense, spec.windows, product_dtype(x), residual)
    views = pyramid(x, spec.pooling, spec.windows, kernels)
    levels = zip(views, spec.matrices_by_level(tuple(matrices)), strict=True)
    y = concatenate_units([_level(view, blocks, spec.groups, gates) for view, blocks in levels])
    return add_input(y, x) if residual else y


def _level(x: Tensor, blocks: tuple[Tensor, ...], groups: int, gates: int) -> Tensor:
    """One level of a transform: (…, n) to (…, gates, m)."""
    if len(blocks) == groups:
        parts = x.tensor_split(groups, dim=-1) if groups > 1 else (x,)
        pairs = zip(parts, blocks, strict=True)
        return concatenate_units([gate_linear(part, _by_gate(block, gates)) for part, block in pairs])
    [weight] = blocks
    rows, features = weight.shape
    units = rows // (gates * groups)
    by_group = x.reshape(-1, groups, features).transpose(0, 1)  # (g, rows, n/g)
    weight = weight.view(gates, groups, units, features).transpose(0, 1)
    y = by_group @ weight.reshape(groups, gates * units, features).transpose(1, 2)
    y = y.view(groups, by_group.shape[1], gates, units).permute(1, 2, 0, 3)
    return y.reshape(*x.shape[:-1], gates, groups * units)


def _by_gate(matrix: Tensor, gates: int) -> Tensor:
    """(gates·m, n) as (1, gates, m, n)."""
    return matrix.view(1, gates, -1, matrix.shape[1])


def recur(
    gates: Tensor,
    weights: LayerWeights,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None = None,
    *,
    spec: LayerSpec,
    reverse: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the recurrence over gates (T, B, 4, M)."""
    bias = None if weights.bias is None else weights.bias.view(4, -1)
    if not spec.context.is_linear:
        return _scan(gates, weights, bias, h0, c0, lengths, spec, reverse, backend)
    weight = weights.context[0] if spec.is_grouped_lstm else dense_matrix(weights.context, spec.context)
    by_group = weight.view(4, spec.groups, -1, weight.shape[1]).transpose(0, 1)  # (G, 4, D, D)
    return recurrence(gates, by_group, bias, h0, c0, lengths, reverse=reverse, backend=backend)


def _scan(gates, weights, bias, h0, c0, lengths, spec, reverse, backend):
    """A context that is not a linear map of h has no fast path: step by step."""
    if backend not in ("auto", "reference"):
        raise PRUError(
            f"backend={backend!r} runs linear contexts only, and context_transform='pyramidal' with "
            f"pooling={spec.context.pooling!r} is not linear; use backend='auto'"
        )
    gates = gates if bias is None else gates + bias.to(gates.dtype)

    def context(h: Tensor) -> Tensor:
        return transform(h, weights.context, weights.context_kernels, spec.context).to(gates.dtype)

    return reference.scan(gates, context, *or_zeros(gates, h0, c0), lengths, reverse=reverse)


def _is_quicker_as_lstm(x: Tensor, weights: LayerWeights, spec: LayerSpec, backend: str) -> bool:
    if not x.is_cpu or backend != "auto" or not spec.is_linear:
        return False
    return lstm.is_quicker(x, spec.hidden_size, spec.groups, (*weights.input, *weights.context))


def _in_parts(x: Tensor, lengths: Tensor | None, reverse: bool) -> Sequence[Tensor]:
    """x (T, B, N) as parts of consecutive steps, in the order in which they are run.

    On a CPU a long input is computed part by part: the products lose nothing, and the allocator hands the
    same buffers out again, where for the whole input the system would have to map new memory each time.
    Not in a trace, which would keep the number of parts.
    """
    steps, batch, _ = x.shape
    whole = not x.is_cpu or lengths is not None or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if whole or product_dtype(x) in SIXTEEN_BITS or steps * batch <= ROWS_AT_ONCE:
        return (x,)
    parts = x.tensor_split(min(steps, -(-steps * batch // ROWS_AT_ONCE)))
    return parts[::-1] if reverse else parts
