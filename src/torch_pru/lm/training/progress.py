"""What a run reports while it is trained."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_pru.lm.evaluation.static import perplexity
from torch_pru.lm.training.signals import Interrupted, StopRequest


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


ProgressListener = Callable[[TrainingProgress], None]


class ProgressNotifier:
    """Calls a listener. An error that it raises stops the runs, and is raised again when they are saved.

    Args:
        listener: what to call, or None.
        stop: the request that the runs look at.

    Example:
        >>> with ProgressNotifier(print, StopRequest()) as notify:
        ...     notify("epoch 1")
        epoch 1
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
