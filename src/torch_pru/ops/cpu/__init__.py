"""PyTorch calls with hand-written backward passes, on any device; made for CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_pru.ops import dropping
from torch_pru.ops.reference import drop as drop_kernel

__all__ = ["drop", "drop_kernel", "unsupported_reason"]


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    return None


def drop(values: Tensor, mask: Tensor, keep: float, dtype: torch.dtype, *, eager: bool) -> Tensor:
    """As :func:`torch_pru.ops.reference.drop`; keeps nothing but the mask for the backward pass."""
    return dropping.operator(values, mask, keep, dtype, "loop", eager=eager)
