"""The decoder's product with its cross-entropy, and the gradient of an embedding lookup."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.folding import aligned
from torch_pru.ops.operators import OnceDifferentiable
from torch_pru.ops.spec import SIXTEEN_BITS, product_dtype

from .launch import device_of, launch_on, pass_over, unserved
from .plan import Launch, ceil_div, round_up

THREADS = 512
LOOKUP_THREADS = 256


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """As :func:`torch_pru.ops.reference.cross_entropy`, but never holds float32 logits."""
    return _CrossEntropy.apply(hidden.to(product_dtype(hidden)), weight, bias, targets)


def cross_entropy_reason(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> str | None:
    if product_dtype(hidden) not in SIXTEEN_BITS:
        return f"logits of {product_dtype(hidden)}: the kernel takes 16 bits"
    return unserved(hidden.device.index)


class _CrossEntropy(Function):
    """16-bit logits; the forward pass leaves their gradient, up to a factor per row, in their place.

    With P = softmax - one-hot (n, V) and s (n,) the gradient of the losses: dh = s·(P·W),
    dW = Pᵀ·(s·h), db = Pᵀ·s. So P is never scaled, and only products read it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        operand, shift = decoder_operand(weight.float(), bias.float(), hidden.dtype)
        logits = torch.addmm(shift, hidden, operand.t())
        needs_gradient = any(ctx.needs_input_grad)
        losses = softmax_losses(logits, targets, needs_gradient)
        if needs_gradient:
            ctx.save_for_backward(hidden, operand, logits)
            ctx.words = len(weight)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        reason = "the fused cross-entropy is not possible; use float32"
        arguments = (*grads, *ctx.saved_tensors, ctx.words)
        return *OnceDifferentiable.apply(_cross_entropy_backward, reason, *arguments), None


def _cross_entropy_backward(
    scale: Tensor, hidden: Tensor, operand: Tensor, gradient: Tensor, words: int
) -> tuple[Tensor, Tensor, Tensor]:
    grad_hidden = gradient @ operand
    # The bias's gradient is that of the weight of a feature that is always 1: eight more columns of one
    # product (8 for its alignment) instead of another pass over the logits.
    features = decoder_rows(hidden, scale, grad_hidden)
    product = torch.mm(gradient.t(), features, out_dtype=torch.float32)[:words]
    return grad_hidden, product[:, : hidden.shape[1]], product[:, -1]  # views, no copies


def softmax_losses(logits: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    """-log softmax of each row of ``logits`` at its target.

    Args:
        logits: (rows, padded), 16 bits, contiguous; padded is a multiple of 8, and places past the
            vocabulary hold -infinity. With ``gradient`` they become the losses' gradient.
        targets: (rows,) int64, from 0 to below the vocabulary's size; there is no ``ignore_index``.

    Returns:
        (rows,) float32.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    row_bytes = 2 * logits.shape[1]
    threads = 256 if row_bytes <= 32 * 1024 else THREADS
    room = device_of(logits.device.index).shared_bytes
    # As many blocks as a multiprocessor holds at once, so that none of them has to wait for another's end:
    # each keeps a row in shared memory, and 1 KB for its partial sums and for the system.
    at_once = min(1536 // threads, room // (row_bytes + 1024))
    constants = (
        ("BF16", int(logits.dtype == torch.bfloat16)),
        ("GRADIENT", int(gradient)),
        ("KEPT", int(at_once > 0)),
        ("BLOCKS", at_once or 2),
        ("THREADS", threads),
    )
    blocks = (at_once or 2) * device_of(logits.device.index).multiprocessors
    shared = row_bytes if at_once else 0
    launch = Launch("cross_entropy", constants, (blocks, 1), threads, shared_bytes=shared)
    launch_on(launch, logits.device, (logits, targets.contiguous(), losses), logits.shape)
    return losses


def decoder_operand(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The decoder's weight (V, E) and bias (V,), both float32, in 16 bits for ``padded`` words.

    padded is V up to a multiple of 8; the words past V have the weight 0 and the bias -infinity.

    Returns:
        (padded, E) and (padded,).
    """
    words, width = weight.shape
    padded = aligned(words)
    operand = torch.empty(padded, width, device=weight.device, dtype=dtype)
    shift = torch.empty(padded, device=weight.device, dtype=dtype)
    launch = pass_over("decoder_operand", _kind(dtype), weight.device)
    tensors = (weight.contiguous(), bias.contiguous(), operand, shift)
    launch_on(launch, weight.device, tensors, (words, padded, width))
    return operand, shift


def decoder_rows(hidden: Tensor, scale: Tensor, gradient: Tensor) -> Tensor:
    """Multiply ``gradient`` (n, E) by ``scale`` (n,) in place; returns the features of the weight's gradient.

    Args:
        hidden: (n, E), 16 bits, as ``gradient``.
        scale: float32, s.

    Returns:
        (n, padded + 8): s·h, zeros up to padded, the next multiple of 8, and s eight times.
    """
    rows, width = hidden.shape
    packs = ceil_div(width, 8) + 1
    features = torch.empty(rows, 8 * packs, device=hidden.device, dtype=hidden.dtype)
    launch = pass_over("decoder_rows", _kind(hidden.dtype), hidden.device)
    tensors = (hidden.contiguous(), scale.contiguous(), gradient, features)
    launch_on(launch, hidden.device, tensors, (rows, width, packs))
    return features


def add_rows(table: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """As :func:`torch_pru.ops.reference.add_rows`, in float32; ``table`` may have gaps between its rows."""
    tokens, rows, stride = tokens.contiguous(), rows.contiguous(), table.stride(0)
    packed = table.shape[1] % 4 == 0 and stride % 4 == 0
    packed = packed and table.data_ptr() % 16 == 0 and rows.data_ptr() % 16 == 0
    constants = (("BF16", 0), ("VECTOR", int(packed)), ("THREADS", LOOKUP_THREADS))
    # A block for each position. Their number is part of a kernel's configuration: a few sizes serve all.
    launch = Launch("add_rows", constants, (round_up(len(tokens), 1024), 1), LOOKUP_THREADS)
    launch_on(launch, table.device, (table, rows, tokens), (len(tokens), table.shape[1], stride))


def add_rows_reason(table: Tensor, tokens: Tensor, rows: Tensor) -> str | None:
    if not table.dtype == rows.dtype == torch.float32:
        return f"rows of {rows.dtype} and a table of {table.dtype}: the kernel takes float32"
    if table.stride(1) != 1:
        return "the elements of a row of the table are not adjacent"
    return unserved(table.device.index)


def _kind(dtype: torch.dtype) -> tuple[tuple[str, int], ...]:
    return (("BF16", int(dtype == torch.bfloat16)),)
