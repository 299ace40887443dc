"""Parameters that were saved before they were flat on the layer, under the names they have now.

Then a layer had a list of cells, and a cell had two transforms: ``cells.0.context_transform.weight`` was
(g, 4, M/g, M/g), group by gate by output by input, and each matrix had a bias (4, m) of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

_OLD = re.compile(
    r"(?P<prefix>(?:.+?\.)??)(?:cells\.(?P<index>\d+)\.)?(?P<side>input|context)_transform\."
    r"(?:transforms\.(?P<level>\d+)\.|kernels\.(?P<kernel>\d+)$)?(?:blocks\.(?P<group>\d+)\.)?"
    r"(?P<kind>weight|bias)?"
)


def migrate_names(tensors: Mapping[str, Tensor], directions: int = 1) -> dict[str, Tensor]:
    """``tensors`` with old names and shapes of PRU layers replaced by those of today; others are kept.

    Args:
        directions: 2 if the layers are bidirectional.

    Example:
        >>> old = {"rnn.cells.0.context_transform.weight": torch.zeros(2, 4, 3, 3)}
        >>> {name: tuple(tensor.shape) for name, tensor in migrate_names(old).items()}
        {'rnn.weight_hh_l0': (24, 3)}
    """
    found = {name: match for name in tensors if (match := _OLD.fullmatch(name))}
    levels: dict[tuple[str, str | None, str], int] = {}
    for match in found.values():
        place = _place(match)
        levels[place] = max(levels.get(place, 1), int(match["level"] or 0) + 1)
    result: dict[str, Tensor] = {}
    biases: dict[str, dict[tuple[int, int], Tensor]] = {}
    for name, tensor in tensors.items():
        if (old := found.get(name)) is None:
            result[name] = tensor
            continue
        new = _new_name(old, levels[_place(old)], directions)
        if old["kind"] == "bias":  # one per matrix: they are concatenated
            biases.setdefault(new, {})[int(old["level"] or 0), int(old["group"] or 0)] = tensor
        elif old["kind"] == "weight":
            result[new] = tensor.transpose(0, 1).reshape(-1, tensor.shape[-1])
        else:
            result[new] = tensor
    for name, parts in biases.items():
        result[name] = torch.cat([parts[place] for place in sorted(parts)], dim=-1).flatten()
    return result


def _place(old: re.Match[str]) -> tuple[str, str | None, str]:
    return old["prefix"], old["index"], old["side"]


def _new_name(old: re.Match[str], levels: int, directions: int) -> str:
    side = "ih" if old["side"] == "input" else "hh"
    layer = suffix = ""
    if old["index"] is not None:
        index = int(old["index"])
        layer, suffix = f"_l{index // directions}", "_reverse" if index % directions else ""
    if old["kernel"] is not None:
        return f"{old['prefix']}pool_{side}{layer}_k{int(old['kernel']) + 2}{suffix}"
    if old["kind"] == "bias":
        return f"{old['prefix']}bias_{side}{layer}{suffix}"
    level = f"_k{int(old['level']) + 1}" if levels > 1 else ""
    group = "" if old["group"] is None else f"_g{int(old['group']) + 1}"
    return f"{old['prefix']}weight_{side}{layer}{level}{group}{suffix}"


def migrate_layer(state_dict: dict[str, Tensor], prefix: str, directions: int = 1) -> None:
    """Replace the old names of one layer in ``state_dict``, in place; its names begin with ``prefix``."""
    mine = {name: tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    if any(_OLD.fullmatch(name) for name in mine):
        for name in mine:
            del state_dict[name]
        state_dict.update(migrate_names(mine, directions))
