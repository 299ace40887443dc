"""Validation perplexity of the combinations of a grid, one below the other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from torch_pru.analysis.figures.style import look, new_figure, style
from torch_pru.lm.sweep import SweepRow


@style()
def draw(rows: Sequence[SweepRow]) -> Figure:
    """A line for each combination, the best on top: its mean, and the standard deviation over its seeds.

    Example:
        >>> figure = draw([SweepRow("lstm", 850_000, [61.0, 63.0], [64.0, 65.0], 9000.0, 2.0)])
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['lstm (850,000)']
    """
    ordered = sorted(rows, key=lambda row: statistics.mean(row.valid))
    figure = new_figure(0.9 + 0.22 * len(ordered))
    axes = figure.subplots()
    for place, row in enumerate(ordered):
        spread = statistics.stdev(row.valid) if len(row.valid) > 1 else 0.0
        looks = look(1 if row.label.startswith("lstm") else 0) | {"linestyle": "none", "marker": "o"}
        axes.errorbar(statistics.mean(row.valid), place, xerr=spread, capsize=3, **looks)
    axes.set_yticks(range(len(ordered)), labels=[f"{row.label} ({row.parameters:,})" for row in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlabel("validation perplexity (number of parameters in brackets)")
    return figure
