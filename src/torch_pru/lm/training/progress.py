"""What a run tells those who watch it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from torch_pru.lm.evaluation.static import perplexity
from torch_pru.lm.training.signals import Interrupted, StopRequest


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Sent every ``log_steps`` steps and after each epoch.

    Attributes:
        stage: ``"train"`` or ``"finetune"``.
        round: of finetuning, from 1.
        epoch: the epoch at work, from 1.
        epochs: the last epoch, as far as is known now.
        step: windows done in this epoch.
        steps: windows of this epoch.
        loss: mean cross-entropy since the last report, in nats.
        tokens_per_second: since the last report.
        seconds_left: until ``epochs`` epochs are done, at the speed so far.
        valid_loss: of the last epoch that was validated, or None.
        best_valid_loss: the lowest so far, or None.
        averaging: whether the weights are being averaged.
        ended: whether the epoch is over; then ``loss`` is that of all of it and ``valid_loss`` its own.

    Example:
        >>> Progress("train", 1, 1, 500, 50, 686, 6.5, 9000.0, 7200.0, None, None, False).perplexity
        665.1416330443618
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

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(self.loss)


Listener = Callable[[Progress], None]


class Teller:
    """Calls a listener, whose errors stop the runs as a signal does and are raised once those have saved.

    Args:
        listener: what to call, or None.
        stop: what the runs look at.

    Example:
        >>> with Teller(print, StopRequest()) as tell:
        ...     tell("epoch 1")
        epoch 1
    """

    def __init__(self, listener: Callable[..., None] | None, stop: StopRequest) -> None:
        self.listener, self.stop = listener, stop
        self.error: BaseException | None = None

    def __call__(self, *report: object) -> None:
        """Tell the listener, unless it failed before."""
        if self.listener is None or self.error is not None:
            return
        try:
            self.listener(*report)
        except (Exception, SystemExit) as error:  # rich leaves by SystemExit where a pipe is closed
            self.error = error
            self.stop.number = self.stop.number or signal.SIGTERM

    def __enter__(self) -> Teller:
        return self

    def __exit__(self, kind: object, leaving: BaseException | None, traceback: object) -> None:
        if self.error is not None and (leaving is None or isinstance(leaving, Interrupted)):
            raise self.error
