"""Every piece in plain PyTorch: any device, any dtype, differentiable to any order."""

from __future__ import annotations

from typing import Any

from torch_pru.ops.reference.recurrent import (
    input_gates,
    layer,
    recurrence,
    scan,
    valid_steps,
)
from torch_pru.ops.reference.tokens import token_model
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
    "cross_entropy",
    "drop",
    "dynamic_update",
    "input_gates",
    "layer",
    "penalties",
    "recurrence",
    "scan",
    "sgd_update",
    "token_model",
    "unsupported_reason",
    "valid_steps",
]


def unsupported_reason(piece: str, *arguments: Any, **options: Any) -> str | None:
    """None: the reference runs everything."""
    return None
