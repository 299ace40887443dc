"""Dynamic evaluation (Krause et al., 2018): the model keeps learning from the text that it has scored.

First, one pass over the training text computes the root mean square (RMS) of every weight's gradient. Then
the text is read in segments of a few tokens. Each segment is scored first and learned from afterwards:

    w  <-  w  -  lr * gradient / (RMS + epsilon)  +  decay * (w0 - w)
    decay  =  min(1, lambda * RMS / mean RMS)

where w0 are the trained weights. The mean RMS is the unweighted mean over weights of each weight's mean (see
`mean_rms`), so joining or splitting weight tensors changes the effect of a given lambda.

**Two published scales.** Settings here are on the newer scale, that of the public code's defaults and grid
(lr 3e-5 to 1e-4, lambda 1e-3 to 5e-3, epsilon 2e-5). The settings printed in the paper (lr 0.002, lambda
0.02, epsilon 0.001) are on an older one, where the squares were summed instead of averaged. To convert,
divide lr and epsilon by the square root of the number of segments in the training pass, and lambda by the
number of weight tensors. For AWD-LSTM on PTB (1,859 segments) lr 0.002 becomes 4.6e-5 and epsilon 2.3e-5.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru import PRU
from torch_pru.errors import PRUError, check_not_negative, check_positive
from torch_pru.lm.evaluation.static import Score, eval_mode, score_of, text_columns
from torch_pru.lm.graphs import GraphedFunction, can_capture, on_device
from torch_pru.lm.model import Hidden, LanguageModel, State, flat
from torch_pru.lm.progress import ProgressCallback
from torch_pru.ops import backends
from torch_pru.ops import torch_private as private

PROGRESS_INTERVAL = 200
"""Segments between two calls of ``progress`` on a GPU, where each call synchronizes."""

GradientCallback = Callable[[tuple[Tensor, ...], int], None]
"""Called with the gradients of a segment's *sum* of losses, one per parameter, and the number of losses.

The sum, because in float16 the gradients of a mean over many tokens would underflow."""


@dataclass(frozen=True)
class DynamicSettings:
    """How fast the weights adapt to the text and how strongly they are pulled back.

    Attributes:
        learning_rate: step size of the update, on the newer scale; 0 gives the static score.
        decay: lambda, the pull toward the trained weights.
        epsilon: keeps the update of a weight with tiny gradients finite.
        segment: tokens scored between two updates. The public code scales the learning rate and the decay
            in proportion to it, starting from 5.
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
            raise PRUError(f"epsilon={self.epsilon!r} must be greater than 0")


@dataclass(frozen=True)
class GradientStatistics:
    """Root mean square of the gradients over the training text.

    Attributes:
        rms: one tensor per parameter, in the order of ``model.parameters()``.
        segments: the number of segments that were averaged over.
    """

    rms: list[Tensor]
    segments: int


def mean_rms(model: LanguageModel, rms: list[Tensor]) -> Tensor:
    """The unweighted mean over weights of each weight's mean RMS.

    A bias counts once for every matrix of the transform that it belongs to, so that settings mean the same
    for runs of earlier versions, in which each level of a pyramid had a bias of its own.

    Args:
        rms: one tensor per learned parameter.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    means = [part.mean() for name, each in zip(names, rms, strict=True) for part in _parts(model, name, each)]
    return torch.stack(means).mean()


def _parts(model: LanguageModel, name: str, values: Tensor) -> list[Tensor]:
    """``values`` of a parameter; of the bias of several matrices, the part of each."""
    path, _, parameter = name.rpartition(".")
    layer = model.get_submodule(path)
    if not isinstance(layer, PRU) or not parameter.startswith("bias_"):
        return [values]
    spec = layer.specs[0].input if parameter.startswith("bias_ih") else layer.specs[0].context
    units = [rows for rows, _ in spec.matrix_shapes(gates=1)]
    return list(values.view(4, -1).split(units, dim=1))


def gradient_statistics(
    model: LanguageModel,
    train: Tensor,
    *,
    batch: int = 100,
    segment: int = 5,
    progress: ProgressCallback | None = None,
) -> GradientStatistics:
    """RMS of every weight's gradient over the segments of the training text.

    Args:
        model: the trained model.
        train: (N,) the training text.
        batch: columns that are read in parallel; the loss of a segment is the mean over all of them.
        segment: tokens per column and segment, the same as in `score_dynamic`.
        progress: called after each segment, on a GPU every 200 segments.
    """
    squares = [torch.zeros_like(parameter) for parameter in learned_parameters(model)]

    def add_squares(gradients: tuple[Tensor, ...], losses: int) -> None:
        private.foreach_addcmul_(squares, gradients, gradients, value=1 / losses**2)

    reader = SegmentReader(model, text_columns(model, train, batch), segment, add_squares)
    segments = reader.read(progress)
    private.foreach_div_(squares, float(segments))
    return GradientStatistics(list(private.foreach_sqrt(squares)), segments)


def score_dynamic(
    model: LanguageModel,
    ids: Tensor,
    statistics: GradientStatistics,
    settings: DynamicSettings = DynamicSettings(),  # noqa: B008  (frozen)
    *,
    progress: ProgressCallback | None = None,
) -> Score:
    """Perplexity of ``ids`` (N,) at batch 1, with an update of the weights after every segment.

    The weights are restored exactly at the end, also after an exception.

    Args:
        model: the trained model.
        ids: (N,) the text; N - 1 tokens are scored, each before the model learns from it.
        statistics: from `gradient_statistics` of the same model.
        settings: tuned on validation, see `torch_pru.lm.evaluation.tune`.
        progress: called after each segment, on a GPU every 200 segments.
    """
    return DynamicEvaluation(model, ids, statistics, settings.segment).score(settings, progress)


class DynamicEvaluation:
    """Scores one text with several settings. On a GPU, all of them replay the same CUDA graph.

    Args:
        model: the trained model. Its own weights learn during ``score`` and are restored afterwards.
        ids: (N,) the text.
        statistics: from `gradient_statistics` of the same model.
        segment: tokens scored between two updates.
    """

    def __init__(
        self, model: LanguageModel, ids: Tensor, statistics: GradientStatistics, segment: int = 5
    ) -> None:
        self.adaptation = Adaptation(model, statistics)
        self.reader = SegmentReader(model, text_columns(model, ids, 1), segment, self.adaptation.learn)

    def score(self, settings: DynamicSettings, progress: ProgressCallback | None = None) -> Score:
        """The perplexity with these settings, which must have the segment length of this evaluation."""
        if settings.segment != self.reader.segment:
            raise PRUError(
                f"segment={settings.segment} does not match this evaluation, which has segments of "
                f"{self.reader.segment} tokens"
            )
        start = time.perf_counter()
        self.adaptation.prepare(settings)
        try:
            self.reader.read(progress)
            return score_of(self.reader.losses.flatten(), start)
        finally:
            self.adaptation.undo()


class Adaptation:
    """The weights of a model while they learn from the text that is scored.

    Args:
        model: the trained model; its own weights learn.
        statistics: from `gradient_statistics` of the same model.

    Attributes:
        parameters: the weights that learn.
        trained: a copy of their trained values.
    """

    def __init__(self, model: LanguageModel, statistics: GradientStatistics) -> None:
        self.parameters = learned_parameters(model)
        if [rms.shape for rms in statistics.rms] != [parameter.shape for parameter in self.parameters]:
            raise PRUError("the gradient statistics belong to another model; compute them with this one")
        self.trained = [parameter.detach().clone() for parameter in self.parameters]
        self.mean_rms = mean_rms(model, statistics.rms)
        self.update = backends.run("dynamic_update", self.parameters, self.trained, statistics.rms)

    def prepare(self, settings: DynamicSettings) -> None:
        """Set the settings of the following updates."""
        self.update.prepare(settings.learning_rate, settings.decay / self.mean_rms, settings.epsilon)

    def learn(self, gradients: tuple[Tensor, ...], losses: int) -> None:
        """Update the weights from the ``gradients`` of a sum of ``losses`` losses.

        The arithmetic is in `torch_pru.ops.reference.training.DynamicUpdate`, and in
        ``ops/cuda/kernels/dynamic.cu`` on a GPU.
        """
        self.update.apply(gradients, losses)

    @torch.no_grad()
    def undo(self) -> None:
        """Restore the trained weights exactly."""
        private.foreach_copy_(self.parameters, self.trained)


class SegmentReader:
    """Reads a text segment by segment and computes the loss and the gradients of each.

    On a GPU, a segment is one CUDA graph: the position in the text, the recurrent state and the sum of the
    losses stay on the device.

    Args:
        model: evaluated without dropout, with the weights that it has at each moment.
        text: (T, B), on the model's device; the first row is not predicted.
        segment: rows per segment; the last one may be shorter.
        on_gradients: called after each segment. On a GPU it is captured, so it must work on tensors whose
            addresses do not change, and not synchronize.

    Attributes:
        losses: (T - 1, B), the loss of every token in the last ``read``.
    """

    def __init__(
        self, model: LanguageModel, text: Tensor, segment: int, on_gradients: GradientCallback
    ) -> None:
        check_positive("segment", segment)
        self.model, self.text, self.segment, self.on_gradients = model, text, segment, on_gradients
        self.state = model.initial_state(text.shape[1])
        is_double = next(model.parameters()).dtype == torch.float64
        self.losses = torch.zeros(
            (len(text) - 1, text.shape[1]),
            dtype=torch.float64 if is_double else torch.float32,
            device=text.device,
        )
        self.first_row = torch.zeros((), dtype=torch.int64, device=text.device)
        self.rows = torch.arange(segment, device=text.device)
        self._graphed = GraphedFunction(can_capture(model))

    def read(self, progress: ProgressCallback | None = None) -> int:
        """Read the whole text, starting with a state of zeros. Returns the number of segments."""
        steps, batch = len(self.text) - 1, self.text.shape[1]
        starts = range(0, steps, self.segment)
        on_gpu = self.text.is_cuda
        self._rewind()
        with on_device(self.text.device), gradient_mode(self.model):
            for number, start in enumerate(starts, start=1):
                if start + self.segment <= steps:
                    self._graphed(lambda: self._read(self.segment))
                else:
                    self._read(steps - start)
                due = not on_gpu or number % PROGRESS_INTERVAL == 0 or number == len(starts)
                if progress is not None and due:
                    if on_gpu:
                        torch.cuda.current_stream().synchronize()
                    progress(min(start + self.segment, steps) * batch, steps * batch)
        return len(starts)

    @torch.no_grad()
    def _rewind(self) -> None:
        self.losses.zero_()
        self.first_row.zero_()
        private.foreach_zero_(flat(self.state))

    def _read(self, length: int) -> None:
        """Read the next ``length`` rows."""
        rows = self.rows[:length] + self.first_row
        tokens, targets = self.text[rows].long(), self.text[rows + 1].long()
        nll, gradients, hidden = read_segment(self.model, tokens, targets, self.state)
        with torch.no_grad():
            self.losses.index_copy_(0, rows, nll.detach().view(length, -1).to(self.losses.dtype))
            self.first_row += length
            private.foreach_copy_(flat(self.state), flat(hidden.state))
            self.on_gradients(gradients, nll.numel())


def learned_parameters(model: LanguageModel) -> list[Tensor]:
    """The parameters that require gradients, in the order of ``model.parameters()``."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def read_segment(
    model: LanguageModel, tokens: Tensor, targets: Tensor, state: State
) -> tuple[Tensor, tuple[Tensor, ...], Hidden]:
    """Losses (n,) of ``targets`` (T, B), the gradients of their sum, and the output of the layers.

    Must be called inside `gradient_mode`. The gradients are those of `learned_parameters`.
    """
    hidden = model.hidden(tokens, state, None)
    nll = model.nll(hidden.raw.flatten(0, 1), targets.flatten())
    gradients = torch.autograd.grad(nll.sum(), learned_parameters(model), materialize_grads=True)
    return nll, gradients, hidden


@contextmanager
def gradient_mode(model: LanguageModel) -> Iterator[None]:
    """Evaluation mode with gradients, also inside ``torch.no_grad``.

    Autocast stays as it is, but without its cache, which would return casts of weights that have changed.
    """
    kind = model.embedding.weight.device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    autocast = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
    with torch.enable_grad(), eval_mode(model, gradients=True), autocast:
        yield
