"""The contribution of a layer's input to its gates: a pyramidal transform of it, once for every gate.

:func:`transform` multiplies level by level. In 16 bits on a GPU it calls the operator
``torch_pru::input_gates`` where it can: that *folds* the levels into one matrix W' and multiplies once; its
backward pass multiplies twice and applies the transpose of the fold. In W' and in the result the four gates
of a unit are adjacent, as the fused recurrence reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from torch_pru.ops import folding
from torch_pru.ops import torch_private as private
from torch_pru.ops.backends import module
from torch_pru.ops.folding import aligned, level_matrices
from torch_pru.ops.operators import Operator
from torch_pru.ops.spec import SIXTEEN_BITS, TransformSpec, product_dtype
from torch_pru.pooling import pyramid

FEW_ROWS = 64


def transform(
    x: Tensor,
    matrices: Sequence[Tensor],
    kernels: Sequence[Tensor],
    *,
    spec: TransformSpec,
    gates: int = 4,
    residual: bool = False,
    backend: str = "loop",
    eager: bool,
) -> Tensor:
    """A transform of x (…, N), without a bias: (…, gates, M). With ``residual`` x is added to every gate.

    In 16 bits on a GPU the result is a view of storage (…, M, gates).
    """
    unit_major = is_unit_major(x)
    if unit_major and spec.is_linear and (spec.levels > 1 or spec.groups == 1):
        # On a GPU one large product is faster than several, the pooling and the concatenation.
        # Of grouped levels, too, at the paper's widths; at 4096 features the zeros cost a tenth.
        dense = [matrix.unsqueeze(0) for matrix in level_matrices(matrices, spec)]
        dtype = product_dtype(x)
        return input_gates(x, dense, spec.windows, dtype, residual, backend=backend, eager=eager)
    views = pyramid(x, spec.pooling, spec.windows, kernels)
    levels = zip(views, spec.matrices_by_level(tuple(matrices)), strict=True)
    parts = [_level(view, blocks, spec.groups, gates, backend, eager) for view, blocks in levels]
    y = _concatenate_units(parts, unit_major)
    return _add_input(y, x, eager) if residual else y


def _level(
    x: Tensor, blocks: tuple[Tensor, ...], groups: int, gates: int, backend: str, eager: bool
) -> Tensor:
    """One level of a transform: (…, n) to (…, gates, m)."""
    if len(blocks) == groups:
        inputs = x.tensor_split(groups, dim=-1) if groups > 1 else (x,)
        pairs = zip(inputs, blocks, strict=True)
        parts = [
            gate_linear(part, block.view(1, gates, -1, block.shape[1]), backend=backend, eager=eager)
            for part, block in pairs
        ]
        return _concatenate_units(parts, is_unit_major(x))
    [weight] = blocks
    rows, features = weight.shape
    units = rows // (gates * groups)
    by_group = x.reshape(-1, groups, features).transpose(0, 1)  # (g, rows, n/g)
    weight = weight.view(gates, groups, units, features).transpose(0, 1)
    y = by_group @ weight.reshape(groups, gates * units, features).transpose(1, 2)
    y = y.view(groups, by_group.shape[1], gates, units).permute(1, 2, 0, 3)
    return y.reshape(*x.shape[:-1], gates, groups * units)


def gate_linear(
    x: Tensor, weight: Tensor, residual: bool = False, *, backend: str = "loop", eager: bool
) -> Tensor:
    """One linear map per gate: (…, N) by (1, gates, M, N) to (…, gates, M), laid out as by ``transform``."""
    if is_unit_major(x):
        return input_gates(x, [weight], (), product_dtype(x), residual, backend=backend, eager=eager)
    _, gates, units, features = weight.shape
    y = _linear(x, weight[0].reshape(gates * units, features), eager).unflatten(-1, (gates, units))
    return _add_input(y, x, eager) if residual else y


def _add_input(gates: Tensor, x: Tensor, eager: bool) -> Tensor:
    """gates (…, gates, M) plus x (…, M) for each gate, in the dtype of gates: autocast may have chosen it."""
    if not eager:  # ``torch.func.linearize`` does not support writing in place
        return (gates + x.unsqueeze(-2)).to(gates.dtype)
    gates += x.unsqueeze(-2)
    return gates


def _concatenate_units(parts: Sequence[Tensor], unit_major: bool) -> Tensor:
    """(…, gates, m) each to (…, gates, M), in the layout of the parts."""
    if len(parts) == 1:
        return parts[0]
    if unit_major:
        return torch.cat([part.transpose(-1, -2) for part in parts], dim=-2).transpose(-1, -2)
    return torch.cat(list(parts), dim=-1)


def is_unit_major(x: Tensor) -> bool:
    """Whether the gates of a unit are adjacent in products of x: the layout for 16 bits on a GPU."""
    return x.is_cuda and product_dtype(x) in SIXTEEN_BITS


def _linear(x: Tensor, weight: Tensor, eager: bool) -> Tensor:
    """As ``F.linear``, with the faster library for few rows.

    A generated token is one row. On a CPU PyTorch computes float32 products with MKL, which takes two to
    four times as long as oneDNN for a few rows. oneDNN's product cannot be differentiated.
    """
    if eager and _onednn_is_better(x, weight):
        return private.onednn_linear(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def _onednn_is_better(x: Tensor, weight: Tensor) -> bool:
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return (
        x.is_cpu
        and 0 < x.shape[:-1].numel() <= FEW_ROWS
        and product_dtype(x) == x.dtype == weight.dtype == torch.float32
        and not needs_gradient
        and private.onednn_is_enabled()
        and private.onednn_linear is not None
    )


def input_gates(
    x: Tensor,
    weights: Sequence[Tensor],
    windows: Sequence[int],
    dtype: torch.dtype,
    residual: bool = False,
    *,
    backend: str = "loop",
    eager: bool | None = None,
) -> Tensor:
    """The product of x and a pyramid without groups, average pooled; with one level, a linear transform.

    Args:
        x: (…, N).
        weights: (1, gates, m_k, N/2^k), one for each level k.
        windows: the pooling window of each level below the first; 1 skips every second feature.
        dtype: of the product.
        residual: add x to every gate; then M = N.
        backend: its ``folding`` is used, if it has one, in the place of :mod:`torch_pru.ops.folding`.

    Returns:
        (…, gates, M) in ``dtype``, a view of (…, M, gates).

    Example:
        >>> levels = [torch.randn(1, 4, 6, 8), torch.randn(1, 4, 2, 4)]
        >>> input_gates(torch.randn(5, 3, 8), levels, (3,), torch.bfloat16).shape
        torch.Size([5, 3, 4, 8])
    """
    wanted = False  # the differentiable operator finds out what is needed for gradients
    arguments = (x, list(weights), [1, *windows], dtype, residual, wanted, wanted, backend)
    return forward(*arguments, eager=eager)[0]


def _passes(backend: str) -> ModuleType:
    """The module with ``fold``, ``unfold``, ``spread`` and ``collect``: the backend's, or plain PyTorch."""
    return getattr(module(backend), "folding", folding)


def _forward(x, weights, windows, dtype, residual, for_input, for_weights, backend):
    """The gates; ``for_input`` also W', ``for_weights`` also x in ``dtype``, unless they are arguments.

    ``windows`` has one for each level; the first level's is 1.
    """
    (gates, units), features = _sizes(weights), x.shape[-1]
    keep = _kept(x, weights, dtype)
    passes = _passes(backend)
    folded = passes.fold(weights, tuple(windows[1:]), dtype) if keep.folded else folded_already(weights[0])
    operand = _operand(x, dtype, keep.columns)
    if residual:
        every_gate = passes.spread(_first_columns(operand, features), gates)
        result = every_gate.addmm_(operand, folded.t())  # one rounding of the whole sum
    else:
        result = torch.mm(operand, folded.t())
    results = [result.view(*x.shape[:-1], units, gates).transpose(-1, -2)]
    if keep.folded and for_input:
        results.append(folded)
    if keep.operand and for_weights:
        results.append(operand)
    return results


def _forward_fake(x, weights, windows, dtype, residual, for_input, for_weights, backend):
    gates, units = _sizes(weights)
    keep, rows = _kept(x, weights, dtype), x.shape[:-1].numel()
    results = [x.new_empty(*x.shape[:-1], units, gates, dtype=dtype).transpose(-1, -2)]
    if keep.folded and for_input:
        results.append(x.new_empty(units * gates, keep.columns, dtype=dtype))
    if keep.operand and for_weights:
        results.append(x.new_empty(rows, keep.columns, dtype=dtype))
    return results


def _sizes(weights: Sequence[Tensor]) -> tuple[int, int]:
    """Gates, and M."""
    return weights[0].shape[1], sum(weight.shape[2] for weight in weights)


class _Kept(NamedTuple):
    """What the forward pass makes and the backward pass needs again."""

    columns: int  # of W' and of the operand
    folded: bool  # whether W' is made, not a view of the weight
    operand: bool  # whether the operand is made, not x itself


def _kept(x: Tensor, weights: Sequence[Tensor], dtype: torch.dtype) -> _Kept:
    first, features = weights[0], x.shape[-1]
    folded = len(weights) > 1 or first.dtype != dtype or not first.transpose(1, 2).is_contiguous()
    columns = aligned(features) if folded else features
    return _Kept(columns, folded, operand=x.dtype != dtype or columns != features)


def folded_already(weight: Tensor) -> Tensor:
    """W' as a view of the weight (1, gates, M, N) of the one level there is; its gates lie side by side."""
    return weight[0].transpose(0, 1).flatten(0, 1)


def _operand(x: Tensor, dtype: torch.dtype, columns: int) -> Tensor:
    """x (…, N) as rows (n, columns) in ``dtype``, with zeros in columns it has not."""
    features = x.shape[-1]
    rows = x.reshape(-1, features)
    if features == columns:
        return rows if rows.dtype == dtype else rows.to(dtype)
    operand = rows.new_empty(rows.shape[0], columns, dtype=dtype)
    operand[:, :features] = rows
    operand[:, features:] = 0
    return operand


def _backward(grad, folded, operand, features, units, windows, residual, input_dtype, weight_dtype, backend):
    """The gradients of the input (…, N) and of every level's weight.

    Args:
        grad: (…, gates, M), any strides.
        folded: W' (M·gates, N or more); without it there is no gradient of the input.
        operand: x (n, as many columns); without it there are none of weights.
        units: m_k of each level.
        windows: one for each level; the first level's is 1.
    """
    gates, rows = grad.shape[-2], grad.transpose(-1, -2).reshape(-1, sum(units) * grad.shape[-2])
    passes = _passes(backend)
    grads = []
    if folded is not None:
        if residual:
            total = passes.collect(rows, gates).addmm_(rows, _first_columns(folded, features)).to(input_dtype)
        else:
            total = _first_columns(_product(rows, folded, input_dtype), features)
        grads.append(total.view(*grad.shape[:-2], features))
    if operand is not None:
        # In 16 bits, as both factors are: half the bytes for a pass that does little but move them.
        grad_folded = torch.mm(rows.t(), operand)
        grads += passes.unfold(grad_folded, gates, features, units, tuple(windows[1:]), weight_dtype)
    return grads


def _first_columns(matrix: Tensor, columns: int) -> Tensor:
    """Without the columns that only align it."""
    return matrix if matrix.shape[1] == columns else matrix.narrow(1, 0, columns)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a·b in ``dtype``, straight from the sums where the device can."""
    if dtype == torch.float32 and a.is_cuda:
        return torch.mm(a, b, out_dtype=dtype)
    return torch.mm(a, b).to(dtype)


def _backward_fake(
    grad, folded, operand, features, units, windows, residual, input_dtype, weight_dtype, backend
):
    grads = []
    if folded is not None:
        columns = features if residual else folded.shape[1]
        grads.append(grad.new_empty(*grad.shape[:-2], columns, dtype=input_dtype)[..., :features])
    if operand is not None:
        shapes = [(1, grad.shape[-2], size, features // 2**level) for level, size in enumerate(units)]
        grads += [grad.new_empty(shape, dtype=weight_dtype) for shape in shapes]
    return grads


class _InputGates(Function):
    @staticmethod
    def forward(ctx, x, windows, dtype, residual, _for_input, _for_weights, backend, *weights):
        for_input, for_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[-len(weights) :])
        wanted = for_input, for_weights
        results = forward.below_autograd(x, weights, windows, dtype, residual, *wanted, backend)
        _, *made = results
        ctx.keep, ctx.dtype = _kept(x, weights, dtype), dtype
        units = [weight.shape[2] for weight in weights]
        ctx.arguments = x.shape[-1], units, windows, residual, x.dtype, weights[0].dtype, backend
        ctx.set_materialize_grads(False)  # the other results have none
        ctx.save_for_backward(
            (made.pop(0) if ctx.keep.folded else weights[0]) if for_input else None,
            (made.pop() if ctx.keep.operand else x) if for_weights else None,
        )
        return tuple(results)

    @staticmethod
    def backward(ctx, grad, *_):
        folded, operand = ctx.saved_tensors
        levels, for_input, for_weights = len(ctx.arguments[1]), folded is not None, operand is not None
        if grad is None:
            return None, *[None] * 6, *[None] * levels
        if for_input and not ctx.keep.folded:
            folded = folded_already(folded)
        if for_weights:
            operand = _operand(operand, ctx.dtype, ctx.keep.columns)
        grads = backward(grad, folded, operand, *ctx.arguments)
        grad_input, grad_weights = (grads[0], grads[1:]) if for_input else (None, grads)
        return grad_input, *[None] * 6, *(grad_weights if for_weights else [None] * levels)


def _with_gradient(x, weights, *others):
    return _InputGates.apply(x, *others, *weights)


forward = Operator(
    "input_gates(Tensor x, Tensor[] weights, SymInt[] windows, ScalarType dtype, bool residual, "
    "bool for_input, bool for_weights, str backend) -> Tensor[]",
    _forward,
    _forward_fake,
    _with_gradient,
)
backward = Operator(
    "input_gates_backward(Tensor grad, Tensor? folded, Tensor? operand, SymInt features, SymInt[] units, "
    "SymInt[] windows, bool residual, ScalarType input_dtype, ScalarType weight_dtype, str backend) "
    "-> Tensor[]",
    _backward,
    _backward_fake,
    "the input product is not possible in 16 bits on a GPU; use float32",
)
