"""A layer in one direction as one ``Function``, for calls that only autograd needs to see.

``ops/layer.py`` computes the same with operators, which compilers and transforms can see. An eager call waits
for the host more than for the GPU: here little but allocations, products and launches is left, and
``host.py`` does these in C++ where it can.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops import torch_private as private
from torch_pru.ops.operators import ONCE, OnceDifferentiable
from torch_pru.ops.spec import SIXTEEN_BITS, LayerCall, LayerSpec, Outputs

from . import host
from .folding import GATES, collect, fold, spread, unfold
from .passes import backward_tail
from .plan import is_step
from .recurrent import (
    Sizes,
    adds_residual,
    launch_backward,
    launch_forward,
    lengths_on,
    weight_gradient,
)
from .step import run_step


class Structure(NamedTuple):
    """What a call does not compute with tensors."""

    spec: LayerSpec
    dtype: torch.dtype
    reverse: bool


class Dtypes(NamedTuple):
    """Of the arguments that get gradients; autograd converts where they are of several."""

    input: torch.dtype
    levels: torch.dtype
    bias: torch.dtype


def is_fused(call: LayerCall, dtype: torch.dtype) -> bool:
    """Whether :func:`run` takes a call that only autograd sees, with products in ``dtype``.

    It takes calls in 16 bits, and single steps without gradients in float32, all without groups of the input.
    """
    if not _is_served(call.spec):
        return False
    return dtype in SIXTEEN_BITS or (dtype == torch.float32 and _is_step(call) and not _wants_gradients(call))


@functools.lru_cache(maxsize=1024)
def _is_served(spec: LayerSpec) -> bool:
    """Whether the input is one linear map without groups, and the context one matrix."""
    return spec.is_grouped_lstm and spec.input.is_linear and spec.input.groups == 1


def _is_step(call: LayerCall) -> bool:
    return is_step(call.spec, call.x.shape[0], call.x.shape[1])


def _wants_gradients(call: LayerCall) -> bool:
    x, weights, h0, c0, *_ = call
    tensors = (x, h0, c0, *weights.input, *weights.context, *weights.biases)
    return torch.is_grad_enabled() and private.any_requires_grad(*tensors)


def run(call: LayerCall, dtype: torch.dtype) -> Outputs:
    """The piece ``layer``, with products in ``dtype``."""
    x, weights, h0, c0, lengths, spec, reverse = call
    with_gradients = _wants_gradients(call)
    if _is_step(call) and not with_gradients:
        return host.step(call, dtype) or run_step(call, dtype)
    how = Structure(spec, dtype, reverse)
    bias, other_bias = (*weights.biases, None, None)[:2]
    lengths = lengths_on(x.device, lengths)
    given: tuple[Any, ...] = (how, lengths, x, h0, c0, weights.context[0], bias, other_bias, *weights.input)
    return _Layer.apply(*given) if with_gradients else _forward(*given, save=False).outputs


class _Results(NamedTuple):
    outputs: Outputs
    operand: Tensor  # (T, B, N), or (T·B, N or more): x as the product read it
    folded: Tensor | None  # (4·M, N or more): the matrices of the input
    activations: Tensor | None
    cells: Tensor | None
    kind: host.Kind | None  # of a call that ``host`` computed


def _forward(
    how: Structure,
    lengths: Tensor | None,
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    context: Tensor,
    bias: Tensor | None,
    other_bias: Tensor | None,
    *levels: Tensor,
    save: bool,
) -> _Results:
    spec, dtype, reverse = how
    biases = bias, other_bias
    given = (x, context, levels, biases, (h0, c0), lengths, reverse, save)
    kind, found = host.forward(spec, dtype, *given)
    if found:
        folded, activations, cells = found[3:] if save else (None, None, None)
        return _Results((found[0], found[1], found[2]), x, folded, activations, cells, kind)
    steps, batch, features = x.shape
    sizes = Sizes(steps, batch, spec.groups, context.shape[1])
    matrices = [level.reshape(1, GATES, -1, level.shape[1]) for level in levels]
    folded = fold(matrices, spec.input.windows, dtype)
    rows = x.reshape(-1, features)
    operand = _padded(rows, folded.shape[1], dtype)
    residual = None
    if spec.residual:
        residual = (rows if rows.dtype == dtype else operand.narrow(1, 0, features)).contiguous()
    if residual is None or adds_residual(x.device, sizes, dtype, backward=False):
        gates = torch.mm(operand, folded.t())
    else:
        gates = spread(residual, GATES).addmm_(operand, folded.t())  # one rounding of the whole sum
        residual = None
    arguments = gates, context, biases, h0, c0, lengths
    state = (1, batch, sizes.width)
    out, hn, cn, activations, cells = launch_forward(*arguments, sizes, reverse, save, state, residual)
    return _Results((out, hn, cn), operand, folded, activations, cells, None)


def _padded(rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Rows (n, N) as (n, columns) in ``dtype``, with zeros in the columns that they do not have."""
    features = rows.shape[1]
    if features == columns:
        return rows if rows.dtype == dtype else rows.to(dtype)
    padded = rows.new_empty(rows.shape[0], columns, dtype=dtype)
    padded[:, :features] = rows
    padded[:, features:] = 0
    return padded


def _backward(
    how: Structure,
    kind: host.Kind | None,
    needed: tuple[bool, ...],
    dtypes: Dtypes,
    grad_out: Tensor | None,
    grad_hn: Tensor | None,
    grad_cn: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    lengths: Tensor | None,
    context: Tensor,
    operand: Tensor,
    folded: Tensor,
    out: Tensor,
    activations: Tensor,
    cells: Tensor,
) -> tuple[Tensor | None, ...]:
    """The gradients of x, h0, c0, context, both biases and the levels; None where they are not needed."""
    spec, dtype, reverse = how
    steps, batch, width = out.shape
    sizes = Sizes(steps, batch, spec.groups, context.shape[1])
    grads = (grad_out, grad_hn, grad_cn)
    if kind is not None:
        saved = out, context, operand, folded, activations, cells
        results = host.backward(kind, saved, grads, (h0, c0), lengths, reverse, needed)
        if results:
            return tuple(results)
    results = [None] * len(needed)
    of_x, of_h0, of_c0, of_context, of_bias, of_other_bias, *of_levels = needed
    given = grads, context, c0, out, activations, cells, lengths, sizes, reverse
    residual = of_x and spec.residual
    inside = residual and adds_residual(out.device, sizes, dtype, backward=True)
    found = launch_backward(*given, residual=inside)
    if of_context or of_bias or of_other_bias:
        of_biases = dtypes.bias if dtypes.bias == dtype else torch.float32
        tail = (found.bias_parts, spec.groups, lengths, reverse, of_bias + of_other_bias, of_biases)
        before, dbias = backward_tail(out, h0, *tail)
        if of_context:
            by_gate = weight_gradient(found.dgates, before, context.dtype)  # (G, 4, D, D)
            results[3] = by_gate.transpose(0, 1).reshape(context.shape)
        if of_bias:
            results[4] = dbias[0].view(-1)
        if of_other_bias:
            results[5] = dbias[-1].view(-1)
    if of_x:
        collected = found.dresidual
        if residual and not inside:
            collected = collect(found.dgates.view(-1, GATES * width), GATES)
        results[0] = _input_gradient(found.dgates, collected, folded, spec.input_size, dtypes.input)
    if of_h0:
        results[1] = found.dh0
    if of_c0:
        results[2] = found.dc0
    if any(of_levels):
        # In 16 bits, as both factors are: half the bytes for a pass that does little but move them.
        rows = found.dgates.view(steps * batch, GATES * width)
        product = torch.mm(rows.t(), operand.reshape(len(rows), -1))
        pyramid = (spec.input_size, spec.input.level_sizes, spec.input.windows)
        matrices = unfold(product, GATES, *pyramid, dtypes.levels)
        results[6:] = [matrix.view(-1, matrix.shape[-1]) for matrix in matrices]
    return tuple(results)


def _input_gradient(
    dgates: Tensor, dresidual: Tensor | None, folded: Tensor, features: int, dtype: torch.dtype
) -> Tensor:
    """(T, B, N) from the gradients of the gates; it is added to that of the residual, in place."""
    steps, batch, width, gates = dgates.shape
    rows = dgates.view(steps * batch, width * gates)
    if folded.shape[1] != features:
        folded = folded.narrow(1, 0, features)
    if dresidual is not None:
        product = dresidual.view(steps * batch, features).addmm_(rows, folded)
    elif dtype == torch.float32:
        product = torch.mm(rows, folded, out_dtype=dtype)  # straight from the sums
    else:
        product = torch.mm(rows, folded)
    return product.to(dtype).view(steps, batch, features)


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, how: Structure, lengths: Tensor | None, *tensors: Any) -> Outputs:
        x, h0, c0, context, bias, _, *levels = tensors
        results = _forward(how, lengths, *tensors, save=True)
        ctx.set_materialize_grads(False)
        ctx.how = (
            how,
            results.kind,
            Dtypes(x.dtype, levels[0].dtype, torch.float32 if bias is None else bias.dtype),
        )
        saved = (results.operand, results.folded, results.outputs[0], results.activations, results.cells)
        ctx.save_for_backward(h0, c0, lengths, context, *saved)
        return results.outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        how, kind, dtypes = ctx.how
        needed = ctx.needs_input_grad[2:]
        if all(grad is None for grad in grads):
            return (None,) * (len(needed) + 2)
        given = (how, kind, needed, dtypes, *grads, *ctx.saved_tensors)
        if torch.is_grad_enabled():  # create_graph=True
            return None, None, *OnceDifferentiable.apply(_backward, ONCE, *given)
        return None, None, *_backward(*given)
