"""Perplexity against the saving in recurrent parameters."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from torch_pru.analysis.figures.style import (
    add_legend,
    corpus_names,
    listed,
    look,
    new_figure,
    style,
    wrapped,
)
from torch_pru.analysis.sweep import SweepPoint

MARKS = ("o", "s", "D", "p", "h", "8")  # with room for a number


@style()
def draw(data: Mapping[str, SweepPoint]) -> Figure:
    """One panel per corpus, one line per number of groups, one marker per K.

    Other variants, sizes and regimes have lines of their own. Runs that differ only in their seed are
    averaged.

    Example:
        >>> point = SweepPoint("ptb", "600", "pru", 2, 4, "", 1_400_000, 2_880_000, 80.0, True)
        >>> draw({"run": point}).legends[0].get_texts()[0].get_text()
        'g = 4'
    """
    corpora = corpus_names(point.corpus for point in data.values())
    told = [name for name in ("size", "regime") if len({getattr(point, name) for point in data.values()}) > 1]
    labels = sorted({series_label(point, told) for point in data.values()})
    figure = new_figure(0.1 + 2.9 * len(corpora))
    panels = figure.subplots(len(corpora), squeeze=False)[:, 0]
    for axes, corpus in zip(panels, corpora, strict=True):
        for number, label in enumerate(labels):
            points = [
                point
                for point in data.values()
                if point.corpus == corpus and series_label(point, told) == label
            ]
            if points:
                _draw_series(axes, points, _line(label, number, size=10))
        axes.set_title(wrapped(corpora[corpus], 55))
        axes.set_xlabel("saving in recurrent parameters, relative to the LSTM")
        axes.set_ylabel("validation perplexity")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
        axes.margins(x=0.1, y=0.12)  # room for the marks' labels
    add_legend(
        figure, [_line(label, number, size=6) for number, label in enumerate(labels)], "number in a mark: K"
    )
    return figure


def series_label(point: SweepPoint, told: Sequence[str] = ()) -> str:
    """The line that a point belongs to; ``told`` names other attributes in which the runs differ.

    Example:
        >>> series_label(SweepPoint("ptb", "600", "pru", 4, 1, "max pooling", 4, 5, 80.0, True), ["size"])
        'g = 1, max pooling, 600'
    """
    parts = ["LSTM" if point.unit == "lstm" else f"g = {point.groups}", point.variant]
    return ", ".join(filter(None, [*parts, *(getattr(point, name) for name in told)]))


def _line(label: str, number: int, size: int) -> Line2D:
    """The style of a series; an LSTM has one point and no line."""
    looks = look(number)
    if label.startswith("LSTM"):
        looks["linestyle"] = "none"
    return Line2D([], [], marker=MARKS[number % len(MARKS)], markersize=size, label=label, **looks)


def _draw_series(axes: Axes, points: list[SweepPoint], line: Line2D) -> None:
    by_levels: dict[int, list[SweepPoint]] = {}
    for point in sorted(points, key=lambda point: point.levels):
        by_levels.setdefault(point.levels, []).append(point)
    savings = [group[0].saving for group in by_levels.values()]
    means = [statistics.mean(point.perplexity for point in group) for group in by_levels.values()]
    line.set_data(savings, means)
    axes.add_line(line)
    axes.autoscale_view()
    for levels, saving, mean in zip(by_levels, savings, means, strict=True):
        found = [point.perplexity for point in by_levels[levels]]
        if len(found) > 1:
            axes.vlines(saving, min(found), max(found), color=line.get_color(), linewidth=0.8)
        if points[0].unit == "pru":
            looks: dict[str, Any] = {
                "color": "white",
                "size": 7,
                "weight": "bold",
                "ha": "center",
                "va": "center_baseline",
            }
            axes.text(saving, mean, str(levels), zorder=line.get_zorder() + 1, **looks)


def sentence(data: Mapping[str, SweepPoint]) -> str:
    """What the figure shows.

    Example:
        >>> point = SweepPoint("ptb", "600", "pru", 2, 4, "", 1_400_000, 2_880_000, 80.0, True)
        >>> sentence({"a": point})
        'On ptb, a has validation perplexity 80.00, with 51% fewer recurrent parameters than an LSTM.'
    """
    parts = []
    for corpus, called in corpus_names(point.corpus for point in data.values()).items():
        here = {name: point for name, point in data.items() if point.corpus == corpus}
        name = min(here, key=lambda name: here[name].perplexity)
        best = here[name]
        lowest = f"the lowest validation perplexity, {best.perplexity:.2f}"
        reached = lowest if len(here) > 1 else f"validation perplexity {best.perplexity:.2f}"
        parts.append(f"on {called}, {name} has {reached}, with {beside_lstm(best.saving)}")
    text = listed(parts)
    guessed = [name for name, point in data.items() if not point.scored]
    note = (
        f" Not scored by `pru evaluate`, so the lowest during training is shown: {listed(guessed)}."
        if guessed
        else ""
    )
    return f"{text[0].upper()}{text[1:]}.{note}"


def beside_lstm(saving: float) -> str:
    """The recurrent parameters beside those of an LSTM of the same size.

    Example:
        >>> beside_lstm(0.43), beside_lstm(0.0)
        ('43% fewer recurrent parameters than an LSTM', 'as many recurrent parameters as an LSTM')
    """
    if not round(saving, 2):
        return "as many recurrent parameters as an LSTM"
    return f"{abs(saving):.0%} {'fewer' if saving > 0 else 'more'} recurrent parameters than an LSTM"


def describe(data: Mapping[str, SweepPoint]) -> str:
    """Alternative text of the figure.

    Example:
        >>> describe({"a": SweepPoint("ptb", "600", "pru", 2, 4, "", 1_400_000, 2_880_000, 80.0, True)})
        'Perplexity against the saving in recurrent parameters. a: K=2 g=4, saving 51%, perplexity 80.00.'
    """
    parts = []
    for name, point in data.items():
        kind = "LSTM" if point.unit == "lstm" else f"K={point.levels} g={point.groups}"
        parts.append(f"{name}: {kind}, saving {point.saving:.0%}, perplexity {point.perplexity:.2f}.")
    return " ".join(["Perplexity against the saving in recurrent parameters.", *parts])
