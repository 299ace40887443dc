"""What a run tells those who watch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch_pru.lm.evaluation.static import perplexity


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
