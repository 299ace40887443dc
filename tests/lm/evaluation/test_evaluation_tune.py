"""Tuning sees the first tokens of the validation text only, and takes the best try."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm.evaluation import (
    CacheSettings,
    DynamicSettings,
    GradientStatistics,
    Try,
    gradient_statistics,
    score_cache,
    score_dynamic,
    tune_cache,
    tune_dynamic,
)
from torch_pru.lm.evaluation import tune as tune_module
from torch_pru.lm.model import LanguageModel


@pytest.fixture
def valid(repeating: Tensor) -> Tensor:
    # A word that no model has follows: whoever reads it fails.
    return torch.cat([repeating[:200], torch.tensor([10_000])])


def test_dynamic(pru: LanguageModel, train_text: Tensor, valid: Tensor) -> None:
    statistics = gradient_statistics(pru, train_text, batch=20)
    read: list[tuple[int, int]] = []
    tuning = tune_dynamic(
        pru,
        valid,
        statistics,
        tokens=200,
        learning_rates=(1e-5, 1e-3),
        decays=(1e-3, 1e-2),
        progress=lambda done, total: read.append((done, total)),
    )
    settings = [(one.settings.learning_rate, one.settings.decay) for one in tuning.tries]
    assert settings[:4] == [(1e-5, 1e-3), (1e-3, 1e-3), (1e-5, 1e-2), (1e-3, 1e-2)]
    assert (read[0], read[40], read[159]) == ((5, 796), (204, 796), (796, 796))
    assert read[-1] == (199 * len(settings), 199 * len(settings))
    # The best of the four is at the edge: the search goes on outside, until that helps no more.
    assert 4 < len(settings) <= 4 + tune_module.MAX_BEYOND + 1
    assert tuning.best.learning_rate > 1e-3
    assert tuning.best.learning_rate < max(rate for rate, _ in settings)
    best = min(tuning.tries, key=lambda one: one.perplexity)
    assert best.settings == tuning.best
    again = score_dynamic(pru, valid[:200], statistics, tuning.best)
    assert again.perplexity == pytest.approx(best.perplexity)


def test_cache(pru: LanguageModel, valid: Tensor) -> None:
    grid = {"thetas": (0.0, 1.0), "mixtures": (0.01, 0.2), "windows": (3, 100)}
    heard: list[tuple[int, int]] = []
    tuning = tune_cache(pru, valid, tokens=200, progress=lambda *step: heard.append(step), **grid)
    assert len(tuning.tries) == 8
    assert heard == [(done, 8) for done in range(1, 9)]
    for one in tuning.tries:
        again = score_cache(pru, valid[:200], one.settings)
        assert again.perplexity == pytest.approx(one.perplexity, rel=1e-6)
    assert tuning.best == min(tuning.tries, key=lambda one: one.perplexity).settings
    assert tuning.best.window == 100


def test_the_published_grids() -> None:
    assert tune_module.TOKENS == 30_000
    assert len(tune_module.LEARNING_RATES) * len(tune_module.DECAYS) == 24
    for settings in (CacheSettings(), CacheSettings(0.1279, 0.662, 3785)):
        assert settings.mixture in tune_module.MIXTURES
        assert settings.theta in tune_module.THETAS
        assert settings.window in tune_module.WINDOWS


def test_a_diverged_try_does_not_win() -> None:
    good = DynamicSettings(decay=0.0)
    assert tune_module._best([Try(DynamicSettings(), math.nan), Try(good, 9.0)]) == good


@pytest.mark.parametrize("tokens", [-5, 0, 2.5])
def test_a_number_of_tokens_that_is_none(pru: LanguageModel, valid: Tensor, tokens: int) -> None:
    with pytest.raises(PRUError, match="tokens="):
        tune_cache(pru, valid, tokens=tokens)
    with pytest.raises(PRUError, match="tokens="):
        tune_dynamic(pru, valid, GradientStatistics([], 1), tokens=tokens)
