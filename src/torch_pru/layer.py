"""``PRU``: a stack of pyramidal recurrent units with the contract of ``nn.LSTM``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torch_pru.errors import (
    PRUError,
    check_bool,
    check_choice,
    check_dtype,
    check_flag,
    check_packed,
    check_probability,
    check_size,
    check_states,
    check_tensor,
)
from torch_pru.initialize import SCHEMES, initialize
from torch_pru.lstm import from_lstm, to_lstm
from torch_pru.migrate import migrate_layer
from torch_pru.ops import backends
from torch_pru.ops.dropping import draw_mask
from torch_pru.ops.spec import LayerCall, LayerWeights, product_dtype
from torch_pru.options import UnitOptions, UnitSizes, check_projection, unit_specs
from torch_pru.parameters import ParameterNames, parameter_names, register_parameters
from torch_pru.pooling import DEFAULT_WINDOW

States = tuple[Tensor, Tensor]
MOST_LAYERS = 10_000


class PRU(nn.Module):
    """Layers of pyramidal recurrent units over a sequence, in the place of ``nn.LSTM``.

    Args:
        input_size: N, the features of the input.
        hidden_size: M, the features of the state.
        num_layers: layers on top of each other.
        bias: whether both transforms of a cell have a bias.
        batch_first: whether input and output are (B, T, …) instead of (T, B, …).
        dropout: rate of the dropout on the output of every layer but the last.
        bidirectional: whether each layer also runs backwards; its output is then 2·M wide.
        levels: K, levels of pyramidal transforms. ``"auto"``: two in layers whose input has an even number
            of features, 16 or more; else one.
        groups: g, groups of grouped transforms. ``"auto"``: four, two or one, the most that divide M and
            leave 32 units each. With one level and one group a layer is an LSTM.
        input_groups: groups of the input's level matrices. With ``input_transform="grouped"`` it is
            the number of groups of the input, where 1 means as many as ``groups``.
        pooling: ``"average"``, ``"max"``, ``"skip"`` or ``"convolution"``.
        level_split: ``"halving"`` or ``"equal"``: how the levels share the M outputs.
        pool_window: odd window of the pooling, or one for each level below the first.
        residual: add a layer's input to its gates. ``"auto"``: in layers with a pyramidal input
            transform whose input has M features; ``True``: in every layer; ``False``: in none.
        input_transform, context_transform: ``"linear"``, ``"grouped"`` or ``"pyramidal"``.
        init: ``"authors"``, ``"orthogonal"`` or ``"lstm"``, see :mod:`torch_pru.initialize`.
        weight_drop: DropConnect on the context weights: in training, each is zero with this
            probability, drawn once for a forward pass and the rest scaled up.
        backend: ``"auto"`` or the name of a backend, such as ``"reference"``; see :mod:`torch_pru.ops`.
        device, dtype: of the parameters.
        proj_size: P, less than M: the state h, and so the output, is a linear map of the M units, as in
            ``nn.LSTM``; it runs step by step. 0: none, h has M features.

    Raises:
        PRUError: if an option does not fit the sizes, or has no effect.

    Shape (as ``nn.LSTM``; directions is 1 or 2):
        * input: (T, B, N), (B, T, N) with ``batch_first``, (T, N), or a ``PackedSequence``.
        * h_0, c_0: (num_layers·directions, B, M), without B for (T, N); zero where not given. With
          ``proj_size`` h_0 has P features.
        * output: as the input, with directions·M or directions·P features; a ``PackedSequence`` for one.
        * h_n, c_n: as h_0 and c_0. Under autocast c_n keeps the dtype of a given c_0.

    Attributes:
        weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, …: the parameters, named and laid out as those of
            ``nn.LSTM``; see :mod:`torch_pru.parameters` for several levels and groups.
        levels, groups: the integers that ``"auto"`` was resolved to; a tuple with those of each layer where
            they differ. The other options are attributes, too.
        specs: the structure of each layer and direction, in the order of h_n.
        generator: the ``torch.Generator`` of the weight-drop masks; None, the default, is PyTorch's.
            ``torch.utils.checkpoint`` restores PyTorch's alone: with another a pass that it runs again has
            other masks.

    Example:
        >>> rnn = PRU(400, 1400, num_layers=2, levels=2, groups=4)
        >>> y, (h, c) = rnn(torch.randn(70, 20, 400))
        >>> y.shape, h.shape
        (torch.Size([70, 20, 1400]), torch.Size([2, 20, 1400]))
    """

    generator: torch.Generator | None = None
    mode = "LSTM"  # for code that reads it of ``nn.LSTM``: the state is a pair (h, c)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
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
        weight_drop: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.proj_size = check_projection(proj_size, self.hidden_size)
        self.num_layers = check_size("num_layers", num_layers)
        if self.num_layers > MOST_LAYERS:
            raise PRUError(f"num_layers={num_layers} is too many; use at most {MOST_LAYERS}")
        check_probability("dropout", dropout, one_allowed=True)
        check_probability("weight_drop", weight_drop)
        check_choice("init", init, SCHEMES)
        check_choice("backend", backend, backends.names())
        check_dtype(dtype)
        if dropout > 0 and self.num_layers == 1:
            warnings.warn(
                "dropout acts on the output of every layer but the last, "
                f"so dropout={dropout} has no effect with num_layers=1",
                stacklevel=2,
            )
        self.bias, self.batch_first = check_bool("bias", bias), check_bool("batch_first", batch_first)
        self.dropout, self.bidirectional = float(dropout), check_flag("bidirectional", bidirectional)
        self.weight_drop = float(weight_drop)
        self.pooling, self.level_split = pooling, level_split
        self.residual, self.init, self.backend = residual, init, backend
        self.input_transform, self.context_transform = input_transform, context_transform
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
        state_size = self.proj_size or self.hidden_size
        first = UnitSizes(self.input_size, self.hidden_size, state_size)
        above = first._replace(input=self.directions * state_size)
        resolved, specs = unit_specs(options, [first, *[above] * (self.num_layers - 1)])
        self.input_groups, self.pool_window = resolved[0].input_groups, resolved[0].pool_window
        self.levels = _one_or_all([layer.levels for layer in resolved])
        self.groups = _one_or_all([layer.groups for layer in resolved])
        self.specs = tuple(spec for spec in specs for _ in range(self.directions))
        self._names = self._parameter_names()
        for spec, names in zip(self.specs, self._names, strict=True):
            register_parameters(self, spec, names, device, dtype)
        self.reset_parameters()

    @property
    def directions(self) -> int:
        """2 if the layers also run backwards, else 1."""
        return 2 if self.bidirectional else 1

    def _parameter_names(self) -> tuple[ParameterNames, ...]:
        suffixes = ("", "_reverse")
        return tuple(
            parameter_names(
                spec, self.bias, f"_l{index // self.directions}", suffixes[index % self.directions]
            )
            for index, spec in enumerate(self.specs)
        )

    def weights(self, index: int) -> LayerWeights:
        """The parameters of a layer in one direction as a backend reads them; ``index`` as in h_n."""
        return LayerWeights.gather(self, self._names[index])

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction, as ``nn.LSTM`` has them."""
        return [[getattr(self, name) for group in names for name in group] for names in self._names]

    @property
    def _flat_weights(self) -> list[Tensor]:
        """:attr:`all_weights` in one list. Code that looks at an ``nn.LSTM`` under weight norm reads it."""
        return [weight for layer in self.all_weights for weight in layer]

    @classmethod
    def from_lstm(cls, lstm: nn.LSTM, *, backend: str = "auto") -> PRU:
        """A PRU that computes what ``lstm`` computes: one level, one group, ``residual=False``.

        Example:
            >>> lstm = torch.nn.LSTM(40, 60, num_layers=2, bidirectional=True)
            >>> x = torch.randn(7, 3, 40)
            >>> torch.allclose(PRU.from_lstm(lstm)(x)[0], lstm(x)[0], atol=1e-6)
            True
        """
        return from_lstm(cls, lstm, backend)

    def to_lstm(self) -> nn.LSTM:
        """The ``nn.LSTM`` that computes the same, with copies of the weights; see :meth:`from_lstm`.

        It runs wherever an ``nn.LSTM`` runs: TorchScript, dynamic quantization, cuDNN, mobile converters. Its
        matrices are dense, so that it has more parameters. ``weight_drop`` is not carried over.

        Raises:
            PRUError: if a transform is not linear (``pooling`` is ``"max"`` or ``"convolution"``).

        Example:
            >>> pru = PRU(40, 60, num_layers=2, levels=2, groups=4)
            >>> x = torch.randn(7, 3, 40)
            >>> torch.allclose(pru.to_lstm()(x)[0], pru(x)[0], atol=1e-6)
            True
        """
        return to_lstm(self)

    def _load_from_state_dict(self, state_dict, prefix, *others) -> None:
        migrate_layer(state_dict, prefix, self.directions)
        if f"{prefix}weight_ih_l0" in state_dict and "weight_ih_l0" not in self._names[0].input:
            warnings.warn(
                "state_dict holds weights of an nn.LSTM, which only a PRU with levels=1, groups=1 and "
                "residual=False can load; see PRU.from_lstm(lstm)",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def reset_parameters(self) -> None:
        """Draw all weights anew, by the scheme ``init``."""
        for spec, names in zip(self.specs, self._names, strict=True):
            initialize(self, spec, names, self.init)

    @property
    def qconfig(self) -> None:
        """Always None: ``torch.ao.quantization`` sets it, but cannot quantize a PRU."""
        return None

    @qconfig.setter
    def qconfig(self, value: object) -> None:
        warnings.warn(
            "torch.ao.quantization skips a PRU; replace it by the nn.LSTM that PRU.to_lstm() returns before "
            "quantizing the model",
            stacklevel=2,
        )

    @qconfig.deleter
    def qconfig(self) -> None:
        pass

    def flatten_parameters(self) -> None:
        """Does nothing: the weights need no packing. Here because ``nn.LSTM`` has it."""

    @overload
    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]: ...

    @overload
    def forward(self, input: PackedSequence, hx: States | None = None) -> tuple[PackedSequence, States]: ...

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        if isinstance(input, torch.fx.Proxy):  # a leaf of symbolic traces, as nn.LSTM is
            tracer = input.tracer
            path = tracer.path_of_module(self)
            return tracer.create_proxy("call_module", path, (input, hx), {})
        weights = [self.weights(index) for index in range(len(self.specs))]
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, weights)
        like = weights[0].context[0]
        self._check_input(input, like)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        if hx is not None:
            self._check_states(hx, x.shape[1], batched, like)
            hx = hx if batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        y, (h, c) = self._run(x, hx, None, weights)
        if not batched:
            return y.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return (y.transpose(0, 1) if self.batch_first else y), (h, c)

    def _forward_packed(
        self, packed: PackedSequence, hx: States | None, weights: list[LayerWeights]
    ) -> tuple[PackedSequence, States]:
        """Run in the packed order, longest first; states are in the user's order."""
        like = weights[0].context[0]
        check_tensor("RNN input", packed.data, like)
        if packed.data.dim() != 2:
            shape = tuple(packed.data.shape)
            raise PRUError(f"packed input has data of shape {shape}; expected (steps, {self.input_size})")
        check_packed(packed)
        self._check_input(packed.data, like)
        order, back = packed.sorted_indices, packed.unsorted_indices
        x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))
        if hx is not None:
            self._check_states(hx, x.shape[1], True, like)
            hx = hx if order is None else (hx[0].index_select(1, order), hx[1].index_select(1, order))
        y, (h, c) = self._run(x, hx, lengths.to(x.device), weights)
        if back is not None:
            h, c = h.index_select(1, back), c.index_select(1, back)
        data = pack_padded_sequence(y, lengths).data
        return PackedSequence(data, packed.batch_sizes, order, back), (h, c)

    def _run(
        self, x: Tensor, hx: States | None, lengths: Tensor | None, weights: list[LayerWeights]
    ) -> tuple[Tensor, States]:
        """All layers over x (T, B, N); states (num_layers·directions, B, M)."""
        states: list[States] = []
        outputs: list[Tensor] = []
        for index, (spec, mine) in enumerate(zip(self.specs, weights, strict=True)):
            direction = index % self.directions
            if direction == 0 and index > 0:
                x = F.dropout(_side_by_side(outputs), self.dropout, self.training)
                outputs = []
            if index > 0:  # the first was compared with the user's input
                check_tensor(f"input of {self._names[index].context[0]}", x, mine.context[0])
            h, c = (None, None) if hx is None else (hx[0][index], hx[1][index])
            if self.training and self.weight_drop > 0:
                mine = mine._replace(context=self._dropped(mine.context))
            call = LayerCall(x, mine, h, c, lengths, spec, reverse=direction == 1)
            y, h, c = backends.run("layer", call, requested=self.backend)
            outputs.append(y)
            states.append((h, c))
        if len(states) == 1:
            return _side_by_side(outputs), states[0]
        h, c = (torch.cat(state) for state in zip(*states, strict=True))
        return _side_by_side(outputs), (h, c)

    def backend_for(self, input: Tensor) -> tuple[str, str | None]:
        """The backend that would run this layer on ``input``, and why it is not the fastest one.

        Of several layers it is the slowest's. The reason is None for the backend with the highest priority.

        Example:
            >>> PRU(8, 64, backend="reference").backend_for(torch.randn(20, 2, 8))
            ('reference', None)
        """
        x = input.unsqueeze(1) if input.dim() == 2 else input
        x = x.transpose(0, 1) if self.batch_first and input.dim() == 3 else x
        choices = []
        for index, spec in enumerate(self.specs):
            read = x[..., :1].expand(-1, -1, spec.input_size)
            call = LayerCall(read, self.weights(index), None, None, None, spec)
            choices.append(backends.choose("layer", call, requested=self.backend))
        choice = next((choice for choice in choices if choice.reason is not None), choices[0])
        return choice.name, choice.reason

    def _dropped(self, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The context weights under this pass's DropConnect mask.

        A single matrix goes to the recurrence as it is, and comes in the dtype that will be computed in.
        """
        keep = 1 - self.weight_drop
        masks = [draw_mask(weight.shape, keep, weight.device, self.generator) for weight in weights]
        dtype = product_dtype(weights[0]) if len(weights) == 1 else weights[0].dtype
        pairs = zip(weights, masks, strict=True)
        return tuple(backends.run("drop", weight, mask, keep, dtype) for weight, mask in pairs)

    def _check_input(self, x: Tensor, like: Tensor) -> None:
        check_tensor("RNN input", x, like)
        shape = x.shape
        if len(shape) not in (2, 3):
            raise PRUError(f"Expected input to be 2D (unbatched) or 3D, got {len(shape)}D instead")
        if shape[-1] != self.input_size:
            raise PRUError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {shape[-1]}"
            )
        time = 1 if self.batch_first and len(shape) == 3 else 0
        if shape[time] == 0:
            raise PRUError(
                f"Expected sequence length to be larger than 0 in RNN, got input of shape {tuple(shape)}"
            )

    def _check_states(self, hx: object, batch: int, batched: bool, like: Tensor) -> None:
        rows = (len(self.specs), batch) if batched else (len(self.specs),)
        h, c = self.proj_size or self.hidden_size, self.hidden_size
        check_states(hx, {"h_0": (*rows, h), "c_0": (*rows, c)}, like)

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        parts += [f"proj_size={self.proj_size}"] if self.proj_size else []
        defaults = inspect.signature(PRU).parameters
        hidden = {"self", "input_size", "hidden_size", "proj_size", "residual", "device", "dtype"}
        always = {"levels", "groups"}  # what makes it a PRU
        for name in defaults:
            if name in hidden:
                continue
            value = getattr(self, name)
            if name in always or value != defaults[name].default:
                parts.append(f"{name}={value!r}")
        residual = _one_or_all([spec.residual for spec in self.specs[:: self.directions]])
        parts.append(f"residual={residual!r}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # one line, as nn.LSTM


def _one_or_all(values: list[Any]) -> Any:
    """The value that all layers share, or a tuple with each layer's."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _side_by_side(outputs: list[Tensor]) -> Tensor:
    """The outputs (T, B, M) of a layer's directions as one."""
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
