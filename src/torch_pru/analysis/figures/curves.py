"""Perplexity by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from torch_pru.analysis.curves import LearningCurve
from torch_pru.analysis.figures.style import (
    COLOURS,
    MARKERS,
    PALE,
    add_legend,
    corpus_names,
    listed,
    new_figure,
    style,
    wrapped,
)


@style()
def draw(data: Mapping[str, LearningCurve]) -> Figure:
    """One panel a corpus; validation as full lines, training as dashed ones.

    Of long runs the first epochs, a twentieth of all, may lie above the panel: they would flatten the rest.

    Example:
        >>> draw({"PRU": LearningCurve("ptb", "PRU g=4 M=1400", [1], [400.0], [300.0])}).axes[0].get_xlabel()
        'epoch'
    """
    corpora = corpus_names(curve.corpus for curve in data.values())
    figure = new_figure(0.2 + (2.2 + 0.2 * min(len(data), 8)) * len(corpora))  # more lines, more room
    panels = figure.subplots(len(corpora), squeeze=False)[:, 0]
    lines: list[Line2D] = []
    numbers = {name: number for number, name in enumerate(data)}
    for axes, corpus in zip(panels, corpora, strict=True):
        curves = {name: curve for name, curve in data.items() if curve.corpus == corpus}
        lines += [_draw_curve(axes, name, curve, numbers[name]) for name, curve in curves.items()]
        axes.set_yscale("log")
        axes.set_ylim(0.96 * min(map(_lowest, curves.values())), 1.05 * max(map(_highest, curves.values())))
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_major_formatter(plain)
        low, high = axes.get_ylim()
        # Within a decade or two the powers of ten alone would leave the axis bare.
        axes.yaxis.set_minor_formatter(plain if high / low < 20 else NullFormatter())
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.grid(visible=True, axis="y", which="minor")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlim(left=0)
        axes.set_xlabel("epoch")
        axes.set_ylabel("perplexity (log scale)")
        axes.set_title(wrapped(corpora[corpus], 55))
    full = Line2D([], [], color=PALE, linewidth=1.2, label="validation")
    dashed = Line2D([], [], color=PALE, linestyle="--", linewidth=0.8, label="training, with dropout")
    add_legend(figure, [*lines, full, dashed])
    return figure


def _highest(curve: LearningCurve) -> float:
    """The largest perplexity after the first twentieth of a run."""
    first = _first_shown(curve)
    return max(*curve.train[first:], *curve.valid[first:])


def _lowest(curve: LearningCurve) -> float:
    return min(*curve.train, *curve.valid)


def _first_shown(curve: LearningCurve) -> int:
    """How many epochs of a long run may lie above the panel."""
    return len(curve.epochs) // 20


def _draw_curve(axes: Axes, name: str, curve: LearningCurve, number: int) -> Line2D:
    """Draw both lines of a run and give the one for the legend."""
    step = max(1, len(curve.epochs) // 8)
    looks: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        # Beside those of the other runs, and none at the upper edge, which would cut it.
        "markevery": (_first_shown(curve) + (number + 1) * step // 6 % step, step),
        "markeredgewidth": 0,
    }
    axes.plot(curve.epochs, curve.train, "--", linewidth=0.8, markersize=2.5, **looks)
    label = f"{name}, {curve.model}: best {curve.best[1]:.2f}"
    (line,) = axes.plot(curve.epochs, curve.valid, "-", linewidth=1.2, markersize=4.5, label=label, **looks)
    return line


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
    """The figure in words.

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
