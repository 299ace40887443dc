"""Variance of word vectors by part of speech."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from torch_pru.analysis.embeddings import EmbeddingVariance, Level, Variance
from torch_pru.analysis.figures.style import COLORS, MARKERS, PALE, add_legend, listed, new_figure, style
from torch_pru.analysis.speech import CATEGORIES

MEASURES = {
    "total": "variance, summed over dimensions",
    "per_dimension": "variance per dimension",
}
LEAST = 2.4  # inches: room for the label beside the axis


class Series(NamedTuple):
    """A level of a run, with its style."""

    label: str
    level: Level
    color: str
    marker: str


@style()
def draw(data: Mapping[str, EmbeddingVariance], measure: str) -> Figure:
    """One row per category, one marker per run and level; hollow markers are the random control.

    Args:
        data: by run.
        measure: ``"total"`` or ``"per_dimension"``.

    Example:
        >>> level = Level(1, 400, {"NOUN": Variance(2.0, 0.005, 1.9, 0.00475)})
        >>> figure = draw({"LSTM": EmbeddingVariance({"NOUN": 9}, False, [level])}, "total")
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['noun (9)']
    """
    words = next(iter(data.values())).words
    tags = [tag for tag in CATEGORIES if tag in words]
    series = list(all_series(data))
    figure = new_figure(max(LEAST, 0.6 + len(tags) * (0.075 * len(series) + 0.1)))
    axes = figure.subplots()
    for number, one in enumerate(series):
        _draw_series(axes, one, tags, (number + 0.5) / len(series) - 0.5, measure)
    for row in range(1, len(tags)):
        axes.axhline(row - 0.5, color="#DDDDDD", linewidth=0.5)
    axes.set_yticks(range(len(tags)), [f"{CATEGORIES[tag]} ({words[tag]:,})" for tag in tags])
    axes.set_ylim(len(tags) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel(MEASURES[measure])
    axes.set_ylabel("part of speech (word types)")
    _add_legend(figure, series)
    return figure


def all_series(data: Mapping[str, EmbeddingVariance]) -> Iterator[Series]:
    """Every level of every run: one color per run, one marker per series, readable in gray."""
    marks = itertools.cycle(MARKERS)
    for number, (name, found) in enumerate(data.items()):
        for level in found.levels:
            label = f"{name}, level {level.level}" if found.pyramid else name
            yield Series(label, level, COLORS[number % len(COLORS)], next(marks))


def _draw_series(axes: Axes, one: Series, tags: list[str], shift: float, measure: str) -> None:
    rows = [row + 0.8 * shift for row in range(len(tags))]
    found = [_pair(one.level.variances[tag], measure) for tag in tags]
    own, control = [pair[0] for pair in found], [pair[1] for pair in found]
    axes.hlines(rows, own, control, color=PALE, linewidth=0.6, zorder=2)
    looks: dict[str, Any] = {"marker": one.marker, "linestyle": "none", "color": one.color}
    axes.plot(control, rows, markerfacecolor="white", markersize=3.8, markeredgewidth=0.8, zorder=3, **looks)
    axes.plot(own, rows, zorder=4, **looks)


def _pair(variance: Variance, measure: str) -> tuple[float, float]:
    """The value of the model and that of the control."""
    if measure == "total":
        return variance.total, variance.control
    return variance.per_dimension, variance.control_per_dimension


def _add_legend(figure: Figure, series: list[Series]) -> None:
    handles = [
        Line2D([], [], marker=one.marker, color=one.color, linestyle="none", label=one.label)
        for one in series
    ]
    control = Line2D(
        [],
        [],
        marker="o",
        color=PALE,
        markerfacecolor="white",
        linestyle="none",
        label="hollow: random control",
    )
    add_legend(figure, [*handles, control])


def sentence(data: Mapping[str, EmbeddingVariance]) -> str:
    """What the figures show.

    Example:
        >>> level = Level(1, 400, {"NOUN": Variance(2.0, 0.005, 1.6, 0.004)})
        >>> sentence({"LSTM": EmbeddingVariance({"NOUN": 9}, False, [level])})
        "Variance of the nouns' word vectors, and of random ones of the same scale: 2 and 1.6 for LSTM."
    """
    tag = max(next(iter(data.values())).words.items(), key=lambda item: item[1])[0]
    values = listed(
        f"{one.level.variances[tag].total:.3g} and {one.level.variances[tag].control:.3g} for {one.label}"
        for one in all_series(data)
    )
    return (
        f"Variance of the {CATEGORIES[tag]}s' word vectors, and of random ones of the same scale: {values}."
    )


def describe(data: Mapping[str, EmbeddingVariance], measure: str) -> str:
    """Alternative text of a figure.

    Example:
        >>> level = Level(1, 400, {"NOUN": Variance(2.0, 0.005, 1.6, 0.004)})
        >>> describe({"LSTM": EmbeddingVariance({"NOUN": 9}, False, [level])}, "per_dimension")
        'Variance per dimension of word vectors by part of speech. LSTM: noun 0.005.'
    """
    parts = [f"{MEASURES[measure].capitalize()} of word vectors by part of speech."]
    for one in all_series(data):
        values = (
            f"{CATEGORIES[tag]} {_pair(one.level.variances[tag], measure)[0]:.3g}"
            for tag in CATEGORIES
            if tag in one.level.variances
        )
        parts.append(f"{one.label}: {', '.join(values)}.")
    return " ".join(parts)
