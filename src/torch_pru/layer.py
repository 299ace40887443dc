"""``PRU``: a stack of pyramidal recurrent units with the contract of ``nn.LSTM``."""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from torch_pru.cell import PRUCell
from torch_pru.errors import PRUError, check_bool, check_positive, check_probability, check_tensor
from torch_pru.ops import lstm
from torch_pru.ops.dropping import draw_mask, drop
from torch_pru.ops.products import SIXTEEN_BITS, product_dtype
from torch_pru.pooling import DEFAULT_WINDOW

States = tuple[Tensor, Tensor]

ROWS_AT_ONCE = 1400  # steps times batch: what a CPU takes in one stretch


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
        levels: K, levels of pyramidal transforms; like the other settings of a transform, it says nothing
            to a layer that has no such transform.
        groups: g, groups of grouped transforms.
        input_groups: groups of the input's level matrices. With ``input_transform="grouped"`` it is
            the number of groups of the input, where 1 means as many as ``groups``.
        pooling: ``"average"``, ``"max"``, ``"skip"`` or ``"convolution"``.
        level_split: ``"halving"`` or ``"equal"``: how the levels share the M outputs.
        pool_window: odd window of the pooling, or one for each level below the first.
        residual: add a layer's input to its gates. ``"auto"``: in layers with a pyramidal input
            transform whose input has M features; ``True``: demanded of every layer; ``False``: never.
        input_transform, context_transform: ``"linear"``, ``"grouped"`` or ``"pyramidal"``.
        init: ``"authors"``, ``"orthogonal"`` or ``"lstm"``, see :mod:`torch_pru.initialize`.
        weight_drop: DropConnect on the context weights: in training, each is zero with this
            probability, drawn once for a forward pass and the rest scaled up.
        backend: ``"auto"``, ``"reference"``, ``"loop"`` or ``"cuda"``, see :mod:`torch_pru.ops`.
        device, dtype: of the parameters.
        proj_size: of ``nn.LSTM``, refused: anything but 0 is an error.

    Shape (as ``nn.LSTM``; directions is 1 or 2):
        * input: (T, B, N), (B, T, N) with ``batch_first``, (T, N), or a ``PackedSequence``.
        * h_0, c_0: (num_layers·directions, B, M), without B for (T, N); zero where not given.
        * output: as the input, with directions·M features; a ``PackedSequence`` for one.
        * h_n, c_n: as h_0 and c_0. Under autocast c_n keeps the dtype of a given c_0.

    Attributes:
        cells: one :class:`PRUCell` a layer and direction, in the order of h_n. Hooks on a cell are not
            called: the layer runs all its steps at once, not the cell step by step.
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
        weight_drop: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        proj_size: int = 0,
    ) -> None:
        super().__init__()
        if proj_size != 0:
            raise PRUError(f"proj_size={proj_size!r} is not offered by PRU; use 0 and a narrower hidden_size")
        check_positive("num_layers", num_layers)
        check_bool("batch_first", batch_first)
        check_bool("bidirectional", bidirectional)
        check_probability("dropout", dropout, one_allowed=True)
        check_probability("weight_drop", weight_drop)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout acts on the output of every layer but the last, "
                f"so dropout={dropout} has no effect with num_layers=1",
                stacklevel=2,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout, self.bidirectional = (
            bias,
            batch_first,
            float(dropout),
            bidirectional,
        )
        self.weight_drop, self.proj_size = float(weight_drop), proj_size
        self.options: dict[str, Any] = {
            "levels": levels,
            "groups": groups,
            "input_groups": input_groups,
            "pooling": pooling,
            "level_split": level_split,
            "pool_window": pool_window,
            "residual": residual,
            "input_transform": input_transform,
            "context_transform": context_transform,
            "init": init,
            "backend": backend,
        }
        self.cells = nn.ModuleList(
            self._build_cell(layer, device, dtype)
            for layer in range(num_layers)
            for _ in range(self.directions)
        )

    @property
    def directions(self) -> int:
        """2 where the layers also run backwards, else 1."""
        return 2 if self.bidirectional else 1

    def _build_cell(self, layer: int, device: Any, dtype: Any) -> PRUCell:
        reads = self.input_size if layer == 0 else self.directions * self.hidden_size
        try:
            return PRUCell(reads, self.hidden_size, self.bias, **self.options, device=device, dtype=dtype)
        except PRUError as error:
            if layer == 0:
                raise
            raise PRUError(f"layer {layer}, which reads layer {layer - 1}: {error}") from None

    @classmethod
    @torch.no_grad()
    def from_lstm(cls, lstm: nn.LSTM, *, backend: str = "auto") -> PRU:
        """A PRU that computes what ``lstm`` computes: one level, one group, no residual.

        Example:
            >>> lstm = torch.nn.LSTM(40, 60, num_layers=2, bidirectional=True)
            >>> x = torch.randn(7, 3, 40)
            >>> torch.allclose(PRU.from_lstm(lstm)(x)[0], lstm(x)[0], atol=1e-6)
            True
        """
        if not isinstance(lstm, nn.LSTM):
            raise PRUError(f"lstm is a {type(lstm).__name__}; expected an nn.LSTM")
        some_weight = next(lstm.parameters())
        pru = cls(
            lstm.input_size,
            lstm.hidden_size,
            lstm.num_layers,
            lstm.bias,
            lstm.batch_first,
            lstm.dropout,
            lstm.bidirectional,
            levels=1,
            groups=1,
            residual=False,
            init="lstm",
            backend=backend,
            device="meta",  # no weights to draw
            dtype=some_weight.dtype,
            proj_size=lstm.proj_size,
        ).to_empty(device=some_weight.device)
        for index, weights in enumerate(lstm.all_weights):
            cell = pru._cell(index)
            (level,), (context,) = cell.input_transform.matrices(), cell.context_transform.matrices()
            ours = [p for p in (level.weight, context.weight, level.bias, context.bias) if p is not None]
            for parameter, weight in zip(ours, weights, strict=True):
                parameter.copy_(weight.view_as(parameter)).requires_grad_(weight.requires_grad)
        return pru.train(lstm.training)

    def _load_from_state_dict(self, state_dict, prefix, *others) -> None:
        if f"{prefix}weight_ih_l0" in state_dict:
            warnings.warn(
                "state_dict holds weights of an nn.LSTM, which a PRU cannot load; use PRU.from_lstm(lstm)",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def reset_parameters(self) -> None:
        """Draw all weights anew, by the scheme the layers were made with."""
        for index in range(len(self.cells)):
            self._cell(index).reset_parameters()

    def flatten_parameters(self) -> None:
        """Does nothing: the weights need no packing. Here because ``nn.LSTM`` has it."""

    @overload
    def forward(self, input: Tensor, hx: States | None = None) -> tuple[Tensor, States]: ...

    @overload
    def forward(self, input: PackedSequence, hx: States | None = None) -> tuple[PackedSequence, States]: ...

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_input(input)
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        if hx is not None:
            self._check_states(hx, x.shape[1], batched)
            hx = hx if batched else (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
        y, (h, c) = self._run(x, hx, lengths=None)
        if not batched:
            return y.squeeze(1), (h.squeeze(1), c.squeeze(1))
        return (y.transpose(0, 1) if self.batch_first else y), (h, c)

    def _forward_packed(self, packed: PackedSequence, hx: States | None) -> tuple[PackedSequence, States]:
        """Run in the packed order, longest first; states come and go in the user's order."""
        check_tensor("input", packed.data, self._cell(0).some_weight)
        if packed.data.dim() != 2:
            shape = tuple(packed.data.shape)
            raise PRUError(f"packed input has data of shape {shape}; expected (steps, {self.input_size})")
        _check_packed(packed)
        self._check_input(packed.data)
        order, back = packed.sorted_indices, packed.unsorted_indices
        x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes))
        if hx is not None:
            self._check_states(hx, x.shape[1], batched=True)
            hx = hx if order is None else (hx[0].index_select(1, order), hx[1].index_select(1, order))
        y, (h, c) = self._run(x, hx, lengths)
        if back is not None:
            h, c = h.index_select(1, back), c.index_select(1, back)
        data = pack_padded_sequence(y, lengths).data
        return PackedSequence(data, packed.batch_sizes, order, back), (h, c)

    def _run(self, x: Tensor, hx: States | None, lengths: Tensor | None) -> tuple[Tensor, States]:
        """All layers over x (T, B, N); states (num_layers·directions, B, M)."""
        states: list[States] = []
        outputs: list[Tensor] = []
        for index, cell in enumerate(self.cells):
            assert isinstance(cell, PRUCell)
            direction = index % self.directions
            if direction == 0 and index > 0:
                x = F.dropout(_side_by_side(outputs), self.dropout, self.training)
                outputs = []
            if index > 0:  # the first was compared with the user's input
                check_tensor(f"input of cells[{index}]", x, cell.some_weight)
            before = (None, None) if hx is None else (hx[0][index], hx[1][index])
            y, h, c = self._run_cell(cell, x, before, lengths, reverse=direction == 1)
            outputs.append(y)
            states.append((h, c))
        if len(states) == 1:  # nothing to put together
            return y, (h.unsqueeze(0), c.unsqueeze(0))
        h, c = (torch.stack(state) for state in zip(*states, strict=True))
        return _side_by_side(outputs), (h, c)

    def _run_cell(
        self,
        cell: PRUCell,
        x: Tensor,
        before: tuple[Tensor | None, Tensor | None],
        lengths: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer in one direction over x (T, B, N): output (T, B, M) and last states (B, M)."""
        cell.check_hooks()
        weights = self._dropped_weights(cell) if self.training and self.weight_drop > 0 else None
        h, c = before
        if _is_quicker_as_lstm(cell, x):
            return lstm.run(x, h, c, cell.as_lstm(weights), lengths, reverse)
        outputs = []
        for part in _in_parts(cell, x, lengths, reverse):
            gates = cell.input_gates(part)
            y, h, c = cell.recur(gates, h, c, lengths, reverse=reverse, context_weights=weights)
            outputs.append(y)
        assert h is not None
        assert c is not None
        if len(outputs) == 1:
            return outputs[0], h, c
        return torch.cat(outputs[::-1] if reverse else outputs), h, c

    def _cell(self, index: int) -> PRUCell:
        cell = self.cells[index]
        assert isinstance(cell, PRUCell)
        return cell

    def _dropped_weights(self, cell: PRUCell) -> list[Tensor]:
        """The context weights of a cell under this pass's DropConnect mask.

        A single matrix goes to the recurrence as it is, and comes in the dtype that will be computed in.
        """
        keep = 1 - self.weight_drop
        weights = [matrix.weight for matrix in cell.context_transform.matrices()]
        masks = [draw_mask(weight.shape, keep, weight.device, self.generator) for weight in weights]
        dtype = product_dtype(weights[0]) if len(weights) == 1 else weights[0].dtype
        return [drop(weight, mask, keep, dtype) for weight, mask in zip(weights, masks, strict=True)]

    def _check_input(self, x: Tensor) -> None:
        check_tensor("input", x, self._cell(0).some_weight)
        shape = x.shape
        if len(shape) not in (2, 3):
            raise PRUError(f"input has {len(shape)} dimensions; expected 2 (unbatched) or 3")
        if shape[-1] != self.input_size:
            raise PRUError(f"input has {shape[-1]} features; expected input_size={self.input_size}")
        time = 1 if self.batch_first and len(shape) == 3 else 0
        if shape[time] == 0:
            raise PRUError(
                f"input of shape {tuple(shape)} has sequences of length 0; expected at least one step"
            )

    def _check_states(self, hx: object, batch: int, batched: bool) -> None:
        rows, size = len(self.cells), self.hidden_size
        shape = (rows, batch, size) if batched else (rows, size)
        self._cell(0).check_states(hx, shape, ("h_0", "c_0"))

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        plain = ("num_layers", "bias", "batch_first", "dropout", "bidirectional", "weight_drop")
        settings = {name: getattr(self, name) for name in plain} | self.options
        defaults = inspect.signature(PRU).parameters
        shown = {"levels", "groups"}  # what makes it a PRU is always said
        parts += [
            f"{name}={value!r}"
            for name, value in settings.items()
            if name != "residual" and (name in shown or value != defaults[name].default)
        ]
        layers = [layer for layer in range(self.num_layers) if self._cell(layer * self.directions).residual]
        parts.append(f"residual in layers {layers}" if layers else "no residual")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # one line, as nn.LSTM


def _check_packed(packed: PackedSequence) -> None:
    """Raise unless the fields of ``packed`` fit together: PyTorch's native code relies on it."""
    data, sizes = packed.data, packed.batch_sizes
    if not isinstance(sizes, Tensor) or sizes.dtype != torch.int64 or sizes.dim() != 1 or not sizes.is_cpu:
        raise PRUError("packed input: batch_sizes must be a one-dimensional int64 tensor on the CPU")
    steps = sizes.tolist()
    if not steps or steps[-1] < 1 or any(now < later for now, later in itertools.pairwise(steps)):
        raise PRUError(
            f"packed input: batch_sizes {_shortened(steps)} must be positive and must not increase"
        )
    if sum(steps) != data.shape[0]:
        raise PRUError(f"packed input: batch_sizes add up to {sum(steps)}, but data has {data.shape[0]} rows")
    for name in ("sorted_indices", "unsorted_indices"):
        _check_order(name, getattr(packed, name), steps[0], data.device)


def _check_order(name: str, order: Tensor | None, batch: int, device: torch.device) -> None:
    """Raise unless ``order`` is None or holds indices of a batch. On a GPU the values are not read."""
    if order is None:
        return
    if not isinstance(order, Tensor) or order.dtype != torch.int64 or order.device != device:
        raise PRUError(f"packed input: {name} must be an int64 tensor on {device}, where data is")
    if order.shape != (batch,):
        raise PRUError(f"packed input: {name} has shape {tuple(order.shape)}; expected ({batch},)")
    if order.is_cpu and order.sort().values.tolist() != list(range(batch)):
        raise PRUError(f"packed input: {name} must hold each of 0 to {batch - 1} once")


def _shortened(numbers: list[int]) -> str:
    """The list as text, with at most eight numbers."""
    return str(numbers) if len(numbers) <= 8 else f"[{', '.join(map(str, numbers[:8]))}, ...]"


def _is_quicker_as_lstm(cell: PRUCell, x: Tensor) -> bool:
    if not x.is_cpu or cell.backend != "auto" or not cell.is_linear:
        return False
    return lstm.is_quicker(x, cell.hidden_size, cell.context_transform.groups, cell.parameters())


def _side_by_side(outputs: list[Tensor]) -> Tensor:
    """The outputs (T, B, M) of a layer's directions as one."""
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def _in_parts(cell: PRUCell, x: Tensor, lengths: Tensor | None, reverse: bool) -> Sequence[Tensor]:
    """x (T, B, N) as stretches of steps, in the order in which ``cell`` runs them.

    On a CPU a long input is taken stretch by stretch: the products lose nothing, and the allocator hands the
    same buffers out again, where for the whole input the system would have to map new memory each time.
    Not where a weight is parametrized: each stretch would compute it anew, and a random one otherwise.
    Nor in a trace, which would keep the number of stretches.
    """
    steps, batch, _ = x.shape
    whole = not x.is_cpu or lengths is not None or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if whole or product_dtype(x) in SIXTEEN_BITS or steps * batch <= ROWS_AT_ONCE:
        return (x,)
    if any(is_parametrized(part) for part in cell.modules()):
        return (x,)
    parts = x.tensor_split(min(steps, -(-steps * batch // ROWS_AT_ONCE)))
    return parts[::-1] if reverse else parts
