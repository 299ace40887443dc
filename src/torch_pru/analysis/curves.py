"""Learning curves from the metrics of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import ModelConfig
from torch_pru.lm.evaluation.static import perplexity
from torch_pru.lm.run import RunFolder


@dataclass(frozen=True)
class LearningCurve:
    """Perplexities after each epoch.

    Attributes:
        corpus: name of the corpus.
        model: unit and width, as in ``"PRU g=4 M=1400"``.
        epochs: numbers of the epochs.
        train: training perplexity during the epoch, with dropout.
        valid: validation perplexity after the epoch, as measured during training.

    Example:
        >>> train, valid = [400.0, 200.0], [300.0, 180.0]
        >>> LearningCurve("ptb", "PRU g=4 M=1400", [1, 2], train, valid).best
        (2, 180.0)
    """

    corpus: str
    model: str
    epochs: list[int]
    train: list[float]
    valid: list[float]

    @property
    def best(self) -> tuple[int, float]:
        """The epoch with the lowest validation perplexity, and this perplexity."""
        lowest = min(self.valid)
        return self.epochs[self.valid.index(lowest)], lowest


def finished_epochs(run: RunFolder) -> list[dict[str, Any]]:
    """The lines of a run's metrics that end an epoch. Raises if there is none."""
    lines = run.epochs()
    if not lines:
        raise PRUError(f"the run in {run.path} has not finished an epoch yet")
    return lines


def learning_curve(run: RunFolder) -> LearningCurve:
    """The learning curve of a run folder, which needs no weights.

    Example:
        >>> learning_curve(RunFolder.open("runs/quickstart-1")).best        # doctest: +SKIP
        (3, 61.7)
    """
    lines = finished_epochs(run)
    return LearningCurve(
        corpus=run.config.data.corpus,
        model=unit_and_width(run.config.model),
        epochs=[line["epoch"] for line in lines],
        train=[perplexity(line["train_loss"]) for line in lines],
        valid=[perplexity(line["valid_loss"]) for line in lines],
    )


def unit_and_width(model: ModelConfig) -> str:
    """A model's name in the paper's tables; M is the width of the first layer.

    Example:
        >>> unit_and_width(ModelConfig(groups=4, embedding=400, hidden=(1400, 1400, 400)))
        'PRU g=4 M=1400'
    """
    unit = "LSTM" if model.kind == "lstm" else f"PRU g={model.groups}"
    return f"{unit} M={model.hidden[0]}"
