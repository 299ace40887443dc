"""Linear transforms and pooling as matrices, and the passes around the input product of a layer, in PyTorch.

Legend: N features, M units, m_k units of level k, n_k = N/2^k features of level k. A matrix is *unit-major*
when the gates of a unit are adjacent rows, and *aligned* when zeros extend its rows to a multiple of 8.
``cuda/folding.py`` has the same passes as kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.errors import PRUError
from torch_pru.ops.spec import LayerSpec, LayerWeights, TransformSpec
from torch_pru.ops.torch_private import is_transformed

ALIGNMENT = 8
"""Rows of this many 16-bit values fill 16 bytes: products are several times faster on rows that do."""


def dense_matrix(matrices: Sequence[Tensor], spec: TransformSpec) -> Tensor:
    """The matrix (gates·M, N) that computes what ``matrices`` compute, rows gate-major.

    Pooling down to level k is a matrix P, and the level computes W·(P·x) = (W·P)·x.

    Raises:
        PRUError: if the pooling is not linear.
    """
    if not spec.is_linear:
        raise PRUError(f"pooling={spec.pooling!r} is not linear; use pooling 'average' or 'skip'")
    first, *below = level_matrices(matrices, spec)
    if not below:
        return first.flatten(0, 1)
    parts = [first]
    for level, weight in enumerate(below, start=1):
        windows = spec.windows[:level]
        counts = pooling_counts(spec.in_features, windows, weight.device, weight.dtype)
        parts.append((weight / math.prod(windows)) @ counts)
    return torch.cat(parts, dim=1).flatten(0, 1)


def level_matrices(matrices: Sequence[Tensor], spec: TransformSpec) -> list[Tensor]:
    """The matrix (gates, m_k, n_k) of each level, with zeros where its groups do not meet."""
    by_level = spec.matrices_by_level(tuple(matrices))
    return [_level_matrix(level, spec, number) for number, level in enumerate(by_level)]


def _level_matrix(blocks: tuple[Tensor, ...], spec: TransformSpec, level: int) -> Tensor:
    gates = sum(block.shape[0] for block in blocks) // spec.level_sizes[level]
    if spec.groups == 1:
        return blocks[0].unflatten(0, (gates, -1))
    if spec.is_uneven(level):
        return _block_diagonal([block.unflatten(0, (gates, -1)) for block in blocks])
    by_group = blocks[0].view(gates, spec.groups, -1, blocks[0].shape[1])  # (gates, g, m/g, n/g)
    spread = torch.diag_embed(by_group.permute(0, 2, 3, 1), dim1=1, dim2=3)  # (gates, g, m/g, g, n/g)
    return spread.reshape(gates, spec.level_sizes[level], spec.level_features[level])


def _block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """(gates, m, n) each to (gates, sum of m, sum of n)."""
    features, before, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        rows.append(F.pad(block, (before, features - before - block.shape[-1])))
        before += block.shape[-1]
    return torch.cat(rows, dim=-2)


def lstm_matrices(weights: LayerWeights, spec: LayerSpec) -> tuple[Tensor, Tensor]:
    """The matrices (4M, N) and (4M, M) of the LSTM that computes the same."""
    input = dense_matrix(weights.input, spec.input)
    if spec.residual:
        identity = torch.eye(spec.hidden_size, dtype=input.dtype, device=input.device)
        input = input + identity.repeat(4, 1)
    return input, dense_matrix(weights.context, spec.context)


def pooling_counts(
    features: int, windows: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Tensor:
    """How often each of N features goes into each feature after average pooling by ``windows``: (N/2^k, N).

    The pooling itself is this over the product of the windows; a window of 1 skips every second feature.
    Counts are small whole numbers, which 16 bits hold exactly; a third they do not.

    Example:
        >>> pooling_counts(6, (3,), torch.device("cpu"), torch.int64)
        tensor([[1, 1, 0, 0, 0, 0],
                [0, 1, 1, 1, 0, 0],
                [0, 0, 0, 1, 1, 1]])
    """
    if is_transformed():
        return _count(features, windows, device).to(dtype)
    return _kept_count(features, windows, device, dtype)


def _count(features: int, windows: tuple[int, ...], device: torch.device) -> Tensor:
    views = torch.eye(features, device=device, dtype=torch.float64)
    for window in windows:
        views = F.pad(views, (window // 2, window // 2)).unfold(-1, window, 2).sum(-1)
    return views.t().contiguous()


@functools.cache  # as below; made on the CPU, because a copy to a GPU is whole when it returns, on any stream
def _kept_count(features: int, windows: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # a later call may need it for a gradient
        return _count(features, windows, torch.device("cpu")).to(dtype).to(device)


@dataclass(frozen=True)
class Band:
    """A matrix whose columns are zero but for a few rows side by side.

    Attributes:
        first: (columns,) int32, the row where each column's part starts.
        share: (width, columns) float32, the values from there on.
    """

    first: Tensor
    share: Tensor

    def combine(self, values: Tensor) -> Tensor:
        """values (…, rows) times the matrix: (…, columns)."""
        rows = self.first.long()
        parts = (values[..., rows + j] * share.to(values.dtype) for j, share in enumerate(self.share))
        return functools.reduce(torch.add, parts)


@dataclass(frozen=True)
class Level:
    """The pooling (N/2^k, N) from the input down to level k of a pyramid, and its transpose.

    Attributes:
        fold: for each input feature what pooled features it goes into. Its columns go on to a multiple of
            ``ALIGNMENT``, the last of them zero.
        unfold: for each pooled feature what input features go into it.
    """

    fold: Band
    unfold: Band


@functools.cache  # never given up: a CUDA graph goes on reading what it was captured with
def pooling_levels(features: int, windows: tuple[int, ...], device: torch.device) -> tuple[Level, ...]:
    """The pooling down to each level below the first; ``windows`` has one for each of these levels."""
    return tuple(_level(features, windows[: k + 1], device) for k in range(len(windows)))


def _level(features: int, windows: tuple[int, ...], device: torch.device) -> Level:
    with torch.inference_mode(False):
        counts = _count(features, windows, torch.device("cpu"))
        matrix = counts / math.prod(windows)
        extended = F.pad(matrix, (0, aligned(features) - features))
        return Level(_band(extended, device), _band(matrix.t(), device))


def _band(matrix: Tensor, device: torch.device) -> Band:
    rows, there = matrix.shape[0], (matrix != 0).int()
    first, last = there.argmax(0), rows - 1 - there.flip(0).argmax(0)
    spans = torch.where(there.any(0), last - first + 1, 1)
    width = int(spans.max())
    first = first.clamp(max=rows - width)  # so that first + width never leaves the matrix
    share = matrix.gather(0, first + torch.arange(width).unsqueeze(1))
    return Band(first.int().to(device), share.float().to(device))


def aligned(features: int) -> int:
    """The next multiple of ``ALIGNMENT``."""
    return -(-features // ALIGNMENT) * ALIGNMENT


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
