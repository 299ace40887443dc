"""Sentences as heat maps: the background of each word shows its relevance."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from torch_pru.analysis.figures.style import HEAT, WIDTH, listed, new_figure, style, wrapped
from torch_pru.analysis.saliency import Saliency

SIZE = 9.0  # points; with letters of one width, lines can be laid out by counting
LETTER = 0.615 * SIZE / 72  # inches: a letter of DejaVu Sans Mono, 0.602, as wide as pixels may make it
LINE = 0.225  # inches from line to line
LETTERS = int((WIDTH - 0.3) / LETTER)  # of a line
DARK = 0.72  # the relevance whose color is as far from white as from black


@style()
def draw(data: Mapping[str, Saliency]) -> Figure:
    """The sentence once per run, with the most likely next words below it.

    Example:
        >>> found = Saliency(["<eos>", "amen"], 1, "amen", 0.9, [2.5, 0.0], [])
        >>> len(draw({"PRU": found}).axes)
        2
    """
    blocks = {name: break_lines(found.words) for name, found in data.items()}
    guesses = {name: wrap_guesses(found) for name, found in data.items()}
    headings = {name: _heading(name, found) for name, found in data.items()}
    lines = sum(len(blocks[name]) + len(guesses[name]) + len(headings[name]) + 0.7 for name in data)
    figure, axes = _sheet(lines * LINE)
    top = 0.0
    for name, found in data.items():
        for line in headings[name]:
            _write(axes, 0, top, line, weight="bold")
            top += LINE
        top = _draw_words(axes, found, blocks[name], top)
        for line in guesses[name]:
            _write(axes, 0, top, line)
            top += LINE
        top += 0.7 * LINE
    return figure


def _sheet(height: float) -> tuple[Figure, Axes]:
    """A figure with a color bar and, above it, axes in inches from their upper left corner."""
    below, margin = 0.6, 0.15
    figure = new_figure(height + below)
    figure.set_layout_engine("none")  # lines are laid out by counting: nothing may stretch them
    width = WIDTH - 2 * margin
    whole = height + below
    axes = figure.add_axes((margin / WIDTH, below / whole, width / WIDTH, height / whole))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    scale = figure.add_axes((0.1, 0.42 / whole, 0.8, 0.1 / whole))
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), HEAT), cax=scale, orientation="horizontal")
    bar.set_label("relevance, relative to the sentence's largest")
    return figure, axes


def _heading(name: str, found: Saliency) -> list[str]:
    return wrapped(f"{name}: relevance to “{found.explained}”", LETTERS).split("\n")


def break_lines(words: list[str], letters: int = LETTERS) -> list[list[int]]:
    """The positions of the words of each line.

    Example:
        >>> break_lines(["in", "the", "beginning"], letters=8)
        [[0, 1], [2]]
    """
    lines: list[list[int]] = [[]]
    used = 0
    for position, word in enumerate(words):
        if lines[-1] and used + len(word) + 1 > letters:
            lines.append([])
            used = 0
        lines[-1].append(position)
        used += len(word) + 2
    return lines


def wrap_guesses(found: Saliency) -> list[str]:
    """The most likely next words as lines of text.

    Example:
        >>> from torch_pru.analysis.saliency import Guess
        >>> wrap_guesses(Saliency(["<eos>", "amen"], 1, "amen", 0.9, [2.5, 0.0], [Guess("amen", 0.9)]))
        ['next: amen 0.900']
    """
    lines, line = [], "next:"
    for guess in found.guesses:
        probability = f"{guess.probability:.3f}" if guess.probability >= 0.0005 else "<0.001"
        piece = f" {guess.word} {probability}"
        if len(line) + len(piece) + 2 > LETTERS:  # a comma before it and one after
            lines.append(line + ",")
            line = "     "
        line += piece if line in ("next:", "     ") else f",{piece}"
    return [*lines, line]


def _draw_words(axes: Axes, found: Saliency, lines: list[list[int]], top: float) -> float:
    """Draw lines of words and return the height below them."""
    largest = max(found.relevance) or 1.0
    for line in lines:
        left = 0.0
        for position in line:
            word, share = found.words[position], found.relevance[position] / largest
            width = (len(word) + 1) * LETTER
            context = position < found.predicted
            box = Rectangle(
                (left, top + 0.015),
                width,
                LINE - 0.03,
                facecolor=HEAT(share) if context else "none",
                edgecolor="black" if position == found.predicted else "#BBBBBB" if context else "none",
                linewidth=1.2 if position == found.predicted else 0.4,
                clip_on=False,  # half of the first frame's line is left of the axes
            )
            axes.add_patch(box)
            looks = "bold" if position == found.predicted else "normal"
            color = "white" if share > DARK else "black" if position <= found.predicted else "#767676"
            _write(axes, left + width / 2, top, word, weight=looks, color=color, ha="center")
            left += width + LETTER
        top += LINE
    return top


def _write(axes: Axes, left: float, top: float, text: str, **looks: str) -> None:
    """One line of text whose box begins at (left, top), in letters of one width."""
    axes.text(
        left,
        top + LINE / 2,
        text,
        family="monospace",
        size=SIZE,
        va="center_baseline",
        **looks,  # type: ignore[arg-type]
    )


def sentence(data: Mapping[str, Saliency]) -> str:
    """What the figure shows.

    Example:
        >>> found = Saliency(["<eos>", "let", "us", "pray"], 3, "pray", 0.91, [0.1, 2.5, 1.0, 0.0], [])
        >>> sentence({"PRU": found})
        'The next word is “pray”: PRU gives it probability 0.91 and relies most on “let” and “us”.'
    """
    parts = []
    for name, found in data.items():
        most = listed(f"“{found.words[position]}”" for position in strongest(found))
        explained = (
            "" if found.explained == found.reference else f" for its most likely word “{found.explained}”"
        )
        parts.append(
            f"{name} gives it probability {found.probability:.2g} and relies most on {most}{explained}"
        )
    return f"The next word is “{next(iter(data.values())).reference}”: {'; '.join(parts)}."


def strongest(found: Saliency, count: int = 2) -> list[int]:
    """The positions before the predicted word with the largest relevance, largest first."""
    context = range(found.predicted)
    return sorted(context, key=lambda position: -found.relevance[position])[:count]


def describe(data: Mapping[str, Saliency]) -> str:
    """Alternative text of the figure.

    Example:
        >>> found = Saliency(["<eos>", "amen"], 1, "amen", 0.9, [2.5, 0.0], [])
        >>> describe({"PRU": found})
        'Heat map of the words “<eos> [amen]”. Relevance relative to the largest: PRU: <eos> 1.00.'
    """
    one = next(iter(data.values()))
    words = [f"[{word}]" if at == one.predicted else word for at, word in enumerate(one.words)]
    parts = []
    for name, found in data.items():
        largest = max(found.relevance) or 1.0
        values = (f"{found.words[at]} {found.relevance[at] / largest:.2f}" for at in range(found.predicted))
        parts.append(f"{name}: {', '.join(values)}.")
    return f"Heat map of the words “{' '.join(words)}”. Relevance relative to the largest: {' '.join(parts)}"
