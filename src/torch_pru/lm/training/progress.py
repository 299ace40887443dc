"""What a run reports while it is trained, and the signals that stop it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch_pru.lm.evaluation.static import perplexity
from torch_pru.lm.run import pru_command


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a run, sent every ``log_steps`` steps and after each epoch.

    Attributes:
        stage: ``"train"`` or ``"finetune"``.
        round: of finetuning, from 1.
        epoch: the current epoch, from 1.
        epochs: the last epoch, unless the run stops early.
        step: steps taken in this epoch; fewer than ``steps`` at its end if the time was up.
        steps: steps in this epoch.
        loss: mean cross-entropy since the last report, in nats; at the end of an epoch, over the epoch.
        tokens_per_second: since the last report.
        seconds_left: until the end of the last epoch, at the speed so far, or until the time limit.
        valid_loss: of the last epoch that was validated, or None.
        best_valid_loss: the lowest so far, or None.
        averaging: whether the weights are being averaged.
        ended: whether this is the end of an epoch; then ``valid_loss`` is its validation loss.
        stop_reason: why the run ends here; empty if it continues.
        run_folder: of the run.
    """

    stage: str
    round: int
    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    valid_loss: float | None
    best_valid_loss: float | None
    averaging: bool
    ended: bool = False
    stop_reason: str = ""
    run_folder: Path = Path()

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)


class Interrupted(SystemExit):
    """A run was stopped by a signal, and has been saved.

    If it is not caught, the exit status is 130 (SIGINT), 143 (SIGTERM) or 129 (SIGHUP).

    Args:
        number: of the signal.
        run: the run folder.
        finished: whether the run had reached its end.
    """

    def __init__(self, number: int, run: str, *, finished: bool = False) -> None:
        super().__init__(128 + number)
        self.signal_name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if finished:
            self.message = f"stopped by {self.signal_name}; the run in {run} is finished"
        else:
            self.message = (
                f"stopped by {self.signal_name} and saved; continue with: {pru_command('resume', run)}"
            )

    def __str__(self) -> str:
        return self.message


class StopRequest:
    """A context that records the first SIGINT, SIGTERM or SIGHUP; a second one has its usual effect."""

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


ProgressListener = Callable[[TrainingProgress], None]


class ProgressNotifier:
    """Calls a listener. An error that it raises stops the runs, and is raised again when they are saved.

    Args:
        listener: what to call, or None.
        stop: the request that the runs look at.
    """

    def __init__(self, listener: ProgressListener | None, stop: StopRequest) -> None:
        self.listener, self.stop = listener, stop
        self.error: BaseException | None = None

    def __call__(self, progress: TrainingProgress) -> None:
        """Call the listener, unless it has raised before."""
        if self.listener is None or self.error is not None:
            return
        try:
            self.listener(progress)
        except (Exception, SystemExit) as error:  # rich raises SystemExit if a pipe is closed
            self.error = error
            self.stop.number = self.stop.number or signal.SIGTERM

    def __enter__(self) -> ProgressNotifier:
        return self

    def __exit__(self, kind: object, leaving: BaseException | None, traceback: object) -> None:
        if self.error is not None and (leaving is None or isinstance(leaving, Interrupted)):
            raise self.error
