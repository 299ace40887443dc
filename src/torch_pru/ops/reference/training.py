"""The pieces of a training step and of dynamic evaluation, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.ops import torch_private as private
from torch_pru.ops.spec import SIXTEEN_BITS


def full_precision(values: Tensor) -> Tensor:
    """16-bit values as float32; losses and penalties are never summed in 16 bits."""
    return values.float() if values.dtype in SIXTEEN_BITS else values


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool = False) -> Tensor:
    """``values · mask / keep`` in ``dtype``, contiguous; computed in the wider dtype and rounded once.

    Args:
        values: at least one dimension, any strides.
        mask: uint8, zeros and ones; in the shape of values, or with 1 for the first dimension.
        keep: the probability of a one that the mask was drawn with.
        dtype: of the result; the gradient of values has theirs.

    Example:
        >>> drop(torch.tensor([1.0, 2.0]), torch.tensor([0, 1], dtype=torch.uint8), 0.5, torch.float32)
        tensor([0., 4.])
    """
    wide = torch.promote_types(values.dtype, dtype)
    return (values.to(wide) * mask.to(wide).div_(keep)).to(dtype).contiguous()


def add_rows(table: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Add each of ``rows`` to the row of ``table`` that its token names, in place and in a fixed order.

    Args:
        table: (V, E).
        tokens: (n,), integers below V; one may occur many times.
        rows: (n, E).

    Example:
        >>> table = torch.zeros(3, 2)
        >>> add_rows(table, torch.tensor([2, 0, 2]), torch.ones(3, 2))
        >>> table
        tensor([[1., 1.],
                [0., 0.],
                [2., 2.]])
    """
    if table.is_cuda:  # the order of additions is fixed in index_put_ on a GPU, in index_add_ on a CPU
        table.index_put_((tokens,), rows, accumulate=True)
    else:
        table.index_add_(0, tokens, rows)


def cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy of softmax(W·h + b), float32 at least, without reduction.

    Args:
        hidden: (n, E).
        weight: (V, E).
        bias: (V,).
        targets: (n,), integers from 0 to V - 1; there is no ``ignore_index``.

    Returns:
        (n,), -log p(target).

    Example:
        >>> hidden, weight, bias = torch.randn(6, 8), torch.randn(100, 8), torch.zeros(100)
        >>> cross_entropy(hidden, weight, bias, torch.arange(6)).shape
        torch.Size([6])
    """
    return F.cross_entropy(full_precision(F.linear(hidden, weight, bias)), targets, reduction="none")


def penalties(dropped: Tensor | None, raw: Tensor | None, activation: float, temporal: float) -> Tensor:
    """activation · mean(dropped²) + temporal · mean((raw[1:] - raw[:-1])²), float32 at least.

    Args:
        dropped, raw: (T, B, E), T at least 2. None leaves a term out, but not both.

    Returns:
        0-d.
    """
    terms = []
    if dropped is not None:
        terms.append(activation * full_precision(dropped).pow(2).mean())
    if raw is not None:
        raw = full_precision(raw)
        terms.append(temporal * (raw[1:] - raw[:-1]).pow(2).mean())
    return sum(terms[1:], terms[0])


def sgd_update(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor] | None,
    *,
    rate: Tensor,
    share: Tensor,
    factor: Tensor | None,
    watch: tuple[Tensor, Tensor, Tensor] | None,
    clip: float,
    decay: float,
) -> Tensor:
    """One step of clipped, averaged SGD on all weights, in place.

    g <- g min(1, clip / |g|);  g <- g + decay w;  w <- w - rate g;  a <- a + (w - a) share

    Args:
        weights, averages: of one dtype and device; ``averages`` is None before averaging starts.
        gradients: any strides; two of them may be one tensor.
        rate: 0-d, the learning rate.
        share: 0-d, the weight of the new weights in the averages.
        factor: 0-d, what the gradients were multiplied by. If they overflowed, the step is taken with a
            gradient of zero, and overflow is not flagged as a bad step.
        watch: loss (0-d), number of steps and first bad step (0-d, int64); the last two are updated: a step
            is bad when its loss or the norm of its gradient is not finite, and -1 stands for none.
        clip: largest norm of the gradient over all weights.
        decay: coupled weight decay (L2).

    Returns:
        0-d, the norm of ``gradients`` as they are.
    """
    norm = length = torch.linalg.vector_norm(torch.stack(private.foreach_norm(gradients)))
    if factor is not None:
        overflow = ~torch.isfinite(norm)
        length = norm.masked_fill(overflow, 0.0) / factor
        gradients = [gradient.masked_fill(overflow, 0.0) / factor for gradient in gradients]
    # New tensors first: two biases of a gate have one gradient, which must be scaled once.
    change = private.foreach_mul(gradients, (clip / (length + 1e-6)).clamp(max=1.0))
    private.foreach_add_(change, weights, alpha=decay)
    private.foreach_mul_(change, rate)
    private.foreach_sub_(weights, change)
    if averages is not None:
        change = private.foreach_sub(weights, averages)
        private.foreach_mul_(change, share)
        private.foreach_add_(averages, change)
    if watch is not None:
        loss, steps, first_bad = watch
        steps.add_(1)
        is_bad = ~(torch.isfinite(loss) & torch.isfinite(length)) & (first_bad < 0)
        first_bad.copy_(torch.where(is_bad, steps, first_bad))
    return norm


class DynamicUpdate:
    """The update of dynamic evaluation on ``weights``, in place.

    w <- w + min(1, decay * rms) * (trained - w) - learning_rate / (rms + epsilon) * gradient / losses

    What depends on the settings is kept in tensors that stay in place, so that a captured CUDA graph follows
    settings that came after it.

    Example:
        >>> weight, one = torch.tensor([3.0]), torch.ones(1)
        >>> update = DynamicUpdate([weight], [one], [one])
        >>> update.prepare(learning_rate=2.0, decay=torch.tensor(0.25), epsilon=1.0)
        >>> update.apply((torch.tensor([8.0]),), losses=4)
        >>> weight  # 3 + 0.25 * (1 - 3) - 2 / (1 + 1) * 8 / 4
        tensor([0.5000])
    """

    def __init__(self, weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> None:
        self.weights, self.trained, self.rms = weights, trained, rms
        self.step = [torch.empty_like(each) for each in rms]
        self.pull = [torch.empty_like(each) for each in rms]

    def prepare(self, learning_rate: float, decay: Tensor, epsilon: float) -> None:
        """Set what the coming segments learn with; ``decay``, 0-d, is lambda over the mean RMS."""
        for step, pull, rms in zip(self.step, self.pull, self.rms, strict=True):
            step.copy_(learning_rate / (rms + epsilon))
            pull.copy_((decay * rms).clamp(max=1.0))

    @torch.no_grad()
    def apply(self, gradients: tuple[Tensor, ...], losses: int) -> None:
        """Learn from the ``gradients`` of a sum of ``losses`` losses."""
        private.foreach_lerp_(self.weights, self.trained, self.pull)
        private.foreach_addcmul_(self.weights, gradients, self.step, value=-1 / losses)


def dynamic_update(weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> DynamicUpdate:
    """The update of dynamic evaluation.

    Args:
        weights: what learns, in place.
        trained: what the weights were, and are drawn back to.
        rms: the root mean square of each weight's gradient over the training text.
    """
    return DynamicUpdate(weights, trained, rms)
