"""Ctrl-C and SIGTERM: finish the step, save, and leave with a status that says so."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from torch_pru.lm.run import pru_command


class Interrupted(SystemExit):
    """A run that was asked to stop, and has saved. Uncaught, the status is 130 (SIGINT) or 143 (SIGTERM).

    Example:
        >>> Interrupted(2, "runs/mine").code
        130
    """

    def __init__(self, number: int, run: str) -> None:
        super().__init__(128 + number)
        name = signal.Signals(number).name
        self.message = f"stopped by {name} and saved; go on with: {pru_command('resume', run)}"

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Notes the first SIGINT or SIGTERM that comes inside its ``with`` block; a second one acts at once.

    Example:
        >>> with StopRequest() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.number == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # handlers can be set there only
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __exit__(self, *error: object) -> None:
        self._restore()
