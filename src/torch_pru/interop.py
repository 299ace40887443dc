"""Weights of the authors' implementation. (Those of ``nn.LSTM``: :meth:`torch_pru.PRU.from_lstm`.)"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torch_pru.cell import PRUCell
from torch_pru.errors import PRUError
from torch_pru.initialize import assign
from torch_pru.layer import PRU
from torch_pru.ops.spec import LayerSpec
from torch_pru.parameters import ParameterNames

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
        index: which layer and direction to load into, in the order of h_n.

    Example:
        >>> pru = PRU(400, 1400)
        >>> weights = torch.load("authors.pt", weights_only=True)           # doctest: +SKIP
        >>> load_reference_weights(pru, weights)                            # doctest: +SKIP
    """
    if not isinstance(layer, PRU | PRUCell):
        raise PRUError(f"layer is a {type(layer).__name__}; expected a PRU or a PRUCell")
    if not isinstance(mapping, Mapping):
        raise PRUError(f"mapping is a {type(mapping).__name__}; expected a mapping of names to tensors")
    spec, names = _structure(layer, index)
    shapes = _authors_shapes(spec, bias=bool(names.biases))
    missing, surplus = sorted(shapes.keys() - mapping.keys()), sorted(mapping.keys() - shapes.keys())
    if missing or surplus:
        raise PRUError(f"mapping lacks {missing} and has unknown {surplus}; expected {sorted(shapes)}")
    given = {name: torch.as_tensor(value) for name, value in mapping.items()}
    for name, shape in shapes.items():  # all of them first: nothing is half loaded
        if not given[name].is_floating_point():
            raise PRUError(f"mapping[{name!r}] has dtype {given[name].dtype}; expected real floating-point")
        if name == "glt.bias":
            if given[name].numel() != math.prod(shape):
                found, wanted = tuple(given[name].shape), math.prod(shape)
                raise PRUError(f"mapping[{name!r}] has shape {found}; expected {wanted} elements")
        elif given[name].shape != shape:
            raise PRUError(f"mapping[{name!r}] has shape {tuple(given[name].shape)}; expected {shape}")
    for name, value in _translate(given, spec, names).items():
        assign(layer, name, value)


def _structure(layer: PRU | PRUCell, index: int) -> tuple[LayerSpec, ParameterNames]:
    """The structure and the parameter names of the layer and direction to load into."""
    specs, names = (layer.specs, layer._names) if isinstance(layer, PRU) else ((layer.spec,), (layer._names,))
    if not 0 <= index < len(specs):
        raise PRUError(f"index={index} is not a layer of this module; use 0 to {len(specs) - 1}")
    spec = specs[index]
    if layer.input_transform != "pyramidal" or spec.input.groups != 1:
        raise PRUError("layer: the authors' unit has input_transform='pyramidal' and input_groups=1")
    if layer.context_transform == "pyramidal":
        raise PRUError("layer: the authors' unit has context_transform='grouped'")
    return spec, names[index]


def _authors_shapes(spec: LayerSpec, bias: bool) -> dict[str, tuple[int, ...]]:
    """The shapes of the authors' tensors, by name."""
    width = spec.hidden_size // spec.groups
    shapes: dict[str, tuple[int, ...]] = {"glt.W": (spec.groups, width, 4 * width)}
    shapes |= {"glt.bias": (spec.groups, 4 * width)} if bias else {}
    for i, shape in enumerate(spec.input.matrix_shapes(gates=4)):
        shapes[f"pt.pyramid.{i}.weight"] = shape
        shapes |= {f"pt.pyramid.{i}.bias": shape[:1]} if bias else {}
    return shapes


def _translate(given: dict[str, Tensor], spec: LayerSpec, names: ParameterNames) -> dict[str, Tensor]:
    """The authors' tensors under our names, with our order of gates and our layout."""
    order, width = list(AUTHORS_GATE_OF_OURS), spec.hidden_size // spec.groups

    def by_gate(rows: Tensor) -> Tensor:  # gates in blocks of rows
        return rows.unflatten(0, (4, -1))[order]

    [context] = names.context
    weight = given["glt.W"].reshape(spec.groups, width, 4, width)  # (g, in, gate, out)
    ours = {context: weight[:, :, order].permute(2, 0, 3, 1).reshape(-1, width)}
    for i, name in enumerate(names.input):
        ours[name] = by_gate(given[f"pt.pyramid.{i}.weight"]).flatten(0, 1)
    if names.biases:
        input_bias, context_bias = names.biases
        levels = [by_gate(given[f"pt.pyramid.{i}.bias"]) for i in range(spec.input.levels)]
        ours[input_bias] = torch.cat(levels, dim=1).flatten()
        ours[context_bias] = (
            given["glt.bias"].reshape(spec.groups, 4, width)[:, order].transpose(0, 1).flatten()
        )
    return ours
