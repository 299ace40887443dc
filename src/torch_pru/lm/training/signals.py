"""Signals that stop a run: it finishes the step, saves, and exits with the status of the signal."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from torch_pru.lm.run import pru_command


class Interrupted(SystemExit):
    """A run was stopped by a signal, and has been saved.

    If it is not caught, the exit status is 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).

    Args:
        number: of the signal.
        run: the run folder.
        finished: whether the run had reached its end.

    Example:
        >>> Interrupted(2, "runs/mine").code
        130
    """

    def __init__(self, number: int, run: str, *, finished: bool = False) -> None:
        super().__init__(128 + number)
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if finished:
            self.message = f"stopped by {name}; the run in {run} is finished"
        else:
            self.message = f"stopped by {name} and saved; continue with: {pru_command('resume', run)}"

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """A context that records the first SIGINT, SIGTERM or SIGHUP; a second one has its usual effect.

    Example:
        >>> with StopRequest() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     stop.number == signal.SIGTERM
        True
    """

    def __init__(self) -> None:
        self.number = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # the only one that can set handlers
            for number in stop_signals():
                self._previous[number] = signal.signal(number, self._record)
        return self

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def __exit__(self, *error: object) -> None:
        self._restore_handlers()


def stop_signals() -> list[int]:
    """The signals that stop a run; SIGHUP only if it exists and ``nohup`` does not ignore it."""
    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
