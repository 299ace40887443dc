"""The passes around the input product of a layer, in PyTorch: for any device; ``cuda/folding.py`` is faster.

Legend: N features, M units, m_k units of level k, n_k = N/2^k features of level k. A matrix is *unit-major*
when the gates of a unit are adjacent rows, and *aligned* when zeros extend its rows to a multiple of 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.ops.bands import aligned, pooling_levels


def fold(weights: Sequence[Tensor], windows: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All levels as one matrix of the input: the sums in float32 at least, rounded once to ``dtype``.

    Args:
        weights: (1, gates, m_k, n_k), one for each level.
        windows: one for each level below the first; pooling by average.

    Returns:
        (M·gates, N), unit-major and aligned.
    """
    features = weights[0].shape[-1]
    wide = torch.promote_types(dtype, torch.float32)
    width = aligned(features)
    parts = [F.pad(weights[0][0].to(wide), (0, width - features))]
    levels = pooling_levels(features, windows, weights[0].device)
    for weight, level in zip(weights[1:], levels, strict=True):
        parts.append(level.fold.combine(weight[0].to(wide)))
    by_unit = torch.cat(parts, dim=1).transpose(0, 1)  # (M, gates, N)
    return by_unit.to(dtype).reshape(-1, width)


def unfold(
    folded: Tensor,
    gates: int,
    features: int,
    units: Sequence[int],
    windows: tuple[int, ...],
    dtype: torch.dtype,
) -> list[Tensor]:
    """The transpose of :func:`fold`, for gradients: from (M·gates, N) to every level's (1, gates, m_k, n_k).

    Args:
        folded: unit-major and aligned.
        units: m_k of each level.
        dtype: of the results; the sums are in float32 at least.
    """
    wide = torch.promote_types(folded.dtype, torch.float32)
    by_gate = folded.unflatten(0, (-1, gates))[..., :features].transpose(0, 1).to(wide)
    first, *below = by_gate.split(list(units), dim=1)
    levels = pooling_levels(features, windows, folded.device)
    parts = [first, *(level.unfold.combine(part) for part, level in zip(below, levels, strict=True))]
    return [part.unsqueeze(0).to(dtype, memory_format=torch.contiguous_format, copy=True) for part in parts]


def spread(x: Tensor, gates: int) -> Tensor:
    """(rows, M) to (rows, M·gates): each value once for every gate of its unit."""
    return x.repeat_interleave(gates, dim=1)


def collect(x: Tensor, gates: int) -> Tensor:
    """The transpose of :func:`spread`, (rows, M·gates) to (rows, M): sums in float32, rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.unflatten(1, (-1, gates)).sum(-1, dtype=wide).to(x.dtype)
