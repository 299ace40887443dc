"""What all figures share: size, fonts, colors, and how they are rendered."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch_pru.analysis.runs import distinct_names
from torch_pru.errors import PRUError
from torch_pru.lm.data.prepare import title_of
from torch_pru.lm.visible import visible

try:
    import matplotlib
    from matplotlib.artist import Artist
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.text import Text
except ImportError:
    raise PRUError("figures need Matplotlib; pip install 'torch-pru[analysis]'") from None

NOT_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Characters that no XML may hold."""

WIDTH = 5.0  # inches: about a printed column, readable on a phone
COLORS = ("#0072B2", "#D55E00", "#000000", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's color-blind safe colors, ordered so that their grays differ most."""
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PALE = "#767676"  # for auxiliary lines

HEAT = LinearSegmentedColormap.from_list("heat", ["#FFFFFF", "#F5C9A8", "#D55E00", "#5A2600"])
"""White to dark, monotonic in gray, so that it can be printed."""

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "text.parse_math": False,  # a $ in a word or in a run's name is a $
    "savefig.dpi": 300,
    "svg.hashsalt": "torch-pru",  # the same data makes the same file
}


def style() -> Any:
    """A context manager and decorator for drawing; the caller's Matplotlib settings are not changed.

    Example:
        >>> with style():
        ...     matplotlib.rcParams["savefig.dpi"]
        300.0
    """
    return matplotlib.rc_context(SETTINGS)


def new_figure(height: float) -> Figure:
    """An empty figure of the usual width, with a layout that does not cut off text.

    Example:
        >>> new_figure(2.5).get_size_inches().tolist()
        [5.0, 2.5]
    """
    return Figure(figsize=(WIDTH, height), layout="constrained")


def add_legend(figure: Figure, handles: Sequence[Artist], title: str | None = None) -> None:
    """Add a legend above the axes; the figure grows by its height.

    Example:
        >>> figure = new_figure(2.0)
        >>> add_legend(figure, figure.subplots().plot([1, 2], label="PRU"))
        >>> figure.legends[0].get_texts()[0].get_text()
        'PRU'
    """
    labels = [wrapped(str(handle.get_label())) for handle in handles]
    columns = 2 if len(labels) > 2 and max(map(len, labels)) <= 32 else 1
    figure.legend(
        handles=handles, labels=labels, loc="outside upper left", ncols=columns, title=title, alignment="left"
    )
    lines = sum(label.count("\n") + 1 for label in labels) / columns + (title is not None)
    figure.set_figheight(figure.get_figheight() + 0.17 * lines)


def wrapped(text: str, letters: int = 62) -> str:
    """Wrap text to lines that fit into a figure.

    Example:
        >>> wrapped("a-long-name", letters=7)
        'a-long-\\nname'
    """
    return "\n".join(textwrap.wrap(text, letters))


def corpus_names(corpora: Iterable[str]) -> dict[str, str]:
    """The name of each corpus in figures: the shortest distinct end of its path.

    Example:
        >>> corpus_names(["ptb", "/texts/tales", "ptb"])
        {'ptb': 'ptb', '/texts/tales': 'tales'}
    """
    corpora = list(dict.fromkeys(corpora))
    titles = {corpus: title_of(corpus) for corpus in corpora}
    if len(set(titles.values())) == len(corpora):
        return titles
    return dict(zip(corpora, distinct_names([Path(corpus) for corpus in corpora]), strict=True))


def look(number: int) -> dict[str, Any]:
    """Color and line style of a series by its number; the first 28 are distinct.

    Example:
        >>> look(0)
        {'color': '#0072B2', 'linestyle': '-'}
    """
    # Color and line change together, so that runs differ in gray print too.
    line = number % len(COLORS) + number // len(COLORS)
    return {"color": COLORS[number % len(COLORS)], "linestyle": LINES[line % len(LINES)]}


def render(figure: Figure, kind: str) -> bytes:
    """The figure as ``"svg"`` or ``"png"``.

    Example:
        >>> render(new_figure(1.0), "png")[1:4]
        b'PNG'
    """
    for text in figure.findobj(Text):  # words of a corpus and names of runs
        text.set_text(visible(text.get_text(), lines=True))
    buffer = io.BytesIO()
    with style():
        # No date: the same data makes the same file.
        figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    content = buffer.getvalue()
    return NOT_XML.sub(b"?", content) if kind == "svg" else content  # tick labels, in comments


def listed(items: Iterable[str]) -> str:
    """Join items as in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    *before, last = items
    return f"{', '.join(before)} and {last}" if before else last
