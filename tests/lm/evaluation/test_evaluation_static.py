"""Scores count every predicted token once, whatever the window."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import small_model
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import columns
from torch_pru.lm.evaluation import Score, score
from torch_pru.lm.evaluation import static as static_module
from torch_pru.lm.model import LanguageModel


def slow_perplexity(model: LanguageModel, ids: Tensor) -> float:
    """One token at a time, softmax by hand in float64, summed in Python."""
    state = model.initial_state(1)
    total = 0.0
    with torch.no_grad():
        for now, after in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
            hidden = model.hidden(torch.tensor([[now]]), state)
            state = hidden.state
            probabilities = model.log_probabilities(hidden.raw[0, 0]).double().exp()
            total -= math.log(float(probabilities[after] / probabilities.sum()))
    return math.exp(total / (len(ids) - 1))


def test_every_window_gives_what_a_slow_loop_gives(model: LanguageModel, text: Tensor) -> None:
    expected = slow_perplexity(model, text)
    for window in (1, 5, 70, 1000):
        found = score(model, text, window=window)
        assert found.perplexity == pytest.approx(expected, rel=1e-5)
        assert found.tokens == len(text) - 1


def test_the_token_count_of_ptb_validation() -> None:
    config = ModelConfig(unit="lstm", embedding=2, hidden=(2,))
    model = LanguageModel(config, RegularizationConfig(), 3)
    assert score(model, torch.arange(73_760) % 3).tokens == 73_759


def test_a_batch_scores_each_column_from_an_empty_state(pru: LanguageModel, text: Tensor) -> None:
    rows = columns(text, 10)
    each = [slow_perplexity(pru, rows[:, column]) for column in range(10)]
    found = score(pru, text, batch=10, window=7)
    assert found.tokens == (len(text) // 10 - 1) * 10
    assert found.nll == pytest.approx(sum(math.log(value) for value in each) / 10, rel=1e-5)


def test_logits_are_decoded_in_pieces(
    pru: LanguageModel, text: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = score(pru, text, window=100)
    sizes = []
    nll = pru.nll

    def watched(hidden: Tensor, targets: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return nll(hidden, targets)

    monkeypatch.setattr(pru, "nll", watched)
    monkeypatch.setitem(static_module.MAX_LOGITS, "cpu", 8 * pru.logits_per_token)
    pieces = score(pru, text, window=100)
    assert max(sizes) == 8
    assert sum(sizes) == len(text) - 1
    assert pieces.nll == pytest.approx(whole.nll, rel=1e-6)


def test_the_sum_is_kept_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model("lstm")
    # In float32 the sum of 20,000 tenths is already off in the sixth digit.
    monkeypatch.setattr(model, "nll", lambda hidden, targets: torch.full((len(targets),), 0.1))
    found = score(model, torch.zeros(20_001, dtype=torch.int64))
    assert found.nll == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_dropout_is_off_and_the_mode_comes_back(pru: LanguageModel, text: Tensor) -> None:
    expected = score(pru, text)
    pru.train()
    try:
        assert score(pru, text).nll == expected.nll
        assert all(module.training for module in pru.modules())
    finally:
        pru.eval()


def test_progress_ends_at_the_whole(pru: LanguageModel, text: Tensor) -> None:
    calls: list[tuple[int, int]] = []
    score(pru, text, window=125, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(125, 302), (250, 302), (302, 302)]


@pytest.mark.parametrize("options", [{"batch": 0}, {"window": 0}, {"batch": 200}])
def test_mistakes_are_refused(pru: LanguageModel, text: Tensor, options: dict[str, int]) -> None:
    with pytest.raises(PRUError, match=next(iter(options))):
        score(pru, text, **options)


def test_a_text_without_a_prediction_is_refused(pru: LanguageModel) -> None:
    with pytest.raises(PRUError, match="1 tokens"):
        score(pru, torch.zeros(1, dtype=torch.int64))


def test_a_perplexity_beyond_floats_is_infinite() -> None:
    assert Score(nll=1e4, tokens=1, seconds=0.0).perplexity == math.inf
