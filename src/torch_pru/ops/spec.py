"""The arguments of a backend: structure and weights of a layer in one direction, what it runs on, dtypes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LINEAR_POOLINGS = ("average", "skip")
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class TransformSpec(NamedTuple):
    """The structure of a transform: a linear, a grouped and a pyramidal transform are cases of the same.

    A linear transform has one level and one group, a grouped one has one level and several groups, and a
    pyramidal one has several levels, each of which may have groups.

    Attributes:
        in_features: N.
        level_sizes: the number of outputs of each level; they add up to M. Level k (from 0) reads
            N / 2^k features.
        groups: of each level's matrix. Where it does not divide a level's sizes, the level is *uneven*: its
            groups differ by one feature, and each has a matrix of its own.
        pooling: ``"average"``, ``"max"``, ``"skip"`` or ``"convolution"``.
        windows: the pooling window of each level below the first; 1 for ``"skip"``.

    Example:
        >>> spec = TransformSpec(8, (12, 4), windows=(3,))
        >>> spec.out_features, spec.levels, spec.level_features, spec.is_linear
        (16, 2, (8, 4), True)
        >>> spec.matrix_shapes(gates=4)
        ((48, 8), (16, 4))
    """

    in_features: int
    level_sizes: tuple[int, ...]
    groups: int = 1
    pooling: str = "average"
    windows: tuple[int, ...] = ()

    @property
    def out_features(self) -> int:
        """M."""
        return sum(self.level_sizes)

    @property
    def levels(self) -> int:
        """K."""
        return len(self.level_sizes)

    @property
    def level_features(self) -> tuple[int, ...]:
        """The number of inputs of each level."""
        return tuple(self.in_features >> level for level in range(self.levels))

    @property
    def is_linear(self) -> bool:
        """Whether the whole transform is a linear map of its input."""
        return self.levels == 1 or self.pooling in LINEAR_POOLINGS

    @property
    def is_even(self) -> bool:
        """Whether the groups of every level have the same size: then each level has one matrix."""
        return not any(self.is_uneven(level) for level in range(self.levels))

    def is_uneven(self, level: int) -> bool:
        """Whether ``groups`` does not divide the sizes of a level."""
        if self.groups == 1:
            return False
        return bool(self.level_features[level] % self.groups or self.level_sizes[level] % self.groups)

    def matrix_shapes(self, gates: int) -> tuple[tuple[int, int], ...]:
        """The shape of every matrix: one per level, or one per group of an uneven level.

        The rows of a matrix are gate-major, as in ``nn.LSTM``; within a gate they are in the order of the
        outputs. The matrix of an even level has n_k/g columns.
        """
        shapes: list[tuple[int, int]] = []
        for level, (outputs, inputs) in enumerate(zip(self.level_sizes, self.level_features, strict=True)):
            if self.is_uneven(level):
                parts = zip(even_sizes(outputs, self.groups), even_sizes(inputs, self.groups), strict=True)
                shapes += [(gates * rows, columns) for rows, columns in parts]
            else:
                shapes.append((gates * outputs, inputs // self.groups))
        return tuple(shapes)

    @property
    def matrix_groups(self) -> tuple[int, ...]:
        """How many groups share each matrix: ``groups``, or 1 where each group has its own."""
        counts: list[int] = []
        for level in range(self.levels):
            counts += [1] * self.groups if self.is_uneven(level) else [self.groups]
        return tuple(counts)

    def matrices_by_level(self, matrices: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        """The matrices of each level: one, or one per group of an uneven level."""
        if len(matrices) == self.levels:
            return [(matrix,) for matrix in matrices]
        rest = iter(matrices)
        counts = (self.groups if self.is_uneven(level) else 1 for level in range(self.levels))
        return [tuple(next(rest) for _ in range(count)) for count in counts]


class LayerSpec(NamedTuple):
    """The structure of one layer in one direction.

    Attributes:
        input: the transform of the input, (…, N) to (…, 4, M).
        context: the transform of the state h, (…, M) to (…, 4, M); of a projected state, from (…, P).
        residual: whether the input is added to all four gates; then N = M.

    Example:
        >>> spec = LayerSpec(TransformSpec(8, (12, 4), windows=(3,)), TransformSpec(16, (16,), groups=2))
        >>> spec.input_size, spec.hidden_size, spec.groups, spec.is_linear
        (8, 16, 2, True)
    """

    input: TransformSpec
    context: TransformSpec
    residual: bool = False

    @property
    def input_size(self) -> int:
        """N."""
        return self.input.in_features

    @property
    def hidden_size(self) -> int:
        """M."""
        return self.context.out_features

    @property
    def state_size(self) -> int:
        """The features of the state h: M, or the smaller P of a projected state."""
        return self.context.in_features

    @property
    def is_projected(self) -> bool:
        """Whether h is a projection of what the gates let out, as with ``proj_size`` of ``nn.LSTM``."""
        return self.state_size != self.hidden_size

    @property
    def groups(self) -> int:
        """The groups of the context transform."""
        return self.context.groups

    @property
    def is_linear(self) -> bool:
        """Whether both transforms are linear maps: then the unit is an LSTM with structured weights."""
        return self.input.is_linear and self.context.is_linear

    @property
    def is_grouped_lstm(self) -> bool:
        """Whether the context is one matrix (4M, M/g), which fused recurrences expect."""
        return self.context.levels == 1


class LayerWeights(NamedTuple):
    """The weights of one layer in one direction, in the layout of ``nn.LSTM`` and of grouped convolutions.

    Attributes:
        input: the matrices of the input transform, level by level; see :meth:`TransformSpec.matrix_shapes`.
            Level k's is (4·m_k, n_k/groups), rows gate-major: row = gate·m_k + unit.
        context: the matrices of the context transform. Of a grouped or linear context it is one, (4M, M/g):
            row = gate·M + group·M/g + unit.
        biases: those of input and context, (4M,) each, of which the sum counts; or that sum alone; or none.
        input_kernels, context_kernels: the learned kernels (window,) of ``pooling="convolution"``, one for
            each level below the first.
        projection: the matrix (P, M) of a projected state, or none.
    """

    input: tuple[Tensor, ...]
    context: tuple[Tensor, ...]
    biases: tuple[Tensor, ...] = ()
    input_kernels: tuple[Tensor, ...] = ()
    context_kernels: tuple[Tensor, ...] = ()
    projection: tuple[Tensor, ...] = ()

    @classmethod
    def gather(cls, module: nn.Module, names: Iterable[Iterable[str]]) -> LayerWeights:
        """The weights of these names as they are now; each is looked up once, because it may be computed."""
        registered: Any = module._parameters  # without the search of ``nn.Module.__getattr__``
        try:
            groups = [tuple([registered[name] for name in group]) for group in names]
        except KeyError:  # some are computed by parametrizations
            groups = [tuple([getattr(module, name) for name in group]) for group in names]
        return cls(*groups)

    @property
    def bias(self) -> Tensor | None:
        """The sum of the biases; computed at every access."""
        return functools.reduce(torch.add, self.biases) if self.biases else None


class LayerCall(NamedTuple):
    """The argument of the piece ``layer``: one layer in one direction over all steps.

    Attributes:
        x: (T, B, N).
        weights: the weights of the layer.
        h0, c0: (B, M), the states before the first step; zero if None. A projected h is (B, P).
        lengths: (B,), the number of valid steps of each column; None if every step is valid.
        spec: the structure of the layer.
        reverse: whether to run from the last valid step to the first.
    """

    x: Tensor
    weights: LayerWeights
    h0: Tensor | None
    c0: Tensor | None
    lengths: Tensor | None
    spec: LayerSpec
    reverse: bool = False


class RecurrenceCall(NamedTuple):
    """The argument of the piece ``recurrence``; :func:`torch_pru.ops.recurrence` describes each field."""

    gates: Tensor
    weight: Tensor
    bias: Tensor | None
    h0: Tensor | None
    c0: Tensor | None
    lengths: Tensor | None
    reverse: bool = False


class SavedRecurrence(NamedTuple):
    """What the backward pass of a recurrence reads.

    Attributes:
        weight, h0, c0, lengths, reverse: as in :class:`RecurrenceCall`.
        out: (T, B, M), the outputs.
        activations: (T, B, 4, M), the gates after their activations.
        cells: (T, B, M), the cell states.
    """

    weight: Tensor
    h0: Tensor | None
    c0: Tensor | None
    out: Tensor
    activations: Tensor
    cells: Tensor
    lengths: Tensor | None
    reverse: bool


Outputs = tuple[Tensor, Tensor, Tensor]
"""out (T, B, M) and the last states hn and cn: (B, M) of the piece ``recurrence``, (1, B, M) of the piece
``layer``. Those of a layer are no views, so that callers can detach them in place."""


def with_layer_axis(outputs: Outputs) -> Outputs:
    """The outputs of a recurrence as those of a layer."""
    out, hn, cn = outputs
    return out, torch.stack((hn,)), torch.stack((cn,))


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of a product of x; autocast does not affect float64 or the meta device."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def cell_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the cell state, which is summed over all steps: float32 at least."""
    return torch.float32 if dtype in SIXTEEN_BITS else dtype


def even_sizes(total: int, parts: int) -> list[int]:
    """``total`` divided into ``parts`` sizes that differ by at most one, as ``Tensor.tensor_split`` does.

    Example:
        >>> even_sizes(8, 3)
        [3, 3, 2]
    """
    return [total // parts + (part < total % parts) for part in range(parts)]
