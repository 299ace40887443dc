"""Scores come with the loss of every token, in the order of the text."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from torch_pru.lm.evaluation.cache import CacheSettings, score_cache
from torch_pru.lm.evaluation.dynamic import DynamicSettings, gradient_statistics, score_dynamic
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.model import LanguageModel


@torch.no_grad()
def literal_losses(model: LanguageModel, text: Tensor) -> list[float]:
    """One token at a time."""
    model.eval()
    state, found = model.initial_state(1), []
    for word, following in pairwise(text):
        hidden = model.hidden(word.view(1, 1), state, None)
        state = hidden.state
        found.append(float(model.nll(hidden.raw.flatten(0, 1), following.view(1))))
    return found


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_static_losses(window: int, model: LanguageModel, text: Tensor) -> None:
    found = score(model, text, window=window)
    assert found.losses is not None
    assert found.losses.tolist() == pytest.approx(literal_losses(model, text), abs=1e-4)
    assert found.nll == pytest.approx(float(found.losses.double().mean()), abs=1e-12)
    assert score(model, text, batch=3).losses is None  # columns are not in the order of the text


@pytest.mark.parametrize("segment", [1, 5, 7])
def test_dynamic_losses(segment: int, pru: LanguageModel, text: Tensor, train_text: Tensor) -> None:
    """Without learning they are the static ones; with it, those of the first segment are."""
    statistics = gradient_statistics(pru, train_text, batch=10, segment=segment)
    static = score(pru, text).losses
    assert static is not None
    still = score_dynamic(pru, text, statistics, DynamicSettings(0.0, 0.0, segment=segment)).losses
    assert still is not None
    assert still.tolist() == pytest.approx(static.tolist(), abs=1e-4)
    found = score_dynamic(pru, text, statistics, DynamicSettings(1e-3, 0.0, segment=segment))
    assert found.losses is not None
    assert found.losses[:segment].tolist() == pytest.approx(static[:segment].tolist(), abs=1e-4)
    assert (found.losses[segment:] - static[segment:]).abs().max() > 1e-3
    assert found.nll == pytest.approx(float(found.losses.double().mean()), abs=1e-12)


def test_cache_losses(pru: LanguageModel, text: Tensor) -> None:
    static = score(pru, text).losses
    found = score_cache(pru, text, CacheSettings(mixture=0.3, theta=0.0, window=10)).losses
    assert static is not None
    assert found is not None
    words = text.tolist()
    for position in (0, 1, 5, 50, 200):  # theta 0 counts the words of the last ten positions
        before = words[max(1, position - 9) : position + 1]
        share = before.count(words[position + 1]) / len(before) if before else 0.0
        alone = torch.exp(-static[position])
        expected = alone if not before else 0.7 * alone + 0.3 * share
        assert float(torch.exp(-found[position])) == pytest.approx(float(expected), abs=1e-5)
