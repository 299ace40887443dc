"""The decoder's product and the cross-entropy as one function, which never holds float32 logits on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torch_pru.ops.products import SIXTEEN_BITS, product_dtype


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of softmax(W·h + b).

    Args:
        hidden: (n, E).
        weight: (V, E).
        bias: (V,).
        targets: (n,), whole numbers from 0 to V - 1; there is no ``ignore_index``.

    Returns:
        (n,), -log p(target), float32 at least.

    Example:
        >>> hidden, weight, bias = torch.randn(6, 8), torch.randn(100, 8), torch.zeros(100)
        >>> linear_cross_entropy(hidden, weight, bias, torch.arange(6)).shape
        torch.Size([6])
    """
    dtype = product_dtype(hidden)
    if hidden.is_cuda and dtype in SIXTEEN_BITS:
        from torch_pru.ops.cuda.launch import unserved  # here: importing the package must stay light

        if unserved(hidden.device.index) is None:
            return _Fused.apply(hidden.to(dtype), weight, bias, targets)
    logits = F.linear(hidden, weight, bias)
    logits = logits.float() if logits.dtype in SIXTEEN_BITS else logits
    return F.cross_entropy(logits, targets, reduction="none")


class _Fused(torch.autograd.Function):
    """16-bit logits; the forward pass leaves their gradient, up to a factor a row, in their place.

    With P = softmax - one-hot (n, V) and s (n,) the gradient of the losses: dh = s·(P·W),
    dW = Pᵀ·(s·h), db = Pᵀ·s. So P is never scaled, and is read by products only.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        from torch_pru.ops.cuda.decoder import cross_entropy, decoder_operand

        operand, shift = decoder_operand(weight.float(), bias.float(), hidden.dtype)
        logits = torch.addmm(shift, hidden, operand.t())
        needs_gradient = any(ctx.needs_input_grad)
        losses = cross_entropy(logits, targets, needs_gradient)
        if needs_gradient:
            ctx.save_for_backward(hidden, operand, logits)
            ctx.words = len(weight)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from torch_pru.ops.cuda.decoder import decoder_rows

        (scale,) = grads
        hidden, operand, gradient = ctx.saved_tensors
        grad_hidden = gradient @ operand
        # The bias's gradient is that of the weight of a feature that is always 1: eight more columns of one
        # product (8 for its alignment) instead of another pass over the logits.
        features = decoder_rows(hidden, scale, grad_hidden)
        product = torch.mm(gradient.t(), features, out_dtype=torch.float32)[: ctx.words]
        return grad_hidden, product[:, : hidden.shape[1]], product[:, -1], None  # views: no copy is made here
