"""The pyramidal recurrent unit: its equations as functions of tensors, and :class:`PRUCell`.

The functions are written to be read and can be differentiated any number of times. They are the
``"reference"`` backend, which every faster backend is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_pru.errors import (
    PRUError,
    check_choice,
    check_dense,
    check_dtype,
    check_flag,
    check_pair,
    check_size,
    check_states,
    check_tensor,
)
from torch_pru.initialize import SCHEMES, initialize
from torch_pru.migrate import migrate_layer
from torch_pru.ops import backends
from torch_pru.ops.native.step import step_of
from torch_pru.ops.spec import LayerCall, LayerSpec, LayerWeights, TransformSpec
from torch_pru.options import UnitOptions, UnitSizes, unit_specs
from torch_pru.parameters import parameter_names, register_parameters
from torch_pru.pooling import DEFAULT_WINDOW, pyramid


def step(x: Tensor, h: Tensor, c: Tensor, weights: LayerWeights, spec: LayerSpec) -> tuple[Tensor, Tensor]:
    """One step of the unit (the paper's section 3.3): x (B, N), h and c (B, M) to the next h and c."""
    h, c = gate(input_gates(x, weights, spec) + context_gates(h, weights, spec), c)
    return project(h, weights), c


def gate(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The gating of an LSTM: gates (B, 4, M) before their activations, c (B, M) to the next h and c."""
    i, f, g, o = gates.unbind(dim=1)  # input, forget, cell, output, as in nn.LSTM
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c).to(o.dtype), c


def project(h: Tensor, weights: LayerWeights) -> Tensor:
    """The state h (…, M); with ``proj_size`` of ``nn.LSTM`` a linear map of it, (…, P)."""
    return F.linear(h, *weights.projection) if weights.projection else h


def input_gates(x: Tensor, weights: LayerWeights, spec: LayerSpec) -> Tensor:
    """What the input x (…, N) contributes to the gates, (…, 4, M): usually a pyramidal transform of it."""
    gates = transform(x, weights.input, spec.input, weights.input_kernels)
    return (gates + x.unsqueeze(-2)).to(gates.dtype) if spec.residual else gates


def context_gates(h: Tensor, weights: LayerWeights, spec: LayerSpec) -> Tensor:
    """What the state h (…, M) contributes, (…, 4, M): usually a grouped transform of it, and the biases."""
    gates = transform(h, weights.context, spec.context, weights.context_kernels)
    bias = weights.bias
    return gates if bias is None else gates + bias.view(4, -1).to(gates.dtype)


def transform(
    x: Tensor, matrices: Sequence[Tensor], spec: TransformSpec, kernels: Sequence[Tensor] = (), gates: int = 4
) -> Tensor:
    """The pyramidal transform (Eq. 2) of x (…, N), once for every gate: (…, gates, M).

    Each level of the pyramid has a matrix of its own; their outputs are concatenated. With one level it is
    the grouped linear transform of x, and with one group, too, a linear transform.
    """
    views = pyramid(x, spec.pooling, spec.windows, kernels)  # x, and x sub-sampled once, twice, ...
    levels = zip(views, spec.matrices_by_level(tuple(matrices)), strict=True)
    return torch.cat([grouped_linear(view, blocks, spec.groups, gates) for view, blocks in levels], dim=-1)


def grouped_linear(x: Tensor, matrices: Sequence[Tensor], groups: int, gates: int = 4) -> Tensor:
    """The grouped linear transform (Eq. 4) of x (…, n), once for every gate: (…, gates, m).

    Args:
        matrices: one matrix (gates·m, n/g) with the rows of all groups; or one matrix per group, where the
            groups differ in size.
        groups: g, the number of equal parts of x, each with weights of its own.
    """
    if len(matrices) == groups:
        parts = zip(x.tensor_split(groups, dim=-1), matrices, strict=True)
        products = [(part @ matrix.t()).unflatten(-1, (gates, -1)) for part, matrix in parts]
        return torch.cat(products, dim=-1)
    [matrix] = matrices
    by_group = matrix.unflatten(0, (gates, groups, -1))  # (gates, g, m/g, n/g)
    return torch.einsum("...gi,kgoi->...kgo", x.unflatten(-1, (groups, -1)), by_group).flatten(-2)


class PRUCell(nn.Module):
    """One step of a pyramidal recurrent unit, in the place of ``nn.LSTMCell``.

    The input goes through a pyramidal transform, the context through a grouped linear transform, and
    their sum through the gates of an LSTM (the paper's section 3.3).

    Args:
        input_size: N.
        hidden_size: M.
        bias: whether both transforms have a bias.
        levels, groups, input_groups, pooling, level_split, pool_window, residual: see :class:`torch_pru.PRU`.
        input_transform, context_transform, init, backend: see :class:`torch_pru.PRU`.
        device, dtype: of the parameters.

    Shape:
        Input (B, N) or (N,); states h and c (B, M) or (M,), zero if not given; the same are returned.

    Attributes:
        weight_ih, weight_hh, bias_ih, bias_hh: the parameters, named and laid out as those of
            ``nn.LSTMCell``; see :mod:`torch_pru.parameters` for several levels and groups.
        spec: the structure of the unit, a :class:`torch_pru.ops.spec.LayerSpec`.

    Example:
        >>> cell = PRUCell(400, 1400)
        >>> h, c = cell(torch.randn(20, 400))
        >>> h.shape
        torch.Size([20, 1400])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        levels: int | str = "auto",
        groups: int | str = "auto",
        input_groups: int = 1,
        pooling: str = "average",
        level_split: str = "halving",
        pool_window: int | Sequence[int] = DEFAULT_WINDOW,
        residual: bool | str = "auto",
        input_transform: str = "pyramidal",
        context_transform: str = "grouped",
        init: str = "authors",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        options = UnitOptions(
            levels,
            groups,
            input_groups,
            pooling,
            level_split,
            pool_window,
            residual,
            input_transform,
            context_transform,
        )
        self.bias = check_flag("bias", bias)
        check_choice("init", init, SCHEMES)
        check_choice("backend", backend, backends.names())
        check_dtype(dtype)
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        sizes = UnitSizes(self.input_size, self.hidden_size, state=self.hidden_size)
        [resolved], [self.spec] = unit_specs(options, [sizes])
        self.init, self.backend = init, backend
        self.levels, self.groups, self.input_groups = resolved.levels, resolved.groups, resolved.input_groups
        self.pooling, self.level_split, self.pool_window = pooling, level_split, resolved.pool_window
        self.input_transform, self.context_transform = input_transform, context_transform
        self.residual = residual
        self._names = parameter_names(self.spec, self.bias)
        register_parameters(self, self.spec, self._names, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, by the scheme ``init``."""
        initialize(self, self.spec, self._names, self.init)

    def weights(self) -> LayerWeights:
        """The parameters as a backend reads them."""
        return LayerWeights.gather(self, self._names)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if hx is not None and (states := self._run_natively(input, hx)) is not None:
            return states
        self._check_shapes(input, hx)
        weights = self.weights()
        like = weights.context[0]
        check_tensor("input", input, like)
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            hx = (input.new_zeros(shape),) * 2
        check_states(hx, {"h": shape, "c": shape}, like)
        h, c = (state.reshape(-1, self.hidden_size) for state in hx)
        x = input.reshape(1, -1, self.input_size)
        call = LayerCall(x, weights, h, c, None, self.spec)
        _, h, c = backends.run("layer", call, requested=self.backend)
        return h.view(shape), c.view(shape)

    def _check_shapes(self, input: Tensor, hx: tuple[Tensor, Tensor] | None) -> None:
        """Raise unless the shapes fit, in the order and the words of ``nn.LSTMCell``."""
        check_dense("input", input)
        if hx is not None:
            check_pair(hx, ("h", "c"))
        tensors = {"input": input} | {f"hx[{index}]": state for index, state in enumerate(hx or ())}
        for name, tensor in tensors.items():
            if tensor.dim() not in (1, 2):
                raise PRUError(f"Expected {name} to be 1D or 2D, got {tensor.dim()}D instead")
        features = input.shape[-1]
        if features != self.input_size:
            raise PRUError(f"input has inconsistent input_size: got {features} expected {self.input_size}")
        for index, state in enumerate(hx or ()):
            size = state.shape[-1]
            if size != self.hidden_size:
                raise PRUError(
                    f"hx: hidden{index} has inconsistent hidden_size: got {size}, expected {self.hidden_size}"
                )
            batch, rows = input.shape[0], state.shape[0]
            if state.dim() == input.dim() == 2 and rows != batch:
                raise PRUError(f"hx: Input batch size {batch} doesn't match hidden{index} batch size {rows}")

    def _run_natively(self, input: Tensor, hx: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        """The step on compiled kernels, where these would be chosen; None where they cannot run it.

        A shortcut: of so few operations, the checks and the choice below would take most of the time.
        """
        if torch.compiler.is_compiling() or not isinstance(hx, (tuple, list)) or len(hx) != 2:
            return None
        if self.backend not in ("auto", "native") or backends.preferred("layer", "cpu") != "native":
            return None
        step, parameters = step_of(self.spec, self.bias), self._parameters
        if step is None:
            return None
        values = [parameters.get(name) for group in self._names for name in group]  # None if parametrized
        return step.run(input, *hx, values)

    def _load_from_state_dict(self, state_dict, prefix, *others) -> None:
        migrate_layer(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        sizes = f"{self.input_size}, {self.hidden_size}"
        return f"{sizes}, levels={self.levels}, groups={self.groups}, residual={self.spec.residual}"
