"""Gradients at the word vectors: heat maps, and the share above a threshold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from torch_pru.analysis.coverage import SHARE, Coverage
from torch_pru.analysis.figures.style import HEAT, PALE, add_legend, listed, look, new_figure, style, wrapped


@style()
def draw_maps(data: Mapping[str, Coverage]) -> Figure:
    """One panel per run, dimensions by positions, each relative to the run's own largest gradient.

    Example:
        >>> found = Coverage([[1.0, 0.0]], 1.0, 0.5, [0.1, 1.0], [0.5, 0.0])
        >>> draw_maps({"PRU": found}).axes[0].get_title("left")
        'PRU: 50% of the entries above 0.1'
    """
    figure = new_figure(0.7 + 2.0 * len(data))
    panels = figure.subplots(len(data), squeeze=False)[:, 0]
    for axes, (name, found) in zip(panels, data.items(), strict=True):
        parts = np.abs(np.array(found.gradient)) / (found.largest or 1.0)
        image = axes.imshow(
            np.maximum(parts, 1e-2),
            aspect="auto",
            interpolation="nearest",
            cmap=HEAT,
            norm=LogNorm(1e-2, 1),
            extent=(0.5, parts.shape[1] + 0.5, len(parts) + 0.5, 0.5),
        )
        axes.grid(visible=False)
        axes.set_title(wrapped(f"{name}: {found.share:.0%} of the entries above {SHARE:g}", 55))
        axes.set_ylabel("position (words)")
    panels[-1].set_xlabel("dimension of the word vector")
    bar = figure.colorbar(image, ax=list(panels), location="bottom", aspect=40, pad=0.02)
    bar.set_label("|gradient| relative to the model's largest (0.01: that or less)")
    bar.ax.axvline(SHARE, color="black", linewidth=1)
    bar.ax.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    return figure


@style()
def draw_shares(data: Mapping[str, Coverage]) -> Figure:
    """The share of entries above each threshold.

    Example:
        >>> found = Coverage([[1.0, 0.0]], 1.0, 0.5, [0.1, 1.0], [0.5, 0.0])
        >>> draw_shares({"PRU": found}).axes[0].get_ylabel()
        'entries above the threshold'
    """
    figure = new_figure(2.7)
    axes = figure.subplots()
    axes.axvline(SHARE, color=PALE, linewidth=0.8)
    lines: list[Line2D] = []
    for number, (name, found) in enumerate(data.items()):
        label = f"{name}: {found.share:.1%} at {SHARE:g}"
        lines += axes.plot(found.thresholds, found.shares, label=label, **look(number))
    axes.set_xscale("log")
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
    axes.set_xlim(0.001, 1)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes.set_xlabel("threshold, relative to the model's largest |gradient|")
    axes.set_ylabel("entries above the threshold")
    add_legend(figure, lines)
    return figure


def sentence(data: Mapping[str, Coverage]) -> str:
    """What the figures show.

    Example:
        >>> found = Coverage([[1.0, 0.0]], 1.0, 0.5, [0.1, 1.0], [0.5, 0.0])
        >>> sentence({"PRU": found}).partition(" An entry")[0]
        'Share of the entries of the input word vectors that matter for the predictions: 50.0% in PRU.'
    """
    shares = listed(f"{found.share:.1%} in {name}" for name, found in data.items())
    return (
        f"Share of the entries of the input word vectors that matter for the predictions: {shares}. An entry "
        f"matters here if its gradient is larger than a tenth of the largest one."
    )


def describe_maps(data: Mapping[str, Coverage]) -> str:
    """Alternative text of the heat maps.

    Example:
        >>> describe_maps({"PRU": Coverage([[1.0, 0.0]], 1.0, 0.5, [0.1, 1.0], [0.5, 0.0])})
        'Heat maps of the gradient at the input. PRU: 1 by 2 entries, 50.0% above a tenth of the largest.'
    """
    parts = [
        f"{name}: {len(found.gradient)} by {len(found.gradient[0])} entries, "
        f"{found.share:.1%} above a tenth of the largest."
        for name, found in data.items()
    ]
    return " ".join(["Heat maps of the gradient at the input.", *parts])


def describe_shares(data: Mapping[str, Coverage]) -> str:
    """Alternative text of the curves.

    Example:
        >>> describe_shares({"PRU": Coverage([[1.0, 0.0]], 1.0, 0.5, [0.01, 0.1, 0.5], [1.0, 0.5, 0.5])})
        'Share of entries by threshold. PRU: 100.0% above 0.01, 50.0% above 0.1.'
    """
    parts = []
    for name, found in data.items():
        pairs = zip(found.thresholds, found.shares, strict=True)
        values = (f"{share:.1%} above {part:g}" for part, share in pairs if part in (0.01, SHARE))
        parts.append(f"{name}: {', '.join(values)}.")
    return " ".join(["Share of entries by threshold.", *parts])
