"""AR and TAR, the penalties on the last layer's output."""

from __future__ import annotations

from torch import Tensor

from torch_pru.lm.config import RegularisationConfig
from torch_pru.lm.model import Hidden
from torch_pru.ops import backends


def penalties(hidden: Hidden, rates: RegularisationConfig) -> Tensor | float:
    """AR on the *dropped* output, TAR on the change over time of the *raw* output, in float32.

    Args:
        hidden: of a window of T at least 2.
        rates: ``activation`` and ``temporal`` are the factors of the two means; 0 leaves a term out.

    Returns:
        0-d, or 0.0 if both are left out.
    """
    dropped = hidden.dropped if rates.activation else None
    raw = hidden.raw if rates.temporal else None
    if dropped is None and raw is None:
        return 0.0
    return backends.run("penalties", dropped, raw, rates.activation, rates.temporal)
