"""Every piece in plain PyTorch: any device, any dtype, differentiable to any order."""

from __future__ import annotations

from typing import Any

from torch_pru.ops.reference.recurrence import cell_dtype, layer, recurrence, scan, valid_steps
from torch_pru.ops.reference.training import (
    add_rows,
    cross_entropy,
    drop,
    dynamic_update,
    penalties,
    sgd_update,
)

__all__ = [
    "add_rows",
    "cell_dtype",
    "cross_entropy",
    "drop",
    "dynamic_update",
    "layer",
    "penalties",
    "recurrence",
    "scan",
    "sgd_update",
    "unsupported_reason",
    "valid_steps",
]


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    """None: the reference runs everything."""
    return None
