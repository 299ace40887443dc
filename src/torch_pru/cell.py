"""One pyramidal recurrent unit: its two transforms, and one step or many of its recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_pru.errors import (
    PRUError,
    check_choice,
    check_pair,
    check_positive,
    check_tensor,
    in_words_of,
)
from torch_pru.initialize import SCHEMES, initialize
from torch_pru.ops import BACKENDS, lstm, or_zeros, recurrence, reference
from torch_pru.ops.products import concatenate_units, gate_linear
from torch_pru.pooling import DEFAULT_WINDOW, POOLINGS
from torch_pru.transforms import LEVEL_SPLITS, GroupedLinear, PyramidalTransform

TRANSFORMS = ("linear", "grouped", "pyramidal")


class PRUCell(nn.Module):
    """One step of a pyramidal recurrent unit, in the place of ``nn.LSTMCell``.

    The input goes through a pyramidal transform, the context through a grouped linear transform, and
    their sum through the gates of an LSTM (the paper's section 3.3).

    Args:
        input_size: N.
        hidden_size: M.
        bias: whether both transforms have a bias.
        levels, pooling, level_split, pool_window: of pyramidal transforms, see
            :class:`PyramidalTransform`.
        groups: g, of grouped transforms.
        input_groups: groups of the input's level matrices. With ``input_transform="grouped"`` it is
            the number of groups of the input, where 1 means as many as ``groups``.
        residual: add the input to all four gates. ``"auto"``: where the input transform is pyramidal
            and N = M; ``True``: N = M is demanded; ``False``: never.
        input_transform, context_transform: ``"linear"``, ``"grouped"`` or ``"pyramidal"``.
        init: how weights are first drawn, see :func:`torch_pru.initialize.initialize`.
        backend: how the recurrence is run, see :mod:`torch_pru.ops`.

    Shape:
        Input (B, N) or (N,); states h and c (B, M) or (M,), zero where not given; the same out.

    Attributes:
        input_transform: maps (…, N) to (…, 4, M); gates in ``nn.LSTM``'s order: input, forget,
            content, output.
        context_transform: maps (…, M) to (…, 4, M).
        residual: whether the input is added to the gates.

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
        levels: int = 2,
        groups: int = 4,
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
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "levels": levels, "groups": groups}
        for name, size in (sizes | {"input_groups": input_groups}).items():
            check_positive(name, size)
        check_choice("pooling", pooling, POOLINGS)
        check_choice("level_split", level_split, LEVEL_SPLITS)
        check_choice("input_transform", input_transform, TRANSFORMS)
        check_choice("context_transform", context_transform, TRANSFORMS)
        check_choice("init", init, SCHEMES)
        check_choice("backend", backend, BACKENDS)
        if input_transform == "linear" and input_groups != 1:
            raise PRUError(f"input_groups={input_groups} needs input_transform='grouped' or 'pyramidal'")
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self.backend = backend
        self.residual = _wants_residual(residual, input_size, hidden_size, input_transform)
        pyramid = {
            "levels": levels,
            "pooling": pooling,
            "level_split": level_split,
            "pool_window": pool_window,
        }
        shared = {"bias": bias, "gates": 4, "device": device, "dtype": dtype}

        def build(
            kind: str, features: int, groups: int, level_groups: int
        ) -> PyramidalTransform | GroupedLinear:
            options: dict[str, Any] = {"groups": 1 if kind == "linear" else groups} | shared
            if kind == "pyramidal":
                return PyramidalTransform(
                    features, hidden_size, **options | pyramid | {"groups": level_groups}
                )
            return GroupedLinear(features, hidden_size, **options)

        many, named = (groups, "groups") if input_groups == 1 else (input_groups, "input_groups")
        with in_words_of(in_features="input_size", out_features="hidden_size", groups=named):
            self.input_transform = build(input_transform, input_size, many, input_groups)
        with in_words_of(in_features="hidden_size", out_features="hidden_size"):
            self.context_transform = build(context_transform, hidden_size, groups, 1)
        self.init = init
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew, by the scheme the cell was made with."""
        initialize(self, self.init)
        for transform in (self.input_transform, self.context_transform):
            if isinstance(transform, PyramidalTransform):
                transform.reset_kernels()

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        self.check_hooks()
        check_tensor("input", input, self.some_weight)
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            size = self.input_size
            raise PRUError(f"input has shape {tuple(input.shape)}; expected (B, {size}) or ({size},)")
        shape = (*input.shape[:-1], self.hidden_size)
        if hx is None:
            hx = (input.new_zeros(shape),) * 2
        self.check_states(hx, shape, ("h", "c"))
        h, c = (state.reshape(-1, self.hidden_size) for state in hx)
        _, h, c = self.recur(self.input_gates(input.reshape(1, -1, self.input_size)), h, c)
        return h.view(shape), c.view(shape)

    def check_hooks(self) -> None:
        """Refuse hooks that would renew a weight before its use: here, what holds a weight is not called."""
        for transform in (self.input_transform, self.context_transform):
            kernels = [transform.kernels] if isinstance(transform, PyramidalTransform) else []
            for holder in (*transform.matrices(), *kernels):
                if holder._forward_pre_hooks:
                    [name] = [name for name, part in self.named_modules() if part is holder]
                    raise PRUError(
                        f"{name} of a PRU has a forward pre-hook, which would never be called; use "
                        "torch.nn.utils.parametrize in place of torch.nn.utils.prune or the older weight_norm"
                    )

    @property
    def some_weight(self) -> Tensor:
        """A weight, for the device and dtype of all of them; see :attr:`GroupedLinear.stored_weight`."""
        return self.context_transform.matrices()[0].stored_weight

    def check_states(self, hx: object, shape: tuple[int, ...], names: tuple[str, str]) -> None:
        """Refuse ``hx`` unless it is a pair of states of this shape."""
        check_pair("hx", hx, names)
        weight = self.some_weight
        for name, state in zip(names, hx, strict=True):  # type: ignore[call-overload]
            check_tensor(f"hx: {name}", state, weight)
            if state.shape != shape:
                raise PRUError(f"hx: {name} has shape {tuple(state.shape)}; expected {shape}")

    def input_gates(self, x: Tensor) -> Tensor:
        """What the input x (…, N) contributes to the gates, but for its bias: (…, 4, M)."""
        return self.input_transform.product(x, self.residual)

    def recur(
        self,
        gates: Tensor,
        h0: Tensor | None,
        c0: Tensor | None,
        lengths: Tensor | None = None,
        *,
        reverse: bool = False,
        context_weights: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence over :meth:`input_gates` (T, B, 4, M); see :func:`torch_pru.ops.recurrence`.

        ``context_weights`` stand in for the weights of the context transform's matrices. The biases of both
        transforms are added here: they have one gradient, which is then summed up once.
        """
        transform = self.context_transform
        weights = context_weights or [matrix.weight for matrix in transform.matrices()]
        bias, input_bias = transform.dense_bias(), self.input_transform.dense_bias()
        if bias is not None and input_bias is not None:
            bias = bias + input_bias
        if not transform.is_linear:
            return self._scan(gates, weights, bias, h0, c0, lengths, reverse)
        weight = weights[0]
        if isinstance(transform, PyramidalTransform):
            weight = transform.dense_weight(weights).unsqueeze(0)  # one group, all of it
        return recurrence(gates, weight, bias, h0, c0, lengths, reverse=reverse, backend=self.backend)

    @property
    def is_linear(self) -> bool:
        """Whether both transforms are linear maps: then the unit is an LSTM, see :meth:`as_lstm`."""
        return self.input_transform.is_linear and self.context_transform.is_linear

    def as_lstm(self, context_weights: Sequence[Tensor] | None = None) -> lstm.Weights:
        """The weights of the LSTM that computes the same; ``context_weights`` as in :meth:`recur`."""
        weight = self.input_transform.dense_weight()
        if self.residual:
            weight = weight + torch.eye(self.hidden_size, dtype=weight.dtype, device=weight.device)
        context = self.context_transform.dense_weight(context_weights)
        biases = [self.input_transform.dense_bias(), self.context_transform.dense_bias()]
        rows = 4 * self.hidden_size
        return lstm.Weights(
            weight.reshape(rows, -1),
            context.reshape(rows, -1),
            tuple(bias.reshape(rows) for bias in biases if bias is not None),
        )

    def _scan(self, gates, weights, bias, h0, c0, lengths, reverse):
        """A context that is no linear map of h has no fast path: step by step."""
        if self.backend not in ("auto", "reference"):
            raise PRUError(
                f"backend={self.backend!r} runs linear contexts only, and context_transform='pyramidal' with "
                f"pooling={self.context_transform.pooling!r} is not linear; use backend='auto'"
            )
        gates = gates if bias is None else gates + bias.to(gates.dtype)
        pyramid = self.context_transform.pyramid

        def context(h: Tensor) -> Tensor:
            levels = zip(pyramid(h), weights, strict=True)
            return concatenate_units([gate_linear(view, weight) for view, weight in levels]).to(gates.dtype)

        return reference.scan(gates, context, *or_zeros(gates, h0, c0), lengths, reverse=reverse)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, residual={self.residual}"


def _wants_residual(residual: bool | str, input_size: int, hidden_size: int, input_transform: str) -> bool:
    if residual == "auto":
        return input_transform == "pyramidal" and input_size == hidden_size
    if not isinstance(residual, bool):
        raise PRUError(f"residual={residual!r} is not known; use 'auto', True or False")
    if residual and input_size != hidden_size:
        raise PRUError(
            f"residual=True adds the input to the gates, but {input_size} features go into "
            f"hidden_size={hidden_size}; use equal sizes, or residual='auto'"
        )
    return residual
