"""The transforms of the paper's section 3: pyramidal (Eq. 2, 3) and grouped linear (Eq. 4).

Both can serve several gates at once: with ``gates=4`` they map (…, N) to (…, 4, M), one transform a
gate, as a recurrent unit needs them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_pru.errors import PRUError, check_bool, check_choice, check_dtype, check_positive, check_tensor
from torch_pru.ops.bands import pooling_counts
from torch_pru.ops.gates import input_gates
from torch_pru.ops.products import (
    add_input,
    concatenate_units,
    gate_linear,
    is_unit_major,
    product_dtype,
)
from torch_pru.pooling import DEFAULT_WINDOW, POOLINGS, level_windows, subsample

LEVEL_SPLITS = ("halving", "equal")


class GroupedLinear(nn.Module):
    """Grouped linear transform: g independent linear maps, each of 1/g of the features (Eq. 4).

    With ``groups=1`` it is a linear transform.

    Args:
        in_features: N, a multiple of ``groups``.
        out_features: M, a multiple of ``groups``.
        groups: g.
        bias: whether to add a bias.
        gates: how many transforms to do side by side; None for one, without a dimension for it.

    Shape:
        Input (…, N); output (…, M), or (…, gates, M) where ``gates`` is given.

    Attributes:
        weight: (g, gates, M/g, N/g), group by gate by output by input.
        bias: (gates, M) or None.

    Example:
        >>> GroupedLinear(400, 1200, groups=4)(torch.randn(20, 400)).shape
        torch.Size([20, 1200])
    """

    is_linear = True  # as a pyramid of maxima or convolutions is not

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int = 4,
        bias: bool = True,
        *,
        gates: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            check_positive(name, size)
            check_positive("groups", groups)
            if size % groups:
                raise PRUError(
                    f"groups={groups} does not divide {name}={size}; use a divisor of {size}, or groups=1"
                )
        check_bool("bias", bias)
        check_dtype(dtype)
        _check_gates(gates)
        self.in_features, self.out_features, self.groups, self.gates = (
            in_features,
            out_features,
            groups,
            gates,
        )
        shape = (groups, gates or 1, out_features // groups, in_features // groups)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = (
            nn.Parameter(torch.empty(gates or 1, out_features, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as ``nn.Linear`` does, from the number of inputs that each output sees."""
        bound = 1 / math.sqrt(self.in_features // self.groups)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @property
    def stored_weight(self) -> Tensor:
        """The weight, or what it is computed from where it is parametrized: for its device and dtype."""
        parametrizations: Any = self._modules.get("parametrizations")  # quicker than ``is_parametrized``
        if parametrizations is None or "weight" not in parametrizations:
            return self.weight
        kept = parametrizations["weight"]
        return kept.original if kept.is_tensor else kept.original0

    def forward(self, x: Tensor) -> Tensor:
        _check_features(x, self.in_features, self.stored_weight)
        return _with_bias(self.product(x), self.bias, self.gates)

    def product(self, x: Tensor, residual: bool = False) -> Tensor:
        """The transform of x (…, N) without its bias, always with a dimension for gates: (…, gates, M).

        With ``residual`` x is added to every gate.
        """
        weight = self.weight
        groups, gates, wide_out, wide_in = weight.shape
        if groups == 1:
            return gate_linear(x, weight, residual)
        by_group = x.reshape(-1, groups, wide_in).transpose(0, 1)  # (g, rows, N/g)
        y = by_group @ weight.reshape(groups, gates * wide_out, wide_in).transpose(1, 2)
        y = y.view(groups, by_group.shape[1], gates, wide_out).permute(1, 2, 0, 3)
        y = y.reshape(*x.shape[:-1], gates, groups * wide_out)
        return add_input(y, x) if residual else y

    def matrices(self) -> list[GroupedLinear]:
        """Everything that holds a weight: itself."""
        return [self]

    def dense_weight(self, weights: Sequence[Tensor] | None = None) -> Tensor:
        """The one matrix (gates, M, N) that does the same; ``weights`` stand in for its own."""
        [weight] = weights or [self.weight]
        by_group = torch.diag_embed(weight.permute(1, 2, 3, 0), dim1=1, dim2=3)  # (gates, g, M/g, g, N/g)
        return by_group.reshape(-1, self.out_features, self.in_features)

    def dense_bias(self) -> Tensor | None:
        """The bias (gates, M)."""
        return self.bias

    def extra_repr(self) -> str:
        gates = "" if self.gates is None else f", gates={self.gates}"
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.in_features}, {self.out_features}, groups={self.groups}{bias}{gates}"


def _with_bias(y: Tensor, bias: Tensor | None, gates: int | None) -> Tensor:
    """Finish a product (…, gates, M): add the bias, and drop the dimension that nobody asked for."""
    y = y if bias is None else y + bias.to(y.dtype)
    return y.squeeze(-2) if gates is None else y


class _UnevenGroups(nn.Module):
    """A grouped linear transform whose sizes need not divide: its groups differ by one feature."""

    def __init__(self, blocks: Sequence[GroupedLinear]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def product(self, x: Tensor) -> Tensor:
        parts = x.tensor_split(len(self.blocks), dim=-1)
        pairs = zip(self.matrices(), parts, strict=True)
        return concatenate_units([block.product(part) for block, part in pairs])

    def matrices(self) -> list[GroupedLinear]:
        return [block for block in self.blocks if isinstance(block, GroupedLinear)]


def _block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """(1, gates, m, n) each to (1, gates, sum of m, sum of n): what groups compute, as one matrix."""
    features, before, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        rows.append(F.pad(block, (before, features - before - block.shape[-1])))
        before += block.shape[-1]
    return torch.cat(rows, dim=-2)


def _level_transform(
    in_features: int, out_features: int, groups: int, bias: bool, gates: int, device, dtype
) -> GroupedLinear | _UnevenGroups:
    """The transform of one pyramid level."""
    factory = {"gates": gates, "device": device, "dtype": dtype}
    if in_features % groups == 0 and out_features % groups == 0:
        return GroupedLinear(in_features, out_features, groups, bias, **factory)
    if min(in_features, out_features) < groups:
        raise PRUError(
            f"groups={groups} is more than a level of {in_features} inputs and {out_features} outputs "
            f"can be cut into; use at most {min(in_features, out_features)}"
        )
    sizes = zip(_even_sizes(in_features, groups), _even_sizes(out_features, groups), strict=True)
    return _UnevenGroups([GroupedLinear(i, o, 1, bias, **factory) for i, o in sizes])


def _even_sizes(total: int, parts: int) -> list[int]:
    """``total`` cut into ``parts`` as evenly as can be, as ``Tensor.tensor_split`` cuts."""
    return [total // parts + (part < total % parts) for part in range(parts)]


class PyramidalTransform(nn.Module):
    """Pyramidal transform: K sub-sampled views of the input, a weight matrix for each (Eq. 2).

    Level 1 is the input; level k is level k-1 sub-sampled by 2 (Eq. 3). The levels' outputs are
    concatenated. With ``levels=1`` it is a linear transform.

    Args:
        in_features: N, a multiple of 2^(levels-1).
        out_features: M, shared out among the levels by ``level_split``.
        levels: K.
        bias: whether to add a bias.
        groups: groups of every level's matrix. Where a level's sizes do not divide, its groups differ
            by one feature.
        pooling: how a level comes from the one before. ``"average"``: mean of a window, zero
            padded, the padding counted. ``"max"``: its maximum. ``"skip"``: every second element.
            ``"convolution"``: one learned kernel a level, zero padded, and tanh.
        level_split: ``"halving"`` gives level i (from 0) ceil(M / 2^(i+1)) outputs and what is left
            to level 0, as in the paper's tables; ``"equal"`` gives M/K to each, as in its text.
        pool_window: odd size of the window, or one for each level below the first.
        gates: how many transforms to do side by side; None for one, without a dimension for it.

    Shape:
        Input (…, N); output (…, M), or (…, gates, M) where ``gates`` is given.

    Attributes:
        level_sizes: the number of outputs of each level.
        transforms: one a level, each mapping its view to its outputs.
        kernels: with ``pooling="convolution"``, one kernel (window,) for each level below the first.

    Example:
        >>> PyramidalTransform(400, 1400, levels=2)(torch.randn(20, 400)).shape
        torch.Size([20, 1400])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        levels: int = 2,
        bias: bool = True,
        *,
        groups: int = 1,
        pooling: str = "average",
        level_split: str = "halving",
        pool_window: int | Sequence[int] = DEFAULT_WINDOW,
        gates: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_positive("in_features", in_features)
        check_choice("pooling", pooling, POOLINGS)
        check_levels(in_features, levels)
        self.level_sizes = split_levels(out_features, levels, level_split)
        check_positive("groups", groups)
        _check_gates(gates)
        self.in_features, self.out_features, self.levels, self.gates = (
            in_features,
            out_features,
            levels,
            gates,
        )
        self.groups, self.pooling, self.level_split = groups, pooling, level_split
        self.windows = level_windows(pool_window, levels, pooling)
        self.transforms = nn.ModuleList(
            _level_transform(in_features // 2**level, size, groups, bias, gates or 1, device, dtype)
            for level, size in enumerate(self.level_sizes)
        )
        kernels = self.windows if pooling == "convolution" else ()
        self.kernels = nn.ParameterList(torch.empty(size, device=device, dtype=dtype) for size in kernels)
        self.reset_kernels()

    def reset_kernels(self) -> None:
        """Draw the learned pooling kernels from N(0, 1), as the paper does."""
        for kernel in self.kernels.parameters():
            nn.init.normal_(kernel)

    @property
    def is_linear(self) -> bool:
        """Whether the whole transform is a linear map of its input."""
        return self.levels == 1 or self.pooling in ("average", "skip")

    def forward(self, x: Tensor) -> Tensor:
        _check_features(x, self.in_features, self.matrices()[0].stored_weight)
        return _with_bias(self.product(x), self.dense_bias(), self.gates)

    def product(self, x: Tensor, residual: bool = False) -> Tensor:
        """The transform of x (…, N) without its bias, always with a dimension for gates: (…, gates, M).

        With ``residual`` x is added to every gate.
        """
        if is_unit_major(x) and self.is_linear:
            # On a GPU one large product is quicker than several, the pooling and the concatenation.
            # Of grouped levels, too, at the paper's widths; at 4096 features the zeros cost a tenth.
            return input_gates(x, self._level_weights(), self._pool_windows, product_dtype(x), residual)
        views = zip(self._levels(), self.pyramid(x), strict=True)
        y = concatenate_units([level.product(view) for level, view in views])
        return add_input(y, x) if residual else y

    @property
    def _pool_windows(self) -> tuple[int, ...]:
        """The window of each level below the first; to skip every second feature is a window of 1."""
        return self.windows or (1,) * (self.levels - 1)

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """The views of x (…, N) at every level: (…, N), (…, N/2), …"""
        views = [x]
        for level in range(self.levels - 1):
            kernel = self.kernels[level] if self.pooling == "convolution" else None
            views.append(subsample(views[-1], self.pooling, self._pool_windows[level], kernel))
        return views

    def _level_weights(self) -> list[Tensor]:
        """The weight (1, gates, m_k, N/2^k) of each level k, with zeros where its groups do not meet."""
        if self.groups == 1:
            return [matrix.weight for matrix in self.matrices()]
        return [
            _block_diagonal([block for matrix in level.matrices() for block in matrix.weight.split(1)])
            for level in self._levels()
        ]

    def dense_weight(self, level_weights: Sequence[Tensor] | None = None) -> Tensor:
        """The one matrix (gates, M, N) that does the same, where that can be had.

        Pooling down to level k is then a matrix P, and the level computes W·(P·x) = (W·P)·x.
        ``level_weights`` stand in for the levels' own weights.
        """
        if not self.is_linear:
            raise PRUError(f"pooling={self.pooling!r} is not linear; use pooling 'average' or 'skip'")
        weights = level_weights or self._level_weights()
        parts = [weights[0][0]]
        for level, weight in enumerate(weights[1:], start=1):
            windows = self._pool_windows[:level]
            counts = pooling_counts(self.in_features, windows, weight.device, weight.dtype)
            parts.append((weight[0] / math.prod(windows)) @ counts)
        return torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]

    def dense_bias(self) -> Tensor | None:
        """The bias (gates, M) of all levels together."""
        biases: list[Tensor] = [b for b in (matrix.bias for matrix in self.matrices()) if b is not None]
        if len(biases) < 2:
            return biases[0] if biases else None
        return torch.cat(biases, dim=-1)

    def matrices(self) -> list[GroupedLinear]:
        """Everything that holds a weight, from the first level to the last."""
        return [matrix for level in self._levels() for matrix in level.matrices()]

    def _levels(self) -> list[GroupedLinear | _UnevenGroups]:
        """As they are registered now: a replica on another device has levels of its own."""
        return cast("list[GroupedLinear | _UnevenGroups]", list(self.transforms))

    def extra_repr(self) -> str:
        parts = [f"{self.in_features}, {self.out_features}, levels={self.levels}"]
        if self.levels > 1:
            parts += [f"pooling={self.pooling!r}", f"level_split={self.level_split!r}"]
            parts += [f"pool_window={self.windows}"] if self.windows else []
        return ", ".join(parts)


def _check_gates(gates: int | None) -> None:
    if gates is not None:
        check_positive("gates", gates)


def _check_features(x: Tensor, in_features: int, weight: Tensor) -> None:
    check_tensor("input", x, weight)
    if x.shape[-1:] != (in_features,):
        raise PRUError(
            f"input has shape {tuple(x.shape)}; expected (…, N) with N of in_features={in_features}"
        )


def check_levels(in_features: int, levels: int) -> None:
    """Raise unless ``in_features`` can be halved ``levels - 1`` times."""
    check_positive("levels", levels)
    most = (in_features & -in_features).bit_length()  # one more than the number of factors of two
    if levels > most:
        raise PRUError(
            f"in_features={in_features} cannot be halved {levels - 1} times, which levels={levels} needs; "
            f"use at most levels={most}"
        )


def split_levels(out_features: int, levels: int, level_split: str = "halving") -> tuple[int, ...]:
    """How many of M outputs each level makes.

    Example:
        >>> split_levels(1400, 2), split_levels(600, 4), split_levels(600, 4, "equal")
        ((1050, 350), (337, 150, 75, 38), (150, 150, 150, 150))
    """
    check_positive("out_features", out_features)
    check_positive("levels", levels)
    check_choice("level_split", level_split, LEVEL_SPLITS)
    if level_split == "equal":
        if out_features % levels:
            raise PRUError(
                f"out_features={out_features} cannot be shared equally among levels={levels}; "
                f"use a multiple of {levels}, or level_split='halving'"
            )
        return (out_features // levels,) * levels
    most = max(1, out_features.bit_length() - 1)  # before any power of two: ``levels`` may be huge
    if levels > most:
        raise PRUError(
            f"out_features={out_features} is too few for levels={levels}; use at most levels={most}"
        )
    below = [-(-out_features // 2 ** (level + 1)) for level in range(1, levels)]
    return (out_features - sum(below), *below)
