"""How weights learn from a segment in dynamic evaluation; the rule is in `torch_pru.lm.evaluation.dynamic`.

What depends on the settings is kept in tensors that stay where they are, so that a captured segment follows
settings that came after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.ops.cuda.dynamic import covers, dynamic_step


class PlainUpdate:
    """The rule in PyTorch's operations.

    Args:
        weights: what learns, in place.
        trained: what the weights were, and are drawn back to.
        rms: the root mean square of each weight's gradient.

    Example:
        >>> weight, one = torch.tensor([3.0]), torch.ones(1)
        >>> update = PlainUpdate([weight], [one], [one])
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
        torch._foreach_lerp_(self.weights, self.trained, self.pull)  # w + decay * (w0 - w)
        torch._foreach_addcmul_(self.weights, gradients, self.step, value=-1 / losses)


class FusedUpdate:
    """The same in one kernel, which reads each number once; for float32 weights on a GPU."""

    def __init__(self, weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> None:
        self.weights, self.trained = weights, trained
        self.rms = [each.contiguous() for each in rms]
        self.rates = torch.zeros(3, device=weights[0].device)

    def prepare(self, learning_rate: float, decay: Tensor, epsilon: float) -> None:
        """As in ``PlainUpdate``."""
        self.rates[0], self.rates[1], self.rates[2] = learning_rate, decay, epsilon

    def apply(self, gradients: tuple[Tensor, ...], losses: int) -> None:
        """As in ``PlainUpdate``."""
        contiguous = [gradient.contiguous() for gradient in gradients]
        dynamic_step(self.weights, self.trained, contiguous, self.rms, self.rates, losses)


def make_update(weights: list[Tensor], trained: list[Tensor], rms: list[Tensor]) -> PlainUpdate | FusedUpdate:
    """The quickest way to run the rule on these."""
    return (FusedUpdate if covers(weights) else PlainUpdate)(weights, trained, rms)
