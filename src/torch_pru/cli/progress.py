"""A bar on a terminal, a line now and then where the output is piped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

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
    with Progress(*_columns(console), console=console, transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def is_live(console: Console) -> bool:
    """Whether a bar can be drawn there.

    Example:
        >>> is_live(Console(quiet=True))
        False
    """
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


def _columns(console: Console) -> list[ProgressColumn]:
    """Narrow terminals go without the bar itself."""
    texts: list[ProgressColumn] = [TextColumn("{task.description}", markup=False), TaskProgressColumn()]
    return [*texts, BarColumn(), TimeRemainingColumn()] if console.width >= 60 else texts


def _lines(console: Console, description: str) -> Advance:
    last = time.monotonic()

    def advance(done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= LINE_SECONDS:
            last = time.monotonic()
            share = f"{done / total:.0%}" if total else f"{done:,}"
            console.print(f"{description}: {share}", soft_wrap=True)

    return advance
