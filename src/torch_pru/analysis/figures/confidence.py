"""Histogram of next-word entropies."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from torch_pru.analysis.confidence import Confidence
from torch_pru.analysis.figures.style import add_legend, listed, look, new_figure, style


@style()
def draw(data: Mapping[str, Confidence]) -> Figure:
    """One outline per run, with a triangle at its mean.

    Example:
        >>> figure = draw({"PRU": Confidence(2, 0.5, 0.7, [0.0, 0.5, 1.0], [1, 1])})
        >>> figure.axes[0].get_xlabel()
        'entropy of the next-word distribution (nats)'
    """
    figure = new_figure(2.8)
    axes = figure.subplots()
    outlines = []
    for number, (name, found) in enumerate(data.items()):
        shape = look(number)
        label = f"{name}: mean {found.mean:.2f}"
        outlines.append(axes.stairs(found.counts, found.edges, label=label, linewidth=1.4, **shape))
        axes.plot([found.mean], [0], "^", color=shape["color"], clip_on=False, zorder=3)
    edges = next(iter(data.values())).edges
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("entropy of the next-word distribution (nats)")
    axes.set_ylabel(f"contexts per bin of {edges[1]:.2f} nats")
    add_legend(figure, outlines, "triangles on the axis: means")
    return figure


def sentence(data: Mapping[str, Confidence]) -> str:
    """What the figure shows.

    Example:
        >>> sentence({"PRU": Confidence(3687, 3.8, 4.1, [0.0, 9.2], [3687])}).partition(";")[0]
        'Over 3,687 contexts the mean entropy is 3.80 nats for PRU (mean loss 4.10)'
    """
    means = listed(
        f"{found.mean:.2f} nats for {name} (mean loss {found.loss:.2f})" for name, found in data.items()
    )
    contexts = listed(dict.fromkeys(f"{found.contexts:,}" for found in data.values()))
    return (
        f"Over {contexts} contexts the mean entropy is {means}; lower is more confident, "
        f"which is good only if the loss is low as well."
    )


def describe(data: Mapping[str, Confidence]) -> str:
    """Alternative text of the figure.

    Example:
        >>> describe({"PRU": Confidence(2, 0.5, 0.7, [0.0, 0.5, 1.0], [2, 1])})
        'Histogram of next-word entropies in nats. PRU: mean 0.50, most contexts between 0.00 and 0.50.'
    """
    parts = []
    for name, found in data.items():
        peak = found.counts.index(max(found.counts))
        low, high = found.edges[peak : peak + 2]
        parts.append(f"{name}: mean {found.mean:.2f}, most contexts between {low:.2f} and {high:.2f}.")
    return " ".join(["Histogram of next-word entropies in nats.", *parts])
