"""The decoder with its cross-entropy as an operator on a CPU: ``torch_pru::cpu_cross_entropy``.

Logits are never kept. The forward pass saves their exponentials, which the products of the backward pass
read as they are; see ``source/decoder.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.native.library import library
from torch_pru.ops.operators import Operator
from torch_pru.ops.spec import product_dtype
from torch_pru.ops.torch_private import assume_constant_result

FEW_ROWS = 32
"""Below that number of rows, to bring the weights into the kernels' layout takes longer than the products."""
PANEL = 64
"""Words are padded to a multiple of this."""
WORK_OF_A_THREAD = 1 << 20
"""Multiplications that are worth another thread."""
ONCE = "the fused cross-entropy is not possible; set TORCH_PRU_NATIVE=0 in the environment"
"""Why there is no double backward."""


def unsupported_reason(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> str | None:
    """Why a call of ``cross_entropy`` needs another backend; None if this one can run it."""
    if not product_dtype(hidden) == weight.dtype == bias.dtype == hidden.dtype == torch.float32:
        return f"logits of {product_dtype(hidden)}: the kernel computes in float32"
    if len(hidden) < FEW_ROWS:
        return f"there are fewer than {FEW_ROWS} rows"
    return None


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """As :func:`torch_pru.ops.reference.cross_entropy`."""
    save = False  # the operator itself finds out whether a gradient is wanted
    parts = _parts(len(hidden), *weight.shape)
    return _forward_operator(hidden, weight, bias, targets, parts, save)[0]


def _parts(rows: int, words: int, features: int) -> int:
    """How many threads share the words."""
    work = rows * words * features // WORK_OF_A_THREAD
    return max(1, min(_threads(), work, -(-words // PANEL)))


@assume_constant_result
def _threads() -> int:
    return torch.get_num_threads()


def _forward(hidden, weight, bias, targets, parts, save):
    """The losses (n,); for the backward pass factors (parts, n) and exponentials, empty unless ``save``."""
    hidden, weight, bias, targets = (tensor.contiguous() for tensor in (hidden, weight, bias, targets))
    references, totals, chosen = (hidden.new_empty(size) for size in _sizes(hidden, parts))
    exponentials = _exponentials_like(hidden, weight, save)
    results = (references, totals, chosen, exponentials if save else None)
    given = (hidden, weight, bias, targets)
    tensors = (*given, *results, None, None, None, None, None)
    row = _run(library().decoder_forward, parts, tensors, hidden, weight)
    if row >= 0:
        raise IndexError(f"target {targets[row].item()} is out of bounds: there are {len(weight)} words")
    highest = references.amax(dim=0)
    shares = (references - highest).exp_()
    total = (totals * shares).sum(dim=0)
    factors = shares / total if save else shares.new_empty(0)
    return total.log() + (highest - chosen), factors, exponentials


def _forward_fake(hidden, weight, bias, targets, parts, save):
    rows = len(hidden)
    factors = hidden.new_empty((parts, rows) if save else (0,))
    return hidden.new_empty(rows), factors, _exponentials_like(hidden, weight, save)


def _sizes(hidden: Tensor, parts: int) -> tuple[tuple[int, ...], ...]:
    rows = len(hidden)
    return (parts, rows), (parts, rows), (rows,)


def _exponentials_like(hidden: Tensor, weight: Tensor, save: bool) -> Tensor:
    padded = -(-weight.shape[0] // PANEL) * PANEL
    return hidden.new_empty(hidden.shape[0] * padded if save else 0)


def _backward(grads, hidden, weight, targets, factors, exponentials, wanted):
    """The gradients of hidden, weight and bias; empty where they are not wanted."""
    hidden, weight, targets = (tensor.contiguous() for tensor in (hidden, weight, targets))
    grads = grads.contiguous()
    scaled = factors * grads
    found = _backward_fake(grads, hidden, weight, targets, factors, exponentials, wanted)
    to = (grad if want else None for grad, want in zip(found, wanted, strict=True))
    saved = (hidden, weight, None, targets, None, None, None, exponentials)
    _run(library().decoder_backward, len(factors), (*saved, scaled, grads, *to), hidden, weight)
    return found


def _backward_fake(grads, hidden, weight, targets, factors, exponentials, wanted):
    shapes = (hidden.shape, weight.shape, weight.shape[:1])
    sizes = (shape if want else (0,) for shape, want in zip(shapes, wanted, strict=True))
    return tuple(hidden.new_empty(size) for size in sizes)


_pack = struct.Struct("18q").pack


def _run(
    function: Callable[[bytes], Any],
    parts: int,
    tensors: Sequence[Tensor | None],
    hidden: Tensor,
    weight: Tensor,
) -> Any:
    """Pack all arguments into a ``DecoderCall`` of ``source/call.h``, run it, and return what it returns."""
    addresses = (0 if tensor is None else tensor.data_ptr() for tensor in tensors)
    return function(_pack(torch.get_num_threads(), parts, *hidden.shape, len(weight), *addresses))


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, parts, _save):
        results = _forward_operator.below_autograd(hidden, weight, bias, targets, parts, True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, targets, *results[1:])
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx, grads, *_):
        wanted = list(ctx.needs_input_grad[:3])
        found = _backward_operator(grads, *ctx.saved_tensors, wanted)
        kept = (grad if want else None for grad, want in zip(found, wanted, strict=True))
        return *kept, None, None, None


_forward_operator = Operator(
    "cpu_cross_entropy(Tensor hidden, Tensor weight, Tensor bias, Tensor targets, SymInt parts, bool save) "
    "-> (Tensor, Tensor, Tensor)",
    _forward,
    _forward_fake,
    _CrossEntropy.apply,
)
_backward_operator = Operator(
    "cpu_cross_entropy_backward(Tensor grads, Tensor hidden, Tensor weight, Tensor targets, Tensor factors, "
    "Tensor exponentials, bool[] wanted) -> (Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    ONCE,
)
