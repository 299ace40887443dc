"""The continuous cache (Grave et al., 2017): recently seen words become more likely.

The cache holds, for each of the last ``window`` positions, the hidden state h_i and the word w_i that came
after it. At position t, its distribution weights each cached word by the similarity of h_i and h_t, and is
mixed with the distribution of the model:

    p_cache(w)  ~  sum over cached i with w_i = w of exp(theta * h_t . h_i)
    p(w)        =  (1 - lambda) * p_model(w)  +  lambda * p_cache(w)

The cache is used from the second prediction on, however few words it holds. (The AWD-LSTM code waits until
the window is full.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import check_not_negative, check_positive, check_probability
from torch_pru.lm.evaluation.static import Score, WindowScores, score_of, score_windows
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import ProgressCallback


@dataclass(frozen=True)
class CacheSettings:
    """Settings of the continuous cache.

    The defaults are AWD-LSTM's for PTB; for WikiText-2 it has 0.1279, 0.662 and 3785.

    Attributes:
        mixture: lambda, the weight of the cache's distribution; 0 gives the static score.
        theta: sharpness of the attention over the cached states; 0 counts the cached words.
        window: number of cached positions.
    """

    mixture: float = 0.1
    theta: float = 1.0
    window: int = 500

    def __post_init__(self) -> None:
        check_probability("mixture", self.mixture)
        check_positive("window", self.window)
        check_not_negative("theta", self.theta)


class CacheScores(NamedTuple):
    """What the model and the cache predict for the words of a window, (n,) each."""

    nll: Tensor  # of the model alone
    log_cache: Tensor  # log p_cache of the word; -inf if the cache does not hold it
    filled: Tensor  # bool: whether the cache held any word


def score_cache(
    model: LanguageModel,
    ids: Tensor,
    settings: CacheSettings = CacheSettings(),  # noqa: B008  (frozen)
    *,
    progress: ProgressCallback | None = None,
) -> Score:
    """Perplexity of ``ids`` (N,) at batch 1 with a continuous cache; N - 1 tokens are scored.

    Args:
        model: the trained model; its weights do not change.
        ids: (N,) the text.
        settings: tuned on validation, see `torch_pru.lm.evaluation.tune`.
        progress: called after each window.
    """
    start = time.perf_counter()
    windows = score_windows(model, ids, batch=1, window=QUERIES, progress=progress)
    found = look_up_windows(windows, settings.theta, settings.window)
    return score_of(torch.cat([mix(scores, settings.mixture) for scores in found]), start)


def mix(scores: CacheScores, mixture: float) -> Tensor:
    """Negative log-likelihoods (n,) of the mixture; those of the model while the cache is empty."""
    if mixture == 0:
        return scores.nll
    mixed = torch.logaddexp(math.log1p(-mixture) - scores.nll, math.log(mixture) + scores.log_cache)
    return torch.where(scores.filled, -mixed, scores.nll)


def look_up_windows(windows: Iterable[WindowScores], theta: float, window: int) -> Iterator[CacheScores]:
    """`look_up` for consecutive windows of a text at batch 1."""
    memory: Memory | None = None
    for scores in windows:
        cache_scores, memory = look_up(scores, memory, theta, window)
        yield cache_scores


class Memory(NamedTuple):
    """The content of the cache: n positions, at most its window."""

    keys: Tensor  # (n, E) the hidden states
    words: Tensor  # (n,) the word after each


@torch.no_grad()
def look_up(
    scores: WindowScores, memory: Memory | None, theta: float, window: int
) -> tuple[CacheScores, Memory]:
    """The cache's log-probability of each word of a window, and the content of the cache afterwards.

    Args:
        scores: the window, at batch 1.
        memory: the content of the cache before the window, not modified; None at the beginning of a text.
        theta, window: as in `CacheSettings`.
    """
    hidden, targets, nll = scores
    keys = hidden if memory is None else torch.cat([memory.keys, hidden])
    words = targets if memory is None else torch.cat([memory.words, targets])
    past = len(keys) - len(hidden)
    # Query q is at position past + q, and sees the positions [past + q - window, past + q).
    position = torch.arange(len(keys), device=keys.device)
    age = position[past:, None] - position[None]
    seen = (age > 0) & (age <= window)
    attention = (theta * (hidden @ keys.T)).masked_fill(~seen, -math.inf)
    same = targets[:, None] == words[None]
    log_cache = attention.masked_fill(~same, -math.inf).logsumexp(1) - attention.logsumexp(1)
    return CacheScores(nll, log_cache, position[past:] > 0), Memory(keys[-window:], words[-window:])


QUERIES = 500
"""Positions per window: with a cache of 3785 positions, the attention is 500 x 4285."""
