"""Masks of zeros and ones, and values under a mask: dropout and weight drop, as one operator.

The operator is its own backward: the gradient of ``values · mask / keep`` is ``gradient · mask / keep``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

from torch_pru.ops.operators import Operator, is_differentiated


def draw_mask(
    shape: Sequence[int], keep: float, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """A mask of uint8: each element is 1 with probability ``keep``, else 0."""
    unwritten = torch.empty(shape, dtype=torch.uint8, device=device)
    return torch.bernoulli(unwritten, keep, generator=generator)  # not in place: ``vmap`` may want several


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype) -> Tensor:
    """``values · mask / keep`` in ``dtype``, contiguous; computed in the wider dtype and rounded once.

    Args:
        values: at least one dimension, any strides.
        mask: uint8 zeros and ones; of the shape of values, or with 1 for the first dimension: then one
            mask for all of it.
        keep: the share of ones that the mask was drawn with.
        dtype: of the result; the gradient of values has theirs.

    Example:
        >>> drop(torch.tensor([1.0, 2.0]), torch.tensor([0, 1], dtype=torch.uint8), 0.5, torch.float32)
        tensor([0., 4.])
    """
    return (_plain if is_differentiated() else _drop)(values, mask, keep, dtype)


def _plain(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(values.dtype, dtype)
    return (values.to(wide) * mask.to(wide).div_(keep)).to(dtype).contiguous()


def _forward(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype) -> Tensor:
    if values.is_cuda:
        from torch_pru.ops.cuda import passes  # here, because importing the package must stay light

        if passes.covers(values, dtype):
            return passes.drop(values, mask, keep, dtype)
    return _plain(values, mask, keep, dtype)


def _forward_fake(values, mask, keep, dtype):
    return values.new_empty(values.shape, dtype=dtype)


class _Drop(Function):
    @staticmethod
    def forward(ctx, values, mask, keep, dtype):
        ctx.keep, ctx.dtype = keep, values.dtype
        ctx.save_for_backward(mask)
        return _drop.below_autograd(values, mask, keep, dtype)

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return _drop(gradient, mask, ctx.keep, ctx.dtype), None, None, None


_drop = Operator("drop", _forward, _forward_fake, _Drop.apply)
