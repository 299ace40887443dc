"""Tables that fit a terminal: a narrow one does not show all columns, and a line names those left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table

from torch_pru.cli.console import say

GAP = 2
"""Blanks between columns."""

WORD = 13
"""Longer words of a wrapped column may be broken; the hidden sizes 1400-1400-400 may not."""


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[str] = (),
    wrapped: Collection[str] = (),
    spare: Sequence[str] = (),
) -> list[str]:
    """Print a table, and under it the columns that were left out for lack of room.

    Args:
        headings: a title for each column.
        rows: a cell for each column.
        left: columns that are aligned to the left, the others to the right.
        wrapped: columns whose cells may take several lines.
        spare: columns that a narrow terminal does not show; the first one is left out first.

    Returns:
        The columns that were left out.

    Example:
        >>> rows = [["tiny-1", "60.62", "3.5"]]
        >>> print_table(Console(width=15), ["run", "test", "minutes"], rows, spare=["minutes"])
           run   test
        tiny-1  60.62
        left out for lack of room: minutes
        ['minutes']
    """
    sizes = {
        name: measured(console, [name, *(row[place] for row in rows)], wrap=name in wrapped)
        for place, name in enumerate(headings)
    }
    shown = columns_that_fit(console.width, sizes, spare)
    widths = widths_of(console.width, {name: sizes[name] for name in shown})
    table = Table(box=None, pad_edge=False)
    for name in shown:
        side: JustifyMethod = "left" if name in left else "right"
        table.add_column(name, justify=side, width=widths.get(name), overflow="fold")
    for row in rows:
        table.add_row(*(text for name, text in zip(headings, row, strict=True) if name in shown))
    console.print(table)
    left_out = [" ".join(name.split()) for name in headings if name not in shown]
    if left_out:
        say(console, f"left out for lack of room: {', '.join(left_out)}", style="dim")
    return left_out


def measured(console: Console, cells: Sequence[str], *, wrap: bool) -> Measurement:
    """The smallest and the full width of a column."""
    sizes = [Measurement.get(console, console.options.update(width=10_000), cell) for cell in cells]
    full = max(size.maximum for size in sizes)
    return Measurement(min(WORD, max(size.minimum for size in sizes)) if wrap else full, full)


def columns_that_fit(width: int, sizes: dict[str, Measurement], spare: Sequence[str]) -> list[str]:
    """The columns without those for which there is no room.

    Example:
        >>> sizes = {"run": Measurement(6, 6), "test": Measurement(5, 5), "minutes": Measurement(7, 7)}
        >>> columns_that_fit(22, sizes, ["minutes"]), columns_that_fit(21, sizes, ["minutes"])
        (['run', 'test', 'minutes'], ['run', 'test'])
    """
    shown = list(sizes)
    for name in spare:
        if sum(sizes[one].minimum for one in shown) + GAP * (len(shown) - 1) <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


def widths_of(width: int, sizes: dict[str, Measurement]) -> dict[str, int]:
    """The width of each column. Spare room goes to the first ones. Empty if there is too little room.

    Example:
        >>> widths_of(20, {"run": Measurement(4, 9), "differs in": Measurement(5, 30)})
        {'run': 9, 'differs in': 9}
    """
    over = width - sum(size.minimum for size in sizes.values()) - GAP * (len(sizes) - 1)
    if over < 0:
        return {}
    widths = {}
    for name, size in sizes.items():
        more = min(over, size.maximum - size.minimum)
        widths[name], over = size.minimum + more, over - more
    return widths
