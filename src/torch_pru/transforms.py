"""The transforms of the paper's section 3 as modules: pyramidal (Eq. 2, 3) and grouped linear (Eq. 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torch_pru.errors import PRUError, check_dtype, check_flag, check_tensor
from torch_pru.initialize import assign
from torch_pru.ops import backends
from torch_pru.ops.folding import dense_matrix
from torch_pru.ops.spec import TransformSpec
from torch_pru.options import grouped_spec, pyramidal_spec, split_levels
from torch_pru.parameters import kernel_names, matrix_names, register_parameter
from torch_pru.pooling import DEFAULT_WINDOW, pyramid

__all__ = ["GroupedLinear", "PyramidalTransform", "split_levels"]


class _Transform(nn.Module):
    """What both transforms share: parameters for a :class:`TransformSpec`, and its computation."""

    bias: nn.Parameter | None

    def __init__(
        self,
        spec: TransformSpec,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_dtype(dtype)
        self.spec = spec
        self.in_features, self.out_features, self.groups = spec.in_features, spec.out_features, spec.groups
        self._matrix_names, self._kernel_names = matrix_names("weight", spec), kernel_names("pool", spec)
        shapes: list[tuple[str, tuple[int, ...]]] = [
            *zip(self._matrix_names, spec.matrix_shapes(gates=1), strict=True),
            *([("bias", (spec.out_features,))] if check_flag("bias", bias) else []),
            *zip(self._kernel_names, ((window,) for window in spec.windows), strict=False),
        ]
        for name, shape in shapes:
            register_parameter(self, name, shape, device, dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw each matrix as ``nn.Linear`` does, and learned pooling kernels from N(0, 1)."""
        bounds = []
        for name in self._matrix_names:
            weight = getattr(self, name)
            bounds.append(1 / math.sqrt(weight.shape[1]))
            assign(self, name, torch.empty_like(weight).uniform_(-bounds[-1], bounds[-1]))
        if self.bias is not None:
            sizes = [shape[0] for shape in self.spec.matrix_shapes(gates=1)]
            parts = [
                torch.empty(size).uniform_(-bound, bound) for size, bound in zip(sizes, bounds, strict=True)
            ]
            assign(self, "bias", torch.cat(parts))
        for name in self._kernel_names:
            assign(self, name, torch.randn_like(getattr(self, name)))

    def forward(self, x: Tensor) -> Tensor:
        matrices, kernels = (
            [getattr(self, name) for name in names] for names in (self._matrix_names, self._kernel_names)
        )
        check_tensor("input", x, matrices[0])
        if x.shape[-1:] != (self.in_features,):
            raise PRUError(
                f"input has shape {tuple(x.shape)}; expected (…, N) with N of in_features={self.in_features}"
            )
        y = backends.run("input_gates", x, matrices, kernels, spec=self.spec, gates=1).squeeze(-2)
        bias = self.bias
        return y if bias is None else y + bias.to(y.dtype)

    def dense_weight(self) -> Tensor:
        """The one matrix (M, N) that does the same; raises if the pooling is not linear."""
        return dense_matrix([getattr(self, name) for name in self._matrix_names], self.spec)


class GroupedLinear(_Transform):
    """Grouped linear transform: g independent linear maps, each of 1/g of the features (Eq. 4).

    With ``groups=1`` it is a linear transform.

    Args:
        in_features: N, a multiple of ``groups``.
        out_features: M, a multiple of ``groups``.
        groups: g.
        bias: whether to add a bias.
        device, dtype: of the parameters.

    Shape:
        Input (…, N); output (…, M).

    Attributes:
        weight: (M, N/g), as the weight of a grouped convolution.
        bias: (M,) or None.

    Example:
        >>> GroupedLinear(400, 1200, groups=4)(torch.randn(20, 400)).shape
        torch.Size([20, 1200])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int = 4,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grouped_spec(in_features, out_features, groups), bias, device, dtype)

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.in_features}, {self.out_features}, groups={self.groups}{bias}"


class PyramidalTransform(_Transform):
    """Pyramidal transform: K sub-sampled views of the input, a weight matrix for each (Eq. 2).

    Level 1 is the input; level k is level k-1 sub-sampled by 2 (Eq. 3). The levels' outputs are
    concatenated. With ``levels=1`` it is a linear transform.

    Args:
        in_features: N, a multiple of 2^(levels-1).
        out_features: M, divided among the levels by ``level_split``.
        levels: K.
        bias: whether to add a bias.
        groups: groups of every level's matrix. Where a level's sizes do not divide, its groups differ
            by one feature.
        pooling: how a level comes from the one before. ``"average"``: mean of a window, zero
            padded, the padding counted. ``"max"``: its maximum. ``"skip"``: every second element.
            ``"convolution"``: one learned kernel per level, zero padded, and tanh.
        level_split: ``"halving"`` gives level i (from 0) ceil(M / 2^(i+1)) outputs and what is left
            to level 0, as in the paper's tables; ``"equal"`` gives M/K to each, as in its text.
        pool_window: odd size of the window, or one for each level below the first.
        device, dtype: of the parameters.

    Shape:
        Input (…, N); output (…, M).

    Attributes:
        weight_k1, weight_k2, …: the matrix (m_k, n_k) of each level; ``weight`` where there is only one.
        bias: (M,) or None.
        pool_k2, …: with ``pooling="convolution"``, the kernel (window,) that makes level 2, …
        level_sizes: the number of outputs of each level.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        spec = pyramidal_spec(
            in_features,
            out_features,
            levels,
            groups=groups,
            pooling=pooling,
            level_split=level_split,
            pool_window=pool_window,
        )
        super().__init__(spec, bias, device, dtype)
        self.levels, self.pooling, self.level_split = spec.levels, pooling, level_split
        self.level_sizes, self.windows = spec.level_sizes, spec.windows

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """The views of x (…, N) at every level: (…, N), (…, N/2), …"""
        return pyramid(x, self.pooling, self.windows, [getattr(self, name) for name in self._kernel_names])

    def extra_repr(self) -> str:
        parts = [f"{self.in_features}, {self.out_features}, levels={self.levels}"]
        if self.levels > 1:
            parts += [f"pooling={self.pooling!r}", f"level_split={self.level_split!r}"]
            parts += [f"pool_window={self.windows}"] if self.pooling != "skip" else []
        return ", ".join(parts)
