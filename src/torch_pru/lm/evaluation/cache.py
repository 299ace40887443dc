"""The continuous cache (Grave et al., 2017): recently seen words become more likely.

The cache remembers, for each of the last ``window`` positions, the hidden state h_i and the word w_i
that came after it. At position t it gives a word the weight of the states that it followed, and the
model's own distribution is mixed with that:

    p_cache(w)  ~  sum over cached i with w_i = w of exp(theta * h_t . h_i)
    p(w)        =  (1 - lambda) * p_model(w)  +  lambda * p_cache(w)

It is used from the second prediction on, with as many words as there are. (The AWD-LSTM code waits
until the window is full.)
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
from torch_pru.lm.evaluation.static import Progress, Score, Scored, scored_windows
from torch_pru.lm.model import LanguageModel


@dataclass(frozen=True)
class CacheSettings:
    """How much the cache counts, how sharply it looks, how far back.

    The defaults are AWD-LSTM's for PTB; for WikiText-2 it has 0.1279, 0.662 and 3785.

    Attributes:
        mixture: lambda, the cache's share of the probability; 0 gives the static score.
        theta: sharpness of the attention over the cached states; 0 counts words only.
        window: how many positions are remembered.

    Example:
        >>> CacheSettings(mixture=0.1279, theta=0.662, window=3785)
        CacheSettings(mixture=0.1279, theta=0.662, window=3785)
    """

    mixture: float = 0.1
    theta: float = 1.0
    window: int = 500

    def __post_init__(self) -> None:
        check_probability("mixture", self.mixture)
        check_positive("window", self.window)
        check_not_negative("theta", self.theta)


class Pointed(NamedTuple):
    """What model and cache think of the words of a window, (n,) each."""

    nll: Tensor
    log_pointer: Tensor  # log p_cache of the word; -inf where the cache does not hold it
    filled: Tensor  # bool: whether there was anything in the cache


def score_cache(
    model: LanguageModel,
    ids: Tensor,
    settings: CacheSettings = CacheSettings(),  # noqa: B008  (frozen)
    *,
    progress: Progress | None = None,
) -> Score:
    """Perplexity of ``ids`` (N,) at batch 1 with a continuous cache; N - 1 tokens are scored.

    Args:
        model: the trained model; its weights stay as they are.
        ids: (N,) the text.
        settings: tuned on validation, see `torch_pru.lm.evaluation.tune`.
        progress: called after each window.

    Example:
        >>> score_cache(model, corpus.test, CacheSettings(theta=0.5)).perplexity    # doctest: +SKIP
        53.1
    """
    start = time.perf_counter()
    total = torch.zeros((), dtype=torch.float64, device=next(model.parameters()).device)
    tokens = 0
    windows = scored_windows(model, ids, batch=1, window=QUERIES, progress=progress)
    for pointed in point(windows, settings.theta, settings.window):
        total += mix(pointed, settings.mixture).sum(dtype=torch.float64)
        tokens += len(pointed.nll)
    return Score(total.item() / tokens, tokens, time.perf_counter() - start)


def mix(pointed: Pointed, mixture: float) -> Tensor:
    """Negative log-likelihoods (n,) with the cache given the share ``mixture``.

    Where the cache is still empty the model stands alone.
    """
    if mixture == 0:
        return pointed.nll
    mixed = torch.logaddexp(math.log1p(-mixture) - pointed.nll, math.log(mixture) + pointed.log_pointer)
    return torch.where(pointed.filled, -mixed, pointed.nll)


def point(windows: Iterable[Scored], theta: float, window: int) -> Iterator[Pointed]:
    """The cache's log-probability of each word, for windows that follow each other at batch 1."""
    memory: Memory | None = None
    for scored in windows:
        pointed, memory = look_up(scored, memory, theta, window)
        yield pointed


class Memory(NamedTuple):
    """What the cache remembers: n positions, at most its window."""

    keys: Tensor  # (n, E) the hidden states
    words: Tensor  # (n,) the word that came after each


@torch.no_grad()
def look_up(scored: Scored, memory: Memory | None, theta: float, window: int) -> tuple[Pointed, Memory]:
    """The cache's log-probability of each word of a window, and what it remembers afterwards.

    Args:
        scored: the window, at batch 1.
        memory: from the window before; None at the beginning. It is not changed.
        theta, window: as in `CacheSettings`.
    """
    hidden, targets, nll = scored
    keys = hidden if memory is None else torch.cat([memory.keys, hidden])
    words = targets if memory is None else torch.cat([memory.words, targets])
    past = len(keys) - len(hidden)
    # Query q stands at position past + q; it sees the positions [past + q - window, past + q).
    position = torch.arange(len(keys), device=keys.device)
    age = position[past:, None] - position[None]
    seen = (age > 0) & (age <= window)
    attention = (theta * (hidden @ keys.T)).masked_fill(~seen, -math.inf)
    same = targets[:, None] == words[None]
    log_pointer = attention.masked_fill(~same, -math.inf).logsumexp(1) - attention.logsumexp(1)
    return Pointed(nll, log_pointer, position[past:] > 0), Memory(keys[-window:], words[-window:])


QUERIES = 500  # positions pointed at once: with the window of 3785 the attention is 500 x 4285
