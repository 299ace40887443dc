"""The continuous cache against a literal one, word by word."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm.evaluation import CacheSettings, score, score_cache
from torch_pru.lm.evaluation import cache as cache_module
from torch_pru.lm.model import LanguageModel


@torch.no_grad()
def literal_score(model: LanguageModel, ids: Tensor, settings: CacheSettings) -> float:
    """Grave et al., equations 2 and 3, with a list as the cache and whole distributions over the words."""
    state, cached, total = model.initial_state(1), [], 0.0
    for now, after in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        hidden = model.hidden(torch.tensor([[now]]), state)
        state, h = hidden.state, hidden.raw[0, 0].double()
        p = model.log_probabilities(hidden.raw[0, 0]).double().exp()
        if cached:
            pointer = torch.zeros_like(p)
            for key, word in cached[-settings.window :]:
                pointer[word] += math.exp(settings.theta * float(h @ key))
            p = (1 - settings.mixture) * p + settings.mixture * pointer / pointer.sum()
        total -= math.log(float(p[after]))
        cached.append((h, after))
    return total / (len(ids) - 1)


@pytest.mark.parametrize(
    "settings",
    [
        CacheSettings(mixture=0.1, theta=1.0, window=500),
        CacheSettings(mixture=0.4, theta=0.3, window=5),
        CacheSettings(mixture=0.2, theta=0.0, window=1),
    ],
)
def test_against_the_literal_cache(
    model: LanguageModel, text: Tensor, settings: CacheSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "QUERIES", 37)  # many passes, a window longer and shorter than one
    short = text[:103]
    found = score_cache(model, short, settings)
    assert found.tokens == 102
    assert found.nll == pytest.approx(literal_score(model, short, settings), rel=1e-5)


def test_without_a_share_it_is_the_static_score(model: LanguageModel, text: Tensor) -> None:
    found = score_cache(model, text, CacheSettings(mixture=0.0))
    assert found.nll == pytest.approx(score(model, text).nll, rel=1e-6)
    assert found.tokens == len(text) - 1


def test_it_helps_on_text_that_repeats_itself(model: LanguageModel, repeating: Tensor) -> None:
    cached = score_cache(model, repeating, CacheSettings(mixture=0.3))
    assert cached.perplexity < 0.9 * score(model, repeating).perplexity


@pytest.mark.parametrize(
    "wrong", [{"mixture": 1.0}, {"mixture": -0.1}, {"theta": -1.0}, {"theta": math.inf}, {"window": 0}]
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(PRUError, match=next(iter(wrong))):
        CacheSettings(**wrong)  # type: ignore[arg-type]
