"""SGD with clipping, coupled weight decay and a running average of the weights.

``torch.optim.ASGD`` steps with the rate of its *previous* call, so that a window's own learning rate would
reach the next window. Here the rate of a step is the one it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.ops.cuda import update
from torch_pru.ops.cuda.launch import unserved


class Watch(NamedTuple):
    """What remembers the first step that went wrong; the host looks when it waits for the device anyway."""

    loss: Tensor  # 0-d, of this step
    steps: Tensor  # 0-d, steps taken before this one; one is added
    first_bad: Tensor  # 0-d, the first step whose loss or gradient was not finite, or -1

    def look(self, norm: Tensor) -> None:
        """Count the step, whose gradient has this norm."""
        self.steps.add_(1)
        wrong = ~(torch.isfinite(self.loss) & torch.isfinite(norm)) & (self.first_bad < 0)
        self.first_bad.copy_(torch.where(wrong, self.steps, self.first_bad))


class AveragedSGD:
    """Everything a step needs lives on the device: ``prepare`` fills it in, ``apply`` never waits.

    One step, g the gradient over all weights p:
    g <- g min(1, clip / |g|);  g <- g + decay p;  p <- p - rate g;  while averaging a <- a + (p - a) / n,
    where n counts the steps since averaging began.

    Args:
        parameters: of one dtype, on one device.
        clip: largest norm of the gradient over all weights.
        weight_decay: coupled (L2).

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = AveragedSGD([weight], clip=0.25, weight_decay=0.0)
        >>> optimizer.prepare(2.0)
        >>> _ = optimizer.apply([torch.tensor([100.0])])
        >>> round(weight.item(), 4)
        2.5
    """

    def __init__(self, parameters: Iterable[Tensor], *, clip: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.clip = clip
        self.weight_decay = weight_decay
        like = self.parameters[0]
        self.learning_rate = torch.zeros((), device=like.device, dtype=like.dtype)
        self.average_weight = torch.zeros((), device=like.device, dtype=like.dtype)  # 1 / n
        self.averages: list[Tensor] | None = None
        self.averaged_steps = 0
        self.fused = like.dtype == torch.float32 and all(map(_fits, self.parameters))

    def start_averaging(self) -> None:
        """Begin a new average with the next step, in float32 at least: 1/n falls to 4e-6."""
        if self.averages is None:
            self.averages = [parameter.detach().clone() for parameter in self.parameters]
        self.averaged_steps = 0  # the first step has the weight 1: what the average held before is gone

    def prepare(self, learning_rate: float) -> None:
        """Set the coming step's learning rate and its weight in the average."""
        self.learning_rate.fill_(learning_rate)
        if self.averages is not None:
            self.averaged_steps += 1
            self.average_weight.fill_(1 / self.averaged_steps)

    @torch.no_grad()
    def apply(
        self, gradients: list[Tensor], *, factor: Tensor | None = None, watch: Watch | None = None
    ) -> Tensor:
        """Take a step along ``gradients``.

        Args:
            gradients: of the loss, in the order of the parameters; two of them may be one tensor.
            factor: 0-d, what the loss was multiplied by; the gradients are divided by it. Where they
                overflowed, the step is taken with a gradient of zero, and the watch thinks no ill of it.
            watch: kept up to date.

        Returns:
            0-d, the norm of ``gradients`` as they are.
        """
        if self.fused:
            return update.update(
                self.parameters,
                gradients,
                self.averages,
                rate=self.learning_rate,
                share=self.average_weight,
                factor=factor,
                watch=watch,
                clip=self.clip,
                decay=self.weight_decay,
            )
        norm = length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if factor is not None:
            overflow = ~torch.isfinite(norm)
            length = norm.masked_fill(overflow, 0.0) / factor
            gradients = [gradient.masked_fill(overflow, 0.0) / factor for gradient in gradients]
        self._apply_plain(gradients, length)
        if watch is not None:
            watch.look(length)
        return norm

    def _apply_plain(self, gradients: list[Tensor], norm: Tensor) -> None:
        # New tensors first: two biases of a gate have one gradient, which must be scaled once.
        change = torch._foreach_mul(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_add_(change, self.parameters, alpha=self.weight_decay)
        torch._foreach_mul_(change, self.learning_rate)
        torch._foreach_sub_(self.parameters, change)
        if self.averages is not None:
            change = torch._foreach_sub(self.parameters, self.averages)
            torch._foreach_mul_(change, self.average_weight)
            torch._foreach_add_(self.averages, change)


def _fits(weight: Tensor) -> bool:
    """Whether the fused update takes a weight of this size and layout, on the GPU that it is on."""
    fits = weight.is_cuda and weight.is_contiguous() and weight.numel() <= update.LARGEST
    return fits and unserved(weight.device.index) is None


@contextmanager
def averaged_weights(optimizer: AveragedSGD) -> Iterator[None]:
    """Inside, the model has the averaged weights; before averaging has begun, its own.

    The weights are exchanged in place, so that whoever holds a weight sees the change.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([3.0]))
        >>> optimizer = AveragedSGD([weight], clip=0.25, weight_decay=0.0)
        >>> optimizer.start_averaging()
        >>> for _ in range(3):
        ...     optimizer.prepare(4.0)
        ...     _ = optimizer.apply([torch.tensor([100.0])])
        >>> with averaged_weights(optimizer):
        ...     round(weight.item(), 4)  # the mean of 2, 1 and 0
        1.0
        >>> round(weight.item(), 4)
        0.0
    """
    if optimizer.averages is None:
        yield
        return
    raw = [parameter.detach().clone() for parameter in optimizer.parameters]
    with torch.no_grad():
        torch._foreach_copy_(optimizer.parameters, optimizer.averages)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(optimizer.parameters, raw)
