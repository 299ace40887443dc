"""Decisions after each epoch: when to start averaging, when to restart, when to stop."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch_pru.lm.config import TrainingConfig


class Decision(Enum):
    """What the training loop does next."""

    CONTINUE = "continue"
    AVERAGE = "average"  # start averaging the weights
    RESTART = "restart"  # another round of finetuning, from the best weights
    STOP = "stop"


def trigger_fires(history: list[float], loss: float, window: int) -> bool:
    """The non-monotonic trigger: whether ``loss`` exceeds the lowest of all but the last ``window`` losses.

    It never fires while ``history``, which does not include ``loss``, has at most ``window`` entries.

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

    ``train``: plain SGD until the trigger fires, then averaged SGD until the last epoch. If
    ``early_stop_from`` is not 0, the run stops from that epoch on when the best loss is more than
    ``trigger_window`` epochs old.
    ``finetune``: averaged SGD until the trigger fires, and another such round as long as the last one lowered
    the best loss; at most ``epochs`` epochs in all rounds together.

    Attributes:
        stop_reason: why the run stopped; empty before that.

    Example:
        >>> schedule = Schedule(TrainingConfig(epochs=2), "train")
        >>> schedule.end_epoch(5.0), schedule.end_epoch(4.0)
        (<Decision.CONTINUE: 'continue'>, <Decision.STOP: 'stop'>)
        >>> schedule.best, schedule.best_epoch, schedule.stop_reason
        (4.0, 2, 'all epochs done')
    """

    config: TrainingConfig
    stage: str
    epoch: int = 0  # finished epochs, over all rounds
    best: float = math.inf
    best_epoch: int = 0
    round: int = 1
    best_before_round: float = math.inf
    averaging: bool = False
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stop_reason = ""

    @classmethod
    def finetuning(cls, config: TrainingConfig, best: float) -> Schedule:
        """The schedule of finetuning, from weights with the validation loss ``best``."""
        return cls(config, "finetune", best=best, best_before_round=best, averaging=True)

    @property
    def epochs(self) -> int:
        """The last epoch: at most ``config.epochs``, fewer if the run has stopped before."""
        return self.epoch if self.stop_reason else self.config.epochs

    def end_epoch(self, loss: float, *, time_is_up: bool = False) -> Decision:
        """Record the validation loss of an epoch, and decide how to continue."""
        self.epoch += 1
        if loss < self.best:
            self.best, self.best_epoch = loss, self.epoch
        fires = trigger_fires(self.history, loss, self.config.trigger_window)
        self.history.append(loss)
        if time_is_up:
            return self._stop("time is up")
        if self.epoch >= self.config.epochs:
            return self._stop("all epochs done")
        if self._stops_early():
            return self._stop(f"no improvement for {self.epoch - self.best_epoch} epochs")
        if self.stage == "finetune":
            return self._end_round() if fires else Decision.CONTINUE
        if fires and not self.averaging:
            self.averaging = True
            return Decision.AVERAGE
        return Decision.CONTINUE

    def _stop(self, reason: str) -> Decision:
        self.stop_reason = reason
        return Decision.STOP

    def _stops_early(self) -> bool:
        """Whether early stopping is enabled and the validation loss has not improved for too long."""
        enabled = self.stage == "train" and 0 < self.config.early_stop_from <= self.epoch
        return enabled and self.epoch - self.best_epoch > self.config.trigger_window

    def _end_round(self) -> Decision:
        if self.best >= self.best_before_round:
            return self._stop("the last round of finetuning did not improve")
        self.round += 1
        self.best_before_round = self.best
        self.history = []
        return Decision.RESTART

    def state_dict(self) -> dict[str, Any]:
        """Every attribute except the configuration."""
        state = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)[1:]}
        return state | {"history": list(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned. What a checkpoint holds is checked by `torch_pru.lm.schema`."""
        for name, value in state_dict.items():
            setattr(self, name, value)
        self.history = list(self.history)
