"""What is decided after each epoch: when averaging begins, when to start another round, when to stop."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch_pru.lm.config import TrainingConfig


class Decision(Enum):
    """What the loop does next."""

    CONTINUE = "continue"
    AVERAGE = "average"  # keep a running average of the weights from here on
    RESTART = "restart"  # another round of finetuning, from the best weights
    STOP = "stop"


def trigger_fires(history: list[float], loss: float, window: int) -> bool:
    """The non-monotone trigger: ``loss`` is above the lowest of all but the last ``window`` losses.

    With ``window`` losses on record or fewer it never fires. ``history`` does not hold ``loss`` yet.

    Example:
        >>> trigger_fires([5.0, 4.0, 4.1, 4.1, 4.1, 4.1], 5.1, window=5)
        True
        >>> trigger_fires([5.0, 4.0, 4.1, 4.1, 4.1, 4.1], 4.9, window=5)
        False
    """
    return len(history) > window and loss > min(history[:-window])


@dataclass
class Schedule:
    """Follows the validation losses of a run.

    ``train``: plain SGD until the trigger fires, then averaged SGD to the last epoch; past ``epochs`` up to
    ``extend_to`` as long as the best loss is no older than ``trigger_window`` epochs.
    ``finetune``: averaged SGD from the start until the trigger fires, and another such round as long as the
    last one lowered the best loss; ``epochs`` epochs at most in all rounds together.

    Example:
        >>> schedule = Schedule(TrainingConfig(epochs=2), "train")
        >>> schedule.end_epoch(5.0), schedule.end_epoch(4.0)
        (<Decision.CONTINUE: 'continue'>, <Decision.STOP: 'stop'>)
        >>> schedule.best, schedule.best_epoch
        (4.0, 2)
    """

    config: TrainingConfig
    stage: str
    epoch: int = 0  # epochs that are done, over all rounds
    best: float = math.inf
    best_epoch: int = 0
    round: int = 1
    best_before_round: float = math.inf
    averaging: bool = False
    history: list[float] = field(default_factory=list)

    @classmethod
    def finetuning(cls, config: TrainingConfig, best: float) -> Schedule:
        """The start of finetuning from weights of validation loss ``best``."""
        return cls(config, "finetune", best=best, best_before_round=best, averaging=True)

    @property
    def epochs(self) -> int:
        """The last epoch, as far as is known now."""
        if self.stage == "finetune" or self.epoch < self.config.epochs:
            return self.config.epochs
        return self.epoch + 1 if self._is_extended() else self.epoch

    def end_epoch(self, loss: float) -> Decision:
        """Take note of an epoch's validation loss, and decide."""
        self.epoch += 1
        if loss < self.best:
            self.best, self.best_epoch = loss, self.epoch
        fires = trigger_fires(self.history, loss, self.config.trigger_window)
        self.history.append(loss)
        if self.epoch >= self.config.epochs and not self._is_extended():
            return Decision.STOP
        if self.stage == "finetune":
            return self._end_of_round() if fires else Decision.CONTINUE
        if fires and not self.averaging:
            self.averaging = True
            return Decision.AVERAGE
        return Decision.CONTINUE

    def _is_extended(self) -> bool:
        """Whether training has an epoch past ``epochs``: validation has fallen within the last few."""
        fell = self.epoch - self.best_epoch <= self.config.trigger_window
        return self.stage == "train" and fell and self.epoch < self.config.extend_to

    def _end_of_round(self) -> Decision:
        if self.best >= self.best_before_round:
            return Decision.STOP
        self.round += 1
        self.best_before_round = self.best
        self.history = []
        return Decision.RESTART

    def state(self) -> dict[str, Any]:
        """Everything but the configuration, as plain values."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)[1:]}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        for name, value in state.items():
            setattr(self, name, value)
