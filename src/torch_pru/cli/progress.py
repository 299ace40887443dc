"""A bar on a terminal, a line now and then where the output is piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from torch_pru.cli.console import messages

Advance = Callable[[int, "int | None"], None]
"""Called with how much is done and how much there is."""

LINE_SECONDS = 30.0  # between lines where there is no terminal


@contextmanager
def bar(description: str) -> Iterator[Advance]:
    """Show how far something is; nothing of it stays on the screen.

    Example:
        >>> with bar("scoring") as advance:
        ...     advance(5, 10)
    """
    console = messages()
    if not is_live(console):
        yield _lines(console, description)
        return
    with FittingBars(_columns, console) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class FittingBars(Progress):
    """Bars as wide as the terminal, also after its size has changed; nothing of them stays on the screen.

    Args:
        columns_for: what fits into a number of characters.
        console: where to.
    """

    def __init__(self, columns_for: Callable[[int], Sequence[ProgressColumn]], console: Console) -> None:
        self.columns_now = lambda: tuple(columns_for(console.width))
        super().__init__(console=console, transient=True, expand=True, disable=not is_live(console))

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """The bars as they are drawn now."""
        self.columns = self.columns_now()
        return super().make_tasks_table(tasks)


def is_live(console: Console) -> bool:
    """Whether a bar can be drawn there.

    Example:
        >>> is_live(Console(quiet=True))
        False
    """
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


def _columns(width: int) -> list[ProgressColumn]:
    """Narrow terminals go without the time left, and very narrow ones without the description."""
    title = TextColumn("{task.description}", markup=False)
    share, bar = TaskProgressColumn(), BarColumn(bar_width=None)
    if width < 40:
        return [bar, share]
    return [title, bar, share] if width < 60 else [title, bar, share, TimeRemainingColumn()]


def _lines(console: Console, description: str) -> Advance:
    last = time.monotonic()

    def advance(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            share = f"{done / total:.0%}" if total else f"{done:,}"
            console.print(f"{description}: {share}", soft_wrap=True)

    return advance
