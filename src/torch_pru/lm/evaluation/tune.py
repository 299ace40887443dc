"""Grid search for the settings of dynamic evaluation and of the cache, on the validation text.

By default it uses the first 30,000 tokens, which takes minutes on a GPU. The test text is never used.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from torch_pru.errors import check_positive
from torch_pru.lm.evaluation.cache import QUERIES, CacheSettings, look_up_windows, mix
from torch_pru.lm.evaluation.dynamic import DynamicEvaluation, DynamicSettings, GradientStatistics
from torch_pru.lm.evaluation.static import perplexity, score_windows
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import ProgressCallback

TOKENS = 30_000
LEARNING_RATES = (3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 1e-4)  # the public code's grid, for segments of 5
DECAYS = (1e-3, 2e-3, 3e-3, 5e-3)
MAX_BEYOND = 12  # trials outside of the grid: a decay without effect could be halved forever
THETAS = (0.1, 0.3, 0.5, 0.662, 1.0, 2.0)  # 1.0, 0.1, 500 and 0.662, 0.1279, 3785 are AWD-LSTM's
MIXTURES = (0.02, 0.05, 0.1, 0.1279, 0.2, 0.3)
WINDOWS = (500, 2000, 3785)

Settings = TypeVar("Settings", DynamicSettings, CacheSettings)


@dataclass(frozen=True)
class Try(Generic[Settings]):
    """One point of the grid.

    Attributes:
        settings: the settings of this point.
        perplexity: on the first tokens of the validation text.
    """

    settings: Settings
    perplexity: float


@dataclass(frozen=True)
class Tuning(Generic[Settings]):
    """The result of a grid search.

    Attributes:
        best: the settings of the lowest perplexity.
        tries: every point, in the order in which they were tried.
        tokens: the number of validation tokens that each try used.
    """

    best: Settings
    tries: list[Try[Settings]]
    tokens: int


def tune_dynamic(
    model: LanguageModel,
    valid: Tensor,
    statistics: GradientStatistics,
    *,
    tokens: int = TOKENS,
    learning_rates: Sequence[float] = LEARNING_RATES,
    decays: Sequence[float] = DECAYS,
    progress: ProgressCallback | None = None,
) -> Tuning[DynamicSettings]:
    """The best learning rate and decay on the first ``tokens`` of ``valid`` (N,).

    If the best point lies on an edge of the grid, the search continues beyond it as long as that helps.
    ``progress`` counts the tokens of all tries together.
    """
    check_positive("tokens", tokens)
    tries: list[Try[DynamicSettings]] = []
    points = itertools.product(decays, learning_rates)
    waiting = grid = [DynamicSettings(rate, decay) for decay, rate in points]
    evaluation = DynamicEvaluation(model, valid[:tokens], statistics)

    per_try = len(valid[:tokens]) - 1

    def advance(done: int, total: int | None) -> None:
        if progress is not None:
            progress(len(tries) * per_try + done, (len(tries) + 1 + len(waiting)) * per_try)

    while waiting:
        settings, *waiting = waiting
        tries.append(Try(settings, evaluation.score(settings, advance).perplexity))
        if not waiting and len(tries) < len(grid) + MAX_BEYOND:
            waiting = beyond_the_edge([one.settings for one in tries], _best(tries))
    return Tuning(_best(tries), tries, len(valid[:tokens]))


def beyond_the_edge(tried: Sequence[DynamicSettings], best: DynamicSettings) -> list[DynamicSettings]:
    """The next settings outwards for each value of the best settings that is the largest or smallest tried.

    Example:
        >>> tried = [DynamicSettings(rate, 2e-3) for rate in (4e-5, 5e-5, 6e-5)]
        >>> [f"{one.learning_rate:.1e}, {one.decay:.0e}" for one in beyond_the_edge(tried, tried[2])]
        ['8.4e-05, 2e-03']
        >>> beyond_the_edge(tried, tried[1])
        []
    """
    found = []
    for name, factor in (("learning_rate", 1.4), ("decay", 2.0)):
        values = {getattr(one, name) for one in tried}
        value = getattr(best, name)
        if len(values) == 1:  # not part of the search
            continue
        for edge, step in ((max(values), factor), (min(values), 1 / factor)):
            if value == edge:
                found.append(dataclasses.replace(best, **{name: value * step}))
    return found


def tune_cache(
    model: LanguageModel,
    valid: Tensor,
    *,
    tokens: int = TOKENS,
    thetas: Sequence[float] = THETAS,
    mixtures: Sequence[float] = MIXTURES,
    windows: Sequence[int] = WINDOWS,
    progress: ProgressCallback | None = None,
) -> Tuning[CacheSettings]:
    """The best mixture, theta and window on the first ``tokens`` of ``valid`` (N,).

    The model runs once, and the mixtures share one pass over the cache. ``progress`` counts the tries.
    """
    check_positive("tokens", tokens)
    scores = list(score_windows(model, valid[:tokens], batch=1, window=QUERIES))
    tries: list[Try[CacheSettings]] = []
    count = len(windows) * len(thetas) * len(mixtures)
    for window, theta in itertools.product(windows, thetas):
        cache_scores = list(look_up_windows(scores, theta, window))
        for mixture in mixtures:
            nll = torch.cat([mix(part, mixture) for part in cache_scores]).mean(dtype=torch.float64).item()
            tries.append(Try(CacheSettings(mixture, theta, window), perplexity(nll)))
            if progress is not None:
                progress(len(tries), count)
    return Tuning(_best(tries), tries, len(valid[:tokens]))


def _best(tries: list[Try[Settings]]) -> Settings:
    # The perplexity of a diverged try is NaN, which min() cannot compare.
    return min(
        tries, key=lambda found: math.inf if math.isnan(found.perplexity) else found.perplexity
    ).settings
