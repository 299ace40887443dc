"""Weights of the authors' implementation. (Those of ``nn.LSTM``: :meth:`torch_pru.PRU.from_lstm`.)"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torch_pru.cell import PRUCell
from torch_pru.errors import PRUError
from torch_pru.initialize import assign
from torch_pru.layer import PRU
from torch_pru.transforms import GroupedLinear, PyramidalTransform

# The authors order the gates forget, content, input, output; here they stand as in nn.LSTM.
AUTHORS_GATE_OF_OURS = (2, 0, 1, 3)


@torch.no_grad()
def load_reference_weights(layer: PRU | PRUCell, mapping: Mapping[str, Tensor], index: int = 0) -> None:
    """Copy weights of the authors' implementation into a layer.

    Args:
        layer: a :class:`PRU` with pyramidal input and grouped context, or a :class:`PRUCell`.
        mapping: tensors under the authors' names: ``pt.pyramid.{i}.weight`` (4·out_i, in_i),
            ``pt.pyramid.{i}.bias`` (4·out_i,), ``glt.W`` (g, M/g, 4·M/g) and ``glt.bias``, any shape
            of g·4·M/g elements. Every name that the layer needs must be there, and none besides.
        index: which of ``layer.cells`` to load into.

    Example:
        >>> pru = PRU(400, 1400)
        >>> load_reference_weights(pru, torch.load("authors.pt", weights_only=True))  # doctest: +SKIP
    """
    cell = _cell(layer, index)
    wanted = _authors_names(cell)
    missing, surplus = sorted(wanted.keys() - mapping.keys()), sorted(mapping.keys() - wanted.keys())
    if missing or surplus:
        raise PRUError(f"mapping lacks {missing} and has unknown {surplus}; expected {sorted(wanted)}")
    given = {name: torch.as_tensor(value) for name, value in mapping.items()}
    for name, shape in _authors_shapes(cell).items():  # all of them first: nothing is half loaded
        if name in wanted and given[name].shape != shape:
            raise PRUError(f"mapping[{name!r}] has shape {tuple(given[name].shape)}; expected {shape}")
    ours = {name: _reorder(name, given[name], getattr(*place), cell) for name, place in wanted.items()}
    for name, place in wanted.items():
        assign(*place, ours[name])


def _cell(layer: PRU | PRUCell, index: int) -> PRUCell:
    cells = [module for module in layer.modules() if isinstance(module, PRUCell)]
    if not 0 <= index < len(cells):
        raise PRUError(f"index={index} is not a cell of this layer; use 0 to {len(cells) - 1}")
    return cells[index]


def _authors_names(cell: PRUCell) -> dict[str, tuple[GroupedLinear, str]]:
    """Where our parameters are, as module and name, under the names that the authors give them."""
    pyramid, grouped = cell.input_transform, cell.context_transform
    if not isinstance(pyramid, PyramidalTransform) or pyramid.groups != 1:
        raise PRUError("layer: the authors' unit has input_transform='pyramidal' and input_groups=1")
    if not isinstance(grouped, GroupedLinear):
        raise PRUError("layer: the authors' unit has context_transform='grouped'")
    places = {"glt.W": (grouped, "weight"), "glt.bias": (grouped, "bias")}
    for i, level in enumerate(pyramid.matrices()):
        places |= {f"pt.pyramid.{i}.weight": (level, "weight"), f"pt.pyramid.{i}.bias": (level, "bias")}
    return {name: place for name, place in places.items() if getattr(*place) is not None}


def _authors_shapes(cell: PRUCell) -> dict[str, tuple[int, ...]]:
    """The shapes of the authors' tensors."""
    groups, width = cell.context_transform.groups, cell.hidden_size // cell.context_transform.groups
    shapes: dict[str, tuple[int, ...]] = {"glt.W": (groups, width, 4 * width)}
    for i, level in enumerate(cell.input_transform.matrices()):
        shapes[f"pt.pyramid.{i}.weight"] = (4 * level.out_features, level.in_features)
        shapes[f"pt.pyramid.{i}.bias"] = (4 * level.out_features,)
    return shapes


def _reorder(name: str, theirs: Tensor, ours: Tensor, cell: PRUCell) -> Tensor:
    """``theirs`` with our gate order and our layout, which is that of the parameter ``ours``."""
    gate_order = list(AUTHORS_GATE_OF_OURS)
    if name.startswith("pt."):  # gates in blocks of rows
        return theirs.reshape(4, -1)[gate_order].reshape(ours.shape)
    groups, width = cell.context_transform.groups, cell.hidden_size // cell.context_transform.groups
    if name == "glt.W":  # (g, in, 4·out), gates in blocks of columns
        return theirs.reshape(groups, width, 4, width)[:, :, gate_order].permute(0, 2, 3, 1)
    if theirs.numel() != ours.numel():
        raise PRUError(f"mapping[{name!r}] has shape {tuple(theirs.shape)}; expected {ours.numel()} elements")
    return theirs.reshape(groups, 4, width)[:, gate_order].transpose(0, 1).reshape(ours.shape)
