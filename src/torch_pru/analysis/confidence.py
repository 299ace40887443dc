"""How confident a model is: entropies of its next-word distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru.errors import check_positive
from torch_pru.lm.data.columns import columns
from torch_pru.lm.evaluation.static import rows_at_once, score_windows
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import ProgressCallback

BINS = 40
COLUMNS = 20  # the paper uses one of twenty columns of the validation text: 3,687 contexts on PTB


@dataclass(frozen=True)
class Confidence:
    """Histogram of next-word entropies.

    Attributes:
        contexts: number of distributions.
        mean: mean entropy, in nats.
        loss: mean negative log-likelihood of the words that followed, in nats. For a calibrated model it
            equals the mean entropy; an overconfident model has a larger loss.
        edges: bin edges in nats, from 0 to ln V.
        counts: number of contexts in each bin.

    Example:
        >>> Confidence(2, 0.5, 0.7, [0.0, 0.5, 1.0], [1, 1]).mean
        0.5
    """

    contexts: int
    mean: float
    loss: float
    edges: list[float]
    counts: list[int]


def confidence(
    model: LanguageModel,
    ids: Tensor,
    *,
    batch: int = COLUMNS,
    bins: int = BINS,
    progress: ProgressCallback | None = None,
) -> Confidence:
    """The entropies of the next-word distributions over the first of ``batch`` columns of a text.

    Args:
        model: the language model.
        ids: (N,) the text, the validation text in the paper.
        batch: number of columns that the text is cut into.
        bins: number of bins of equal width over [0, ln V].
        progress: called with the number of contexts done and in total.

    Example:
        >>> found = confidence(run.model(), corpus.valid)                   # doctest: +SKIP
        >>> found.contexts, found.mean                                      # doctest: +SKIP
        (3687, 3.8)
    """
    check_positive("bins", bins)
    entropies, losses = next_word_entropies(model, columns(ids, batch)[:, 0], progress=progress)
    highest = math.log(model.vocabulary_size)
    # Rounding can move an entropy slightly out of range.
    counts = torch.histc(entropies.clamp(0, highest), bins, 0, highest)
    return Confidence(
        contexts=len(entropies),
        mean=entropies.mean().item(),
        loss=losses.mean().item(),
        edges=[highest * edge / bins for edge in range(bins + 1)],
        counts=[int(count) for count in counts],
    )


def next_word_entropies(
    model: LanguageModel, ids: Tensor, *, window: int = 1000, progress: ProgressCallback | None = None
) -> tuple[Tensor, Tensor]:
    """Entropy after each word of ``ids`` (N,) except the last, and the loss of the word that follows.

    Returns:
        Two tensors (N - 1,), float64 on the CPU, in nats.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> config = ModelConfig(embedding=8, hidden=(16, 8))
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=100)
        >>> entropies, _ = next_word_entropies(model, torch.arange(10))
        >>> entropies.shape  # all near ln 100 before training
        torch.Size([9])
    """
    entropies, losses = [], []
    rows = rows_at_once(model)
    for scored in score_windows(model, ids, batch=1, window=window, progress=progress):
        for piece in scored.hidden.split(rows):  # limits the memory for logits
            with torch.no_grad():
                log_p = model.log_probabilities(piece)
                entropies.append(-(log_p.exp() * log_p).sum(-1, dtype=torch.float64).cpu())
        losses.append(scored.nll.double().cpu())
    return torch.cat(entropies), torch.cat(losses)
