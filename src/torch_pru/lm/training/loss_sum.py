"""A sum of losses that stays on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LossSum:
    """Adds up mean losses by their number of tokens; only ``mean`` waits for the device.

    Example:
        >>> total = LossSum(torch.device("cpu"))
        >>> total.add(torch.tensor(6.0), tokens=100)
        >>> total.add(torch.tensor(3.0), tokens=200)
        >>> total.mean()
        4.0
    """

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.tokens = 0

    def add(self, loss: Tensor, tokens: int) -> None:
        """Add the mean loss, 0-d, of so many tokens."""
        self.total.add_(loss.double() * tokens)
        self.tokens += tokens

    def mean(self) -> float:
        """The mean over all tokens; not a number where there are none."""
        return self.total.item() / self.tokens if self.tokens else float("nan")

    def clear(self) -> None:
        """Begin anew."""
        self.total.zero_()
        self.tokens = 0

    def state(self) -> dict[str, Any]:
        """What ``load`` goes on from."""
        return {"total": self.total, "tokens": self.tokens}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.total.copy_(state["total"])
        self.tokens = state["tokens"]
