"""Perplexity against the number of parameters, for the runs of a grid."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from torch_pru.analysis.figures.style import look, new_figure, style
from torch_pru.lm.sweep import Row


@style()
def draw(rows: Sequence[Row]) -> Figure:
    """A point for each combination, with its label; the bar is the standard deviation over seeds.

    Example:
        >>> figure = draw([Row("lstm", 850_000, [61.0, 63.0], [64.0, 65.0], 9000.0, 2.0)])
        >>> figure.axes[0].get_ylabel()
        'validation perplexity'
    """
    figure = new_figure(3.4)
    axes = figure.subplots()
    for row in rows:
        spread = statistics.stdev(row.valid) if len(row.valid) > 1 else 0.0
        looks = look(1 if row.label.startswith("lstm") else 0) | {"linestyle": "none"}
        axes.errorbar(row.parameters / 1e6, statistics.mean(row.valid), yerr=spread, capsize=3, **looks)
        axes.annotate(
            row.label,
            (row.parameters / 1e6, statistics.mean(row.valid)),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize="small",
        )
    axes.set_xlabel("parameters, million")
    axes.set_ylabel("validation perplexity")
    axes.margins(x=0.2, y=0.15)
    return figure
