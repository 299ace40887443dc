"""Where the difference between two groups of runs comes from."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from torch_pru.analysis.figures.style import COLORS, PALE, new_figure, style
from torch_pru.lm.compare import Part, RunComparison


@style()
def draw(found: RunComparison) -> Figure:
    """Two panels, by word frequency and by position: what each group of tokens adds to the difference.

    The bars of a panel add up to the difference of the mean losses. The lines are 95% intervals.
    """
    groups = (found.by_frequency, found.by_position)
    rows = [len(parts) for parts in groups]
    figure = new_figure(1.3 + 0.22 * sum(rows))
    panels = figure.subplots(2, height_ratios=rows, sharex=True)
    titles = ("by how often the word occurs in the training text", "by its position in the sentence")
    for axes, parts, title in zip(panels, groups, titles, strict=True):
        _draw_parts(axes, parts)
        axes.set_title(title)
    panels[1].set_xlabel("part of the difference in loss, nats per token")
    panels[1].xaxis.set_major_locator(MaxNLocator(5))
    return figure


def _draw_parts(axes: Axes, parts: Sequence[Part]) -> None:
    total = sum(part.tokens for part in parts)
    labels = [f"{part.label} ({part.tokens / total:.0%})" for part in parts]
    values = [part.contribution for part in parts]
    colors = [COLORS[0] if value < 0 else COLORS[1] for value in values]
    axes.barh(labels, values, color=colors, height=0.7)
    axes.hlines(
        range(len(parts)),
        [part.interval.low for part in parts],
        [part.interval.high for part in parts],
        color="black",
        linewidth=1.0,
    )
    axes.axvline(0.0, color=PALE, linewidth=0.8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def describe(found: RunComparison) -> str:
    """Alternative text of the figure."""
    groups = {"frequency": found.by_frequency, "position": found.by_position}
    texts = [
        f"By {name}: " + "; ".join(f"{part.label}: {part.contribution:+.4f}" for part in parts) + "."
        for name, parts in groups.items()
    ]
    return " ".join(["Contributions to the difference of mean losses, nats per token.", *texts])
