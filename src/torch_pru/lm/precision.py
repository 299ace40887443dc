"""The precision that a model computes in, and loss scaling for float16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from torch_pru.errors import PRUError

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def weight_dtype(precision: str) -> torch.dtype:
    """The dtype of the weights: float32, also if matrix products are computed in 16 bits."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The autocast context for a precision; without effect for float32 and float64.

    Example:
        >>> with autocast("bfloat16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def check_precision(precision: str, device: torch.device, model: nn.Module) -> None:
    """Raise if PyTorch cannot compute a model in this precision on this device."""
    lstm = any(isinstance(module, nn.LSTM) for module in model.modules())
    if precision == "float16" and device.type == "cpu" and lstm:
        raise PRUError("precision='float16' is not supported by nn.LSTM on a CPU; use bfloat16 or float32")


def usable_precision(precision: str, device: torch.device, model: nn.Module) -> str:
    """``precision``, or float32 if PyTorch cannot compute the model in it on this device."""
    try:
        check_precision(precision, device, model)
    except PRUError:
        return "float32"
    return precision


class LossScale:
    """Keeps float16 gradients in range, without synchronizing with the device.

    The loss is multiplied by ``scale`` before the backward pass, and the optimizer divides the gradients by
    it. A step whose gradients overflow is skipped (the optimizer takes the gradient as zero), and the scale
    is halved; after 2,000 steps without overflow it is doubled. ``torch.amp.GradScaler`` does the same, but
    synchronizes at every step.

    Example:
        >>> loss_scale = LossScale(torch.device("cpu"))
        >>> loss_scale.update(torch.tensor(torch.inf))
        >>> loss_scale.scale.item()
        2048.0
    """

    INITIAL, MAXIMUM, GROWTH_INTERVAL = 2.0**12, 2.0**20, 2000

    def __init__(self, device: torch.device) -> None:
        self.scale = torch.full((), self.INITIAL, device=device)
        self.good_steps = torch.zeros((), device=device)  # since the last overflow or growth

    @torch.no_grad()
    def update(self, grad_norm: Tensor) -> None:
        """Set the scale of the next step from the norm (0-d) of this step's scaled gradients."""
        finite = torch.isfinite(grad_norm)
        self.good_steps.copy_(torch.where(finite, self.good_steps + 1, 0.0))
        grow = self.good_steps >= self.GROWTH_INTERVAL
        self.good_steps.masked_fill_(grow, 0.0)
        change = torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
        self.scale.mul_(change).clamp_(1.0, self.MAXIMUM)

    def state_dict(self) -> dict[str, Tensor]:
        """The scale and the number of steps without overflow."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Load what ``state_dict`` returned."""
        self.scale.copy_(state_dict["scale"])
        self.good_steps.copy_(state_dict["good_steps"])
