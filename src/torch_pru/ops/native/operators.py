"""A layer in one direction on the compiled kernels, as ``torch_pru::cpu_layer`` and its backward.

They compute in float32. Compilers see one node for all steps. The matrices of the levels are arguments of
their own, not a list: PyTorch maps operators over batches (``vmap``) only without lists of tensors.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops import reference
from torch_pru.ops.layer import recurrent_weights
from torch_pru.ops.native.library import library
from torch_pru.ops.operators import ONCE, Operator, differentiable_gradients
from torch_pru.ops.spec import (
    LayerCall,
    LayerSpec,
    LayerWeights,
    Outputs,
    RecurrenceCall,
    TransformSpec,
    with_layer_axis,
)

MOST_LEVELS = 4
NULL = 0
ARGUMENTS = (
    "Tensor x, Tensor? w0, Tensor? w1, Tensor? w2, Tensor? w3, Tensor context, Tensor? bias, Tensor? h0, "
    "Tensor? c0, Tensor? lengths, SymInt[] windows, bool residual, bool reverse, bool bfloat16"
)
"""Of both operators: the fields of :class:`Arguments`."""
TENSORS, WITH_GRADIENT = 10, 9  # the first fields are tensors, but lengths is one without a gradient


class Arguments(NamedTuple):
    """The arguments of a layer, as both passes read them; see ``source/call.h``.

    Attributes:
        x: (T, B, N); without matrices, the gates (T, B, 4·M).
        w0, w1, w2, w3: the matrix (4·m_k, n_k/g) of each level; None where there are fewer levels.
        context: (4·M, M/g).
        bias: (4·M,) or None.
        h0, c0: (B, M) or None.
        lengths: (B,) of int64, or None.
        windows: one per level; the first is not used.
        bfloat16: whether factors of products may be rounded to bfloat16.
    """

    x: Tensor
    w0: Tensor | None
    w1: Tensor | None
    w2: Tensor | None
    w3: Tensor | None
    context: Tensor
    bias: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    lengths: Tensor | None
    windows: Sequence[int]
    residual: bool
    reverse: bool
    bfloat16: bool = False

    @property
    def matrices(self) -> list[Tensor]:
        """Those of the levels."""
        return [matrix for matrix in (self.w0, self.w1, self.w2, self.w3) if matrix is not None]

    def to_float32(self) -> Arguments:
        """The same values in float32, in which the kernels compute."""
        fields: tuple[Any, ...] = self
        converted = [None if tensor is None else tensor.float() for tensor in fields[:WITH_GRADIENT]]
        return Arguments._make((*converted, *fields[WITH_GRADIENT:]))

    def readable(self) -> Arguments:
        """The same values in the layouts that the kernels read: adjacent features, whole matrices."""
        fields: tuple[Any, ...] = self
        others = fields[1:TENSORS]
        if self.x.stride(-1) == 1 and all(tensor is None or tensor.is_contiguous() for tensor in others):
            return self
        x = _with_adjacent_features(self.x)
        return Arguments._make((x, *map(_contiguous, others), *fields[TENSORS:]))


def padded(matrices: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The matrices of the levels as w0 to w3."""
    found = [*matrices, *[None] * (MOST_LEVELS - len(matrices))]
    return found[0], found[1], found[2], found[3]


def run_forward(arguments: Arguments, save: bool) -> list[Tensor]:
    """The output (T, B, M) and the last states (1, B, M).

    With ``save`` also what the backward pass needs: activations (T, B, 4, M) and cells (T, B, M).
    """
    given = arguments.readable()
    results = _results_like(given, save)
    addresses = [result.data_ptr() for result in results] + ([] if save else [NULL, NULL])
    _run(library().forward, given, addresses, (NULL,) * 10, (NULL,) * MOST_LEVELS)
    return results


def _results_like(given: Arguments, save: bool) -> list[Tensor]:
    x, (steps, batch, _), hidden = given.x, given.x.shape, given.context.shape[0] // 4
    out, states = (steps, batch, hidden), (1, batch, hidden)
    saved = ((steps, batch, 4, hidden), out) if save else ()
    return [x.new_empty(shape) for shape in (out, states, states, *saved)]


def _forward(*arguments):
    *given, save = arguments
    return _five(run_forward(Arguments(*given), save))


def _forward_fake(*arguments):
    *given, save = arguments
    return _five(_results_like(Arguments(*given), save))


def _five(results):
    """All results of the operator: those that are not saved are empty."""
    return (*results, *(results[0].new_empty(0) for _ in range(5 - len(results))))


def _backward(grad_out, grad_hn, grad_cn, *arguments):
    """The gradients of x, w0 to w3, context, bias, h0 and c0; empty where they are not wanted."""
    *given, out, activations, cells, wanted = arguments
    given = Arguments(*given).readable()
    grad_out = None if grad_out is None else _with_adjacent_features(grad_out)
    grad_hn, grad_cn, out = _contiguous(grad_hn), _contiguous(grad_cn), out.contiguous()
    found = _gradients_like(given, wanted)
    grad_x, *of_matrices, grad_context, grad_bias, grad_h0, grad_c0 = (grad.data_ptr() for grad in found)
    if not given.matrices and grad_x == NULL:  # the kernel always needs a place for gradients of gates
        scratch = torch.empty_like(given.x, memory_format=torch.contiguous_format)
        grad_x = scratch.data_ptr()
    strides = (0, 0) if grad_out is None else grad_out.stride()[:2]
    results = (out.data_ptr(), NULL, NULL, activations.data_ptr(), cells.data_ptr())
    given_gradients = (_address(grad_out), *strides, _address(grad_hn), _address(grad_cn))
    gradients = (*given_gradients, grad_x, grad_context, grad_bias, grad_h0, grad_c0)
    _run(library().backward, given, results, gradients, of_matrices)
    return found


def _backward_fake(grad_out, grad_hn, grad_cn, *arguments):
    *given, _, _, _, wanted = arguments
    return _gradients_like(Arguments(*given), wanted)


def _gradients_like(given: Arguments, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    fields: tuple[Any, ...] = given
    tensors = zip(fields[:WITH_GRADIENT], wanted, strict=True)
    shapes = (tensor.shape if want and tensor is not None else (0,) for tensor, want in tensors)
    return tuple(given.x.new_empty(shape) for shape in shapes)


def _run(
    function: Callable[[bytes], None],
    given: Arguments,
    results: Sequence[int],
    gradients: Sequence[int],
    of_matrices: Sequence[int],
) -> None:
    """Pack all arguments into a ``Call`` of ``source/call.h`` and run it."""
    x, context, matrices = given.x, given.context, given.matrices
    steps, batch, features = x.shape
    rows, group_size = context.shape
    levels: list[int] = []
    for matrix, gradient, window in zip(matrices, of_matrices, given.windows, strict=False):
        levels += (matrix.data_ptr(), gradient, matrix.shape[0] // 4, window)
    step, column, _ = x.stride()
    call = layout(len(matrices)).pack(
        torch.get_num_threads(),
        steps,
        batch,
        features,
        rows // 4,
        rows // 4 // group_size,
        features // matrices[0].shape[1] if matrices else 1,
        given.residual,
        given.reverse,
        given.bfloat16,
        x.data_ptr(),
        step,
        column,
        context.data_ptr(),
        _address(given.bias),
        NULL,
        _address(given.h0),
        _address(given.c0),
        _address(given.lengths),
        *results,
        *gradients,
        len(matrices),
        *levels,
    )
    function(call)


@functools.cache
def layout(levels: int) -> struct.Struct:
    """Of a ``Call``."""
    return struct.Struct(f"{35 + 4 * levels}q")


def _address(tensor: Tensor | None) -> int:
    return NULL if tensor is None else tensor.data_ptr()


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _with_adjacent_features(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _Layer(Function):
    @staticmethod
    def forward(ctx: Any, *arguments):
        *given, _ = arguments
        save = True  # autograd calls this only if a gradient is wanted
        results = forward.below_autograd(*given, save)
        out, _, _, *saved = results
        ctx.settings = given[TENSORS:]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given[:TENSORS], out, *saved)
        return results

    @staticmethod
    def backward(ctx: Any, *grads):
        tensors, saved = ctx.saved_tensors[:TENSORS], ctx.saved_tensors[TENSORS:]
        needed, grads = ctx.needs_input_grad[:WITH_GRADIENT], grads[:3]
        if torch.is_grad_enabled():  # create_graph=True
            *inputs, lengths = tensors

            def in_pytorch(*inputs):
                return _in_pytorch(Arguments(*inputs, lengths, *ctx.settings))

            kept = differentiable_gradients(in_pytorch, inputs, needed, grads)
        else:
            x, *matrices, context, bias, h0, c0 = needed
            wanted = [x, *[any(matrices)] * MOST_LEVELS, context, bias, h0, c0]
            found = backward(*grads, *tensors, *ctx.settings, *saved, wanted)
            kept = [grad if need else None for grad, need in zip(found, needed, strict=True)]
        return *kept, *(None,) * (len(ctx.needs_input_grad) - WITH_GRADIENT)


def _in_pytorch(given: Arguments) -> Outputs:
    """What the kernels compute, in plain PyTorch, for gradients that can be differentiated again."""
    x, matrices, context, bias, lengths = given.x, given.matrices, given.context, given.bias, given.lengths
    hidden, width = context.shape[0] // 4, context.shape[1]
    weights = LayerWeights(tuple(matrices), (context,), () if bias is None else (bias,))
    context_spec = TransformSpec(hidden, (hidden,), hidden // width)
    if not matrices:  # x is the input's share of the gates
        weight, bias = recurrent_weights(weights, LayerSpec(context_spec, context_spec))
        gates = x.unflatten(-1, (4, -1))
        call = RecurrenceCall(gates, weight, bias, given.h0, given.c0, lengths, given.reverse)
        return with_layer_axis(reference.recurrence(call))
    features, sizes = x.shape[-1], tuple(matrix.shape[0] // 4 for matrix in matrices)
    groups, windows = features // matrices[0].shape[1], tuple(given.windows[1:])
    spec = LayerSpec(TransformSpec(features, sizes, groups, windows=windows), context_spec, given.residual)
    return reference.layer(LayerCall(x, weights, given.h0, given.c0, lengths, spec, given.reverse))


forward = Operator(
    f"cpu_layer({ARGUMENTS}, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    _Layer.apply,
)
backward = Operator(
    f"cpu_layer_backward(Tensor? grad_out, Tensor? grad_hn, Tensor? grad_cn, {ARGUMENTS}, Tensor out, "
    "Tensor activations, Tensor cells, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    ONCE,
)
