"""How long-running functions report their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

ProgressCallback = Callable[[int, "int | None"], None]
"""Called with the amount done and the total amount, if it is known."""

ProgressBar = Callable[[str], AbstractContextManager[ProgressCallback]]
"""Called with a description; gives a context with a `ProgressCallback`."""


@contextmanager
def no_progress_bar(_: str) -> Iterator[ProgressCallback]:
    """A `ProgressBar` that shows nothing."""
    yield lambda done, total: None
