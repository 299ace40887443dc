"""Perplexity by epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from torch_pru.analysis.curves import LearningCurve
from torch_pru.analysis.figures.style import (
    COLORS,
    MARKERS,
    add_legend,
    corpus_names,
    listed,
    new_figure,
    style,
    wrapped,
)

HEIGHTS = (2.6, 2.1)  # inches, of validation and of training


@style()
def draw(data: Mapping[str, LearningCurve]) -> Figure:
    """Two panels per corpus, validation above training, each with its own scale.

    The first tenth of the epochs of a long run can be above the panel, because it would flatten the rest.

    Example:
        >>> draw({"PRU": LearningCurve("ptb", "PRU g=4 M=1400", [1], [400.0], [300.0])}).axes[1].get_xlabel()
        'epoch'
    """
    corpora = corpus_names(curve.corpus for curve in data.values())
    looks = {name: _look(number, curve) for number, (name, curve) in enumerate(data.items())}
    figure = new_figure(sum(HEIGHTS) * len(corpora))
    panels = figure.subplots(2 * len(corpora), height_ratios=HEIGHTS * len(corpora))
    lines: list[Line2D] = []
    for corpus, upper, lower in zip(corpora, panels[::2], panels[1::2], strict=True):
        curves = {name: curve for name, curve in data.items() if curve.corpus == corpus}
        for name, curve in curves.items():
            label = f"{name}, {curve.model}: best {curve.best[1]:.2f}"
            lines += upper.plot(curve.epochs, curve.valid, label=label, **looks[name])
            lower.plot(curve.epochs, curve.train, **looks[name])
        _set_scales(upper, [curve.valid for curve in curves.values()])
        _set_scales(lower, [curve.train for curve in curves.values()])
        upper.sharex(lower)
        upper.tick_params(labelbottom=False)
        lower.set_xlabel("epoch")
        upper.set_title(wrapped(f"{corpora[corpus]}, validation", 55))
        lower.set_title(wrapped(f"{corpora[corpus]}, training, with dropout", 55))
    add_legend(figure, lines)
    return figure


def _look(number: int, curve: LearningCurve) -> dict[str, Any]:
    """Color and markers of a run; markers of different runs do not coincide."""
    step = max(1, len(curve.epochs) // 8)
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markevery": (_first_shown(curve.valid) + (number + 1) * step // 6 % step, step),
        "markeredgewidth": 0,
        "linewidth": 1.2,
    }


def _first_shown(values: Sequence[float]) -> int:
    """How many epochs of a long run can be above the panel."""
    return len(values) // 10


def _set_scales(axes: Axes, runs: Sequence[Sequence[float]]) -> None:
    """Log scale with plain numbers, from the lowest value to the highest after the first epochs."""
    axes.set_yscale("log")
    shown = chain.from_iterable(values[_first_shown(values) :] for values in runs)
    low = min(filter(math.isfinite, chain.from_iterable(runs)), default=1.0)
    high = max(filter(math.isfinite, shown), default=low)
    room = max(1.01, (high / low) ** 0.04)  # for the marks
    axes.set_ylim(low / room, high * room)
    if high / low < 20:  # where powers of ten alone would leave the axis bare
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(left=0)
    axes.set_ylabel("perplexity (log scale)")


def sentence(data: Mapping[str, LearningCurve]) -> str:
    """What the figure shows.

    Example:
        >>> sentence({"PRU": LearningCurve("ptb", "PRU g=4 M=1400", [1, 2], [400.0, 200.0], [300.0, 180.0])})
        'Lowest validation perplexity during training: 180.00 after epoch 2 of 2 for PRU.'
    """
    parts = listed(
        f"{curve.best[1]:.2f} after epoch {curve.best[0]} of {curve.epochs[-1]} for {name}"
        for name, curve in data.items()
    )
    return f"Lowest validation perplexity during training: {parts}."


def describe(data: Mapping[str, LearningCurve]) -> str:
    """Alternative text of the figure.

    Example:
        >>> describe({"PRU": LearningCurve("ptb", "PRU g=4 M=1400", [1, 2], [400.0, 200.0], [300.0, 180.0])})
        'Perplexity by epoch. PRU on ptb: validation from 300.00 to 180.00, training from 400.00 to 200.00.'
    """
    corpora = corpus_names(curve.corpus for curve in data.values())
    parts = [
        f"{name} on {corpora[curve.corpus]}: validation from {curve.valid[0]:.2f} to {curve.valid[-1]:.2f}, "
        f"training from {curve.train[0]:.2f} to {curve.train[-1]:.2f}."
        for name, curve in data.items()
    ]
    return " ".join(["Perplexity by epoch.", *parts])
