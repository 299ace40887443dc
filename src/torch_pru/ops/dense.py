"""A transform that is a linear map, as the one matrix that does the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.errors import PRUError
from torch_pru.ops.folding import pooling_counts
from torch_pru.ops.spec import LayerSpec, LayerWeights, TransformSpec


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
