"""Dynamic evaluation (Krause et al., 2018): the model goes on learning from the text it has scored.

Before it, one pass over the training text gathers the root mean square of every weight's gradient.
Then the text is read in segments of a few tokens. Each is scored first and learned from afterwards:

    w  <-  w  -  lr * gradient / (RMS + epsilon)  +  decay * (w0 - w)
    decay  =  min(1, lambda * RMS / mean RMS)

where w0 are the trained weights. The mean RMS is the unweighted mean over tensors of each tensor's
mean, so fusing or splitting weights changes what a given lambda does.

**Two published scales.** Settings here are on the newer scale, that of the public code's defaults and
grid (lr 3e-5 to 1e-4, lambda 1e-3 to 5e-3, epsilon 2e-5). The settings printed in the paper (lr 0.002,
lambda 0.02, epsilon 0.001) are on an older one, on which the squares were summed instead of averaged:
divide lr and epsilon by the square root of the number of segments of the training pass, and lambda by
the number of weight tensors; `DynamicSettings.from_old_scale` does that. For AWD-LSTM on PTB (1,859
segments) lr 0.002 becomes 4.6e-5 and epsilon 2.3e-5.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_not_negative, check_positive
from torch_pru.lm.evaluation.segments import SegmentReader, learned_parameters
from torch_pru.lm.evaluation.static import Progress, Score, text_columns
from torch_pru.lm.evaluation.update import make_update
from torch_pru.lm.model import LanguageModel


@dataclass(frozen=True)
class DynamicSettings:
    """How fast the weights follow the text and how strongly they are drawn back.

    Attributes:
        learning_rate: step of the update, on the newer scale; 0 gives the static score.
        decay: lambda, the pull towards the trained weights.
        epsilon: keeps the step of a weight with tiny gradients finite.
        segment: tokens scored between two updates. The public code scales learning rate and decay
            in proportion to it, starting from 5.

    Example:
        >>> DynamicSettings(learning_rate=4e-5)
        DynamicSettings(learning_rate=4e-05, decay=0.002, epsilon=2e-05, segment=5)
    """

    learning_rate: float = 5e-5
    decay: float = 2e-3
    epsilon: float = 2e-5
    segment: int = 5

    def __post_init__(self) -> None:
        check_positive("segment", self.segment)
        for name in ("learning_rate", "decay"):
            check_not_negative(name, getattr(self, name))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PRUError(f"epsilon={self.epsilon!r} must be a number above 0")

    @classmethod
    def from_old_scale(
        cls, learning_rate: float, decay: float, epsilon: float, statistics: GradientStatistics
    ) -> DynamicSettings:
        """Settings on the older published scale, for the model and text that ``statistics`` come from.

        Example:
            >>> DynamicSettings.from_old_scale(0.002, 0.02, 0.001, statistics)      # doctest: +SKIP
            DynamicSettings(learning_rate=4.6e-05, decay=0.0014, epsilon=2.3e-05, segment=5)
        """
        root = math.sqrt(statistics.segments)
        return cls(learning_rate / root, decay / len(statistics.rms), epsilon / root)


@dataclass(frozen=True)
class GradientStatistics:
    """Root mean square of the gradients over the training text.

    Attributes:
        rms: one tensor a parameter, in the order of ``model.parameters()``.
        segments: how many segments were averaged over.
    """

    rms: list[Tensor]
    segments: int

    @property
    def mean(self) -> Tensor:
        """The unweighted mean over tensors of each tensor's mean."""
        return torch.stack([rms.mean() for rms in self.rms]).mean()


def gradient_statistics(
    model: LanguageModel,
    train: Tensor,
    *,
    batch: int = 100,
    segment: int = 5,
    progress: Progress | None = None,
) -> GradientStatistics:
    """RMS of every weight's gradient over the training text, segment by segment.

    Args:
        model: the trained model.
        train: (N,) the training text.
        batch: columns read side by side; each segment's loss is the mean over all of them.
        segment: steps of one gradient, the same as in `score_dynamic`.
        progress: called after each segment, on a GPU now and then.

    Example:
        >>> statistics = gradient_statistics(model, corpus.train)           # doctest: +SKIP
        >>> statistics.segments                                             # doctest: +SKIP
        1859
    """
    squares = [torch.zeros_like(parameter) for parameter in learned_parameters(model)]

    def add(gradients: tuple[Tensor, ...], losses: int) -> None:
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 / losses**2)

    segments = SegmentReader(model, text_columns(model, train, batch), segment, add).read(progress)
    torch._foreach_div_(squares, float(segments))
    return GradientStatistics(list(torch._foreach_sqrt(squares)), segments)


def score_dynamic(
    model: LanguageModel,
    ids: Tensor,
    statistics: GradientStatistics,
    settings: DynamicSettings = DynamicSettings(),  # noqa: B008  (frozen)
    *,
    progress: Progress | None = None,
) -> Score:
    """Perplexity of ``ids`` (N,) at batch 1, adapting after every segment.

    The weights are restored exactly at the end, whatever ends it.

    Args:
        model: the trained model.
        ids: (N,) the text; N - 1 tokens are scored, each before anything is learned from it.
        statistics: from `gradient_statistics` of the same model.
        settings: tuned on validation, see `torch_pru.lm.evaluation.tune`.
        progress: called after each segment, on a GPU now and then.

    Example:
        >>> statistics = gradient_statistics(model, corpus.train)           # doctest: +SKIP
        >>> score_dynamic(model, corpus.test, statistics).perplexity        # doctest: +SKIP
        55.2
    """
    return DynamicEvaluation(model, ids, statistics, settings.segment).score(settings, progress)


class DynamicEvaluation:
    """A text that is scored with one setting or with many; on a GPU one CUDA graph serves them all.

    The model's own weights learn inside ``score``; between two scores they are the trained ones.

    Args:
        model: the trained model.
        ids: (N,) the text.
        statistics: from `gradient_statistics` of the same model.
        segment: tokens scored between two updates.

    Example:
        >>> evaluation = DynamicEvaluation(model, corpus.valid, statistics)     # doctest: +SKIP
        >>> evaluation.score(DynamicSettings(learning_rate=4e-5)).perplexity    # doctest: +SKIP
        57.8
    """

    def __init__(
        self, model: LanguageModel, ids: Tensor, statistics: GradientStatistics, segment: int = 5
    ) -> None:
        self.adaptation = Adaptation(model, statistics)
        self.reader = SegmentReader(model, text_columns(model, ids, 1), segment, self.adaptation.learn)

    def score(self, settings: DynamicSettings, progress: Progress | None = None) -> Score:
        """The perplexity with these settings, whose segment is that of the evaluation."""
        if settings.segment != self.reader.segment:
            raise PRUError(
                f"segment={settings.segment}: this evaluation was made for segments of {self.reader.segment}"
            )
        start = time.perf_counter()
        self.adaptation.prepare(settings)
        try:
            self.reader.read(progress)
            tokens = len(self.reader.text) - 1
            return Score(self.reader.total.item() / tokens, tokens, time.perf_counter() - start)
        finally:
            self.adaptation.undo()


class Adaptation:
    """The weights of a model while they learn from the text that is scored.

    Args:
        model: the trained model; its own weights learn.
        statistics: from `gradient_statistics` of the same model.

    Attributes:
        parameters: the weights that learn.
        trained: a copy of what they were.

    Example:
        >>> adaptation = Adaptation(model, statistics)                          # doctest: +SKIP
        >>> adaptation.prepare(DynamicSettings())                               # doctest: +SKIP
        >>> adaptation.learn(gradients, losses=5)                               # doctest: +SKIP
        >>> adaptation.undo()                                                   # doctest: +SKIP
    """

    def __init__(self, model: LanguageModel, statistics: GradientStatistics) -> None:
        self.parameters = learned_parameters(model)
        if [rms.shape for rms in statistics.rms] != [parameter.shape for parameter in self.parameters]:
            raise PRUError("the gradient statistics belong to another model: gather them with this one")
        self.trained = [parameter.detach().clone() for parameter in self.parameters]
        self.mean_rms = statistics.mean
        self.update = make_update(self.parameters, self.trained, statistics.rms)

    def prepare(self, settings: DynamicSettings) -> None:
        """Set what the coming segments learn with."""
        self.update.prepare(settings.learning_rate, settings.decay / self.mean_rms, settings.epsilon)

    def learn(self, gradients: tuple[Tensor, ...], losses: int) -> None:
        """Learn from the ``gradients`` of a sum of ``losses`` losses."""
        self.update.apply(gradients, losses)

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the trained weights exactly."""
        torch._foreach_copy_(self.parameters, self.trained)
