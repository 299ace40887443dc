"""Ctrl-C, SIGTERM, a closed terminal: finish the step, save, and leave with a status that says so."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from torch_pru.lm.run import pru_command


class Interrupted(SystemExit):
    """A run that was asked to stop, and has saved.

    Uncaught, the status is 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).

    Args:
        number: of the signal.
        run: its folder.
        finished: whether the run was at its end.

    Example:
        >>> Interrupted(2, "runs/mine").code
        130
    """

    def __init__(self, number: int, run: str, *, finished: bool = False) -> None:
        super().__init__(128 + number)
        name = signal.Signals(number).name
        if finished:
            self.message = f"stopped by {name}; the run in {run} is finished"
        else:
            self.message = f"stopped by {name} and saved; go on with: {pru_command('resume', run)}"

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """Notes the first SIGINT, SIGTERM or SIGHUP inside its ``with`` block; a second one acts at once.

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
            for number in stopping_signals():
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


def stopping_signals() -> list[int]:
    """Those that ask a run to stop; SIGHUP only where there is one and ``nohup`` does not ignore it."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
