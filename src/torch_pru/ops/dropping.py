"""Dropout and weight drop: masks of zeros and ones, and the operator that applies one.

The operator is its own backward: the gradient of ``values · mask / keep`` is ``gradient · mask / keep``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops import backends
from torch_pru.ops.operators import Operator


def draw_mask(
    shape: Sequence[int], keep: float, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """A mask of uint8: each element is 1 with probability ``keep``, else 0."""
    unwritten = torch.empty(shape, dtype=torch.uint8, device=device)
    return torch.bernoulli(unwritten, keep, generator=generator)  # not in place: ``vmap`` may want several


def _forward(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, backend: str) -> Tensor:
    return backends.module(backend).drop_kernel(values, mask, keep, dtype)


def _forward_fake(values, mask, keep, dtype, backend):
    return values.new_empty(values.shape, dtype=dtype)


class _Drop(Function):
    @staticmethod
    def forward(ctx, values, mask, keep, dtype, backend):
        ctx.keep, ctx.dtype, ctx.backend = keep, values.dtype, backend
        ctx.save_for_backward(mask)
        return operator.below_autograd(values, mask, keep, dtype, backend)

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return operator(gradient, mask, ctx.keep, ctx.dtype, ctx.backend), None, None, None, None


operator = Operator(
    "drop(Tensor values, Tensor mask, float keep, ScalarType dtype, str backend) -> Tensor",
    _forward,
    _forward_fake,
    _Drop.apply,
)
"""``drop`` of :mod:`torch_pru.ops.reference`, computed by ``drop_kernel`` of a backend."""
