"""In which precision products are computed, and what float16 needs besides."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from torch_pru.errors import PRUError

AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def weight_dtype(precision: str) -> torch.dtype:
    """What the weights are kept in: float32, also where products are in 16 bits."""
    return torch.float64 if precision == "float64" else torch.float32


def computing(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context that a forward pass runs in.

    Example:
        >>> with computing("bfloat16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    dtype = AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def check_precision(precision: str, device: torch.device, model: nn.Module) -> None:
    """Refuse what PyTorch cannot compute, before the first step."""
    lstm = any(isinstance(module, nn.LSTM) for module in model.modules())
    if precision == "float16" and device.type == "cpu" and lstm:
        raise PRUError("precision='float16' has no nn.LSTM on a CPU; use bfloat16 or float32")


def usable_precision(precision: str, device: torch.device, model: nn.Module) -> str:
    """``precision``, or float32 where PyTorch cannot compute in it: a model may come from another device."""
    try:
        check_precision(precision, device, model)
    except PRUError:
        return "float32"
    return precision


class LossScale:
    """Keeps float16 gradients off the ends of their range; the host never waits for it.

    The loss is multiplied by a factor before the backward pass, and the optimizer divides the gradients by
    it. A step whose gradients overflow is skipped (the optimizer takes them for zero) and the factor
    halved; after 2,000 steps without that it is doubled. ``torch.amp.GradScaler`` does the same, but waits
    every step.

    Example:
        >>> scale = LossScale(torch.device("cpu"))
        >>> scale.adjust(torch.tensor(torch.inf))
        >>> scale.factor.item()
        2048.0
    """

    START, LARGEST, PATIENCE = 2.0**12, 2.0**20, 2000

    def __init__(self, device: torch.device) -> None:
        self.factor = torch.full((), self.START, device=device)
        self.streak = torch.zeros((), device=device)  # steps since the factor changed

    @torch.no_grad()
    def adjust(self, norm: Tensor) -> None:
        """Set the next step's factor, ``norm`` being that of this step's scaled gradients, 0-d."""
        finite = torch.isfinite(norm)
        self.streak.copy_(torch.where(finite, self.streak + 1, 0.0))
        grow = self.streak >= self.PATIENCE
        self.streak.masked_fill_(grow, 0.0)
        change = torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
        self.factor.mul_(change).clamp_(1.0, self.LARGEST)
