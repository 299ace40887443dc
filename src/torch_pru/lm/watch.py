"""How long work tells how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

Advance = Callable[[int, "int | None"], None]
"""Called with how much is done, and with how much there is where that is known."""

Watch = Callable[[str], AbstractContextManager[Advance]]
"""Called with what is being done; inside, the work calls what it gives."""


@contextmanager
def unwatched(_: str) -> Iterator[Advance]:
    """A `Watch` that shows nothing.

    Example:
        >>> with unwatched("scoring") as advance:
        ...     advance(5, 10)
    """
    yield lambda done, total: None
