"""The paper's equations, one by one, in float64: every unit, level and window element in its own loop.

Nothing here comes from the package. A layer is given by its settings and by its weights under the
names of its ``state_dict``; sizes of levels and groups are worked out again. Gates stand in the order
input, forget, cell, output.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray


@dataclass(frozen=True)
class Settings:
    """What a layer was built with; the defaults are those that the layer promises."""

    input_size: int
    hidden_size: int
    num_layers: int = 1
    bias: bool = True
    bidirectional: bool = False
    levels: int = 2
    groups: int = 4
    input_groups: int = 1
    pooling: str = "average"
    level_split: str = "halving"
    pool_window: int | tuple[int, ...] = 3
    residual: bool | str = "auto"
    input_transform: str = "pyramidal"
    context_transform: str = "grouped"
    proj_size: int = 0

    @property
    def state_size(self) -> int:
        """The features of h."""
        return self.proj_size or self.hidden_size


class Weights:
    """The arrays of one transform: ``side`` is "ih" or "hh", ``layer`` "_l0", ``suffix`` "" or "_reverse"."""

    def __init__(self, arrays: dict[str, ndarray], side: str, layer: str, suffix: str) -> None:
        self.arrays, self.place = arrays, (f"_{side}{layer}", suffix)

    def matrix(self, level: int, group: int, groups: int, rows: int) -> ndarray:
        """(4, rows, columns) of one group of a level (from 0)."""
        middle, suffix = self.place
        for name in (f"weight{middle}", f"weight{middle}_k{level + 1}"):
            if f"{name}{suffix}" in self.arrays:  # all groups: gate by group by unit
                whole = self.arrays[f"{name}{suffix}"]
                return whole.reshape(4, groups, rows, whole.shape[1])[:, group]
            if f"{name}_g{group + 1}{suffix}" in self.arrays:
                alone = self.arrays[f"{name}_g{group + 1}{suffix}"]
                return alone.reshape(4, rows, alone.shape[1])
        raise KeyError(level)

    def bias(self) -> ndarray | float:
        """(4, M), or zero where there is none."""
        middle, suffix = self.place
        name = f"bias{middle}{suffix}"
        return self.arrays[name].reshape(4, -1) if name in self.arrays else 0.0

    def kernel(self, level: int) -> ndarray:
        middle, suffix = self.place
        return self.arrays[f"pool{middle}_k{level + 1}{suffix}"]


def sigmoid(z: ndarray) -> ndarray:
    return 1 / (1 + np.exp(-z))


def level_sizes(outputs: int, levels: int, split: str) -> list[int]:
    """M/K each, or ceil(M / 2^(i+1)) for level i with level 0 taking what is left over."""
    if split == "equal":
        return [outputs // levels for _ in range(levels)]
    sizes = [int(np.ceil(outputs / 2 ** (i + 1))) for i in range(levels)]
    sizes[0] += outputs - sum(sizes)
    return sizes


def cut(features: int, groups: int) -> list[tuple[int, int]]:
    """Begin and end of each group; the first ones are one longer where it does not divide."""
    bounds, begin = [], 0
    for group in range(groups):
        length = features // groups + (1 if group < features % groups else 0)
        bounds.append((begin, begin + length))
        begin += length
    return bounds


def subsample(x: ndarray, pooling: str, window: int, kernel: ndarray | None) -> ndarray:
    """Eq. 3 as it was meant: element i is a sum over j = -e … e of x[2i + j]·kernel[j]."""
    n, e = len(x), window // 2
    result = np.zeros(n // 2)
    for i in range(n // 2):
        if pooling == "skip":
            result[i] = x[2 * i]
        elif pooling == "max":
            result[i] = max(x[2 * i + j] for j in range(-e, e + 1) if 0 <= 2 * i + j < n)
        else:
            for j in range(-e, e + 1):
                element = x[2 * i + j] if 0 <= 2 * i + j < n else 0.0
                result[i] += element * (1 / window if kernel is None else kernel[j + e])
            if kernel is not None:
                result[i] = np.tanh(result[i])
    return result


def grouped(x: ndarray, outputs: int, groups: int, weights: Weights, level: int = 0) -> ndarray:
    """Eq. 4, for the four gates, without a bias: (4, M) from (N,)."""
    y = np.zeros((4, outputs))
    pairs = zip(cut(len(x), groups), cut(outputs, groups), strict=True)
    for group, ((x_begin, x_end), (y_begin, y_end)) in enumerate(pairs):
        matrix = weights.matrix(level, group, groups, y_end - y_begin)
        assert matrix.shape == (4, y_end - y_begin, x_end - x_begin)
        for gate in range(4):
            for unit in range(y_begin, y_end):
                y[gate, unit] = np.dot(matrix[gate, unit - y_begin], x[x_begin:x_end])
    return y


def pyramidal(x: ndarray, settings: Settings, level_groups: int, weights: Weights) -> ndarray:
    """Eq. 2, for the four gates, without a bias: (4, M) from (N,)."""
    given = settings.pool_window
    outputs = []
    for level, size in enumerate(level_sizes(settings.hidden_size, settings.levels, settings.level_split)):
        if level > 0:
            window = given if isinstance(given, int) else given[level - 1]
            learned = settings.pooling == "convolution"
            x = subsample(x, settings.pooling, window, weights.kernel(level) if learned else None)
        outputs.append(grouped(x, size, level_groups, weights, level))
    return np.concatenate(outputs, axis=1)


def transform(
    x: ndarray, kind: str, settings: Settings, level_groups: int, groups: int, weights: Weights
) -> ndarray:
    if kind == "pyramidal":
        return pyramidal(x, settings, level_groups, weights) + weights.bias()
    return grouped(x, settings.hidden_size, 1 if kind == "linear" else groups, weights) + weights.bias()


def has_residual(reads: int, settings: Settings) -> bool:
    if settings.residual == "auto":
        return settings.input_transform == "pyramidal" and reads == settings.hidden_size
    return bool(settings.residual)


def sequence(
    x: ndarray,
    h: ndarray,
    c: ndarray,
    settings: Settings,
    arrays: dict[str, ndarray],
    layer: int,
    backwards: bool,
) -> tuple[ndarray, ndarray, ndarray]:
    """One unit over one sequence (T, N): outputs (T, M) and the last states (M,), or h of proj_size."""
    input_groups = settings.groups if settings.input_groups == 1 else settings.input_groups
    place = f"_l{layer}", "_reverse" if backwards else ""
    of_input, of_context = Weights(arrays, "ih", *place), Weights(arrays, "hh", *place)
    out = np.zeros((len(x), settings.state_size))
    for t in range(len(x) - 1, -1, -1) if backwards else range(len(x)):
        z = transform(
            x[t],
            settings.input_transform,
            settings,
            settings.input_groups,
            input_groups,
            of_input,
        )
        if has_residual(x.shape[1], settings):
            z = z + x[t]
        z = z + transform(h, settings.context_transform, settings, 1, settings.groups, of_context)
        i, f, content, o = sigmoid(z[0]), sigmoid(z[1]), np.tanh(z[2]), sigmoid(z[3])
        c = f * c + i * content
        h = o * np.tanh(c)
        if settings.proj_size:
            matrix = arrays["weight_hr{}{}".format(*place)]
            h = np.array([sum(matrix[row] * h) for row in range(settings.proj_size)])
        out[t] = h
    return out, h, c


def run(
    settings: Settings,
    arrays: dict[str, ndarray],
    x: ndarray,
    h0: ndarray,
    c0: ndarray,
    lengths: list[int] | None = None,
) -> tuple[ndarray, ndarray, ndarray]:
    """All layers over x (T, B, N), each column by itself, each as long as its length says.

    Returns outputs (T, B, directions·M), zero after a column's end, and states as h0 and c0:
    (num_layers·directions, B, M). With a projection outputs and h have fewer features.
    """
    steps, batch, _ = x.shape
    directions = 2 if settings.bidirectional else 1
    out = np.zeros((steps, batch, directions * settings.state_size))
    hn, cn = np.zeros_like(h0), np.zeros_like(c0)
    for column in range(batch):
        length = steps if lengths is None else lengths[column]
        below = x[:length, column]
        for layer in range(settings.num_layers):
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                states = h0[index, column], c0[index, column]
                y, hn[index, column], cn[index, column] = sequence(
                    below, *states, settings, arrays, layer, backwards=direction == 1
                )
                outputs.append(y)
            below = np.concatenate(outputs, axis=1)
        out[:length, column] = below
    return out, hn, cn
