"""Dynamic evaluation against Krause's rule written out tensor by tensor."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm.data import columns
from torch_pru.lm.evaluation import (
    DynamicSettings,
    GradientStatistics,
    gradient_statistics,
    score,
    score_dynamic,
)
from torch_pru.lm.evaluation.dynamic import DynamicEvaluation, mean_rms
from torch_pru.lm.model import LanguageModel


def literal_statistics(model: LanguageModel, train: Tensor, batch: int) -> tuple[list[Tensor], float, int]:
    """RMS of each tensor's gradients and their unweighted mean over matrices and biases."""
    rows, state, count = columns(train, batch), model.initial_state(batch), 0
    squares = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for start in range(0, len(rows) - 1, 5):
        stop = min(start + 5, len(rows) - 1)
        model.zero_grad()
        hidden = model.hidden(rows[start:stop], state)
        model.nll(hidden.raw, rows[start + 1 : stop + 1]).mean().backward()
        state = [(h.detach(), c.detach()) for h, c in hidden.state]
        for name, value in model.named_parameters():
            assert value.grad is not None
            squares[name] += value.grad**2
        count += 1
    rms = {name: (total / count).sqrt() for name, total in squares.items()}
    means = []
    for name, value in rms.items():
        matrices = name.replace("bias", "weight")
        levels = [rms[other] for other in rms if other.startswith(f"{matrices}_k")]
        if "bias_" in name and levels:  # the bias of each level counts by itself
            by_gate, begin = value.view(4, -1), 0
            for level in levels:
                means.append(float(by_gate[:, begin : begin + len(level) // 4].mean()))
                begin += len(level) // 4
        else:
            means.append(float(value.mean()))
    return list(rms.values()), sum(means) / len(means), count


def literal_score(model: LanguageModel, text: Tensor, train: Tensor, settings: DynamicSettings) -> float:
    model = copy.deepcopy(model)
    rms, mean, _ = literal_statistics(model, train, 20)
    start_weights = [value.detach().clone() for value in model.parameters()]
    state, total, ids = model.initial_state(1), 0.0, text[:, None]
    for start in range(0, len(ids) - 1, settings.segment):
        stop = min(start + settings.segment, len(ids) - 1)
        model.zero_grad()
        hidden = model.hidden(ids[start:stop], state)
        nll = model.nll(hidden.raw, ids[start + 1 : stop + 1])
        total += float(nll.detach().double().sum())
        nll.mean().backward()
        state = [(h.detach(), c.detach()) for h, c in hidden.state]
        with torch.no_grad():
            for value, first, size in zip(model.parameters(), start_weights, rms, strict=True):
                assert value.grad is not None
                decay = torch.minimum(settings.decay * size / mean, torch.ones(()))
                step = settings.learning_rate * value.grad / (size + settings.epsilon)
                value += decay * (first - value) - step
    return total / (len(text) - 1)


@pytest.fixture(scope="module")
def statistics(model: LanguageModel, train_text: Tensor) -> GradientStatistics:
    return gradient_statistics(model, train_text, batch=20)


def test_statistics(model: LanguageModel, train_text: Tensor, statistics: GradientStatistics) -> None:
    rms, mean, count = literal_statistics(copy.deepcopy(model), train_text, 20)
    assert statistics.segments == count == 20
    assert float(mean_rms(model, statistics.rms)) == pytest.approx(mean, rel=1e-4)
    for found, expected in zip(statistics.rms, rms, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        DynamicSettings(learning_rate=1e-3, decay=0.02, epsilon=1e-3),
        DynamicSettings(learning_rate=1e-3, decay=1e3),  # every decay is clipped: no memory beyond one update
        DynamicSettings(learning_rate=5e-4, decay=0.0, segment=7),
    ],
    ids=["usual", "clipped", "no decay"],
)
def test_the_rule(
    model: LanguageModel,
    text: Tensor,
    train_text: Tensor,
    statistics: GradientStatistics,
    settings: DynamicSettings,
) -> None:
    short = text[:103]
    found = score_dynamic(model, short, statistics, settings)
    assert found.tokens == 102
    assert found.nll == pytest.approx(literal_score(model, short, train_text, settings), rel=1e-5)
    assert abs(found.nll - score(model, short).nll) > 1e-4  # it did adapt


@pytest.mark.parametrize("decay", [0.0, 0.005])
def test_without_learning_it_is_the_static_score(
    model: LanguageModel, text: Tensor, statistics: GradientStatistics, decay: float
) -> None:
    found = score_dynamic(model, text, statistics, DynamicSettings(learning_rate=0.0, decay=decay))
    static = score(model, text)
    assert found.tokens == static.tokens == len(text) - 1
    assert found.nll == pytest.approx(static.nll, rel=1e-6)


def test_it_learns_text_that_repeats_itself(
    model: LanguageModel, repeating: Tensor, statistics: GradientStatistics
) -> None:
    static = score(model, repeating).perplexity
    dynamic = score_dynamic(model, repeating, statistics, DynamicSettings(learning_rate=2e-3)).perplexity
    assert dynamic < 0.85 * static


def test_the_weights_come_back_exactly(
    model: LanguageModel, text: Tensor, statistics: GradientStatistics
) -> None:
    before = copy.deepcopy(model.state_dict())
    score_dynamic(model, text[:100], statistics, DynamicSettings(learning_rate=0.01))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_weights_come_back_after_control_c(pru: LanguageModel, text: Tensor, train_text: Tensor) -> None:
    statistics = gradient_statistics(pru, train_text, batch=20)
    before = copy.deepcopy(pru.state_dict())

    def stop(done: int, total: int) -> None:
        if done >= 50:
            assert not all(torch.equal(value, before[name]) for name, value in pru.state_dict().items())
            raise KeyboardInterrupt

    pru.train()
    try:
        with pytest.raises(KeyboardInterrupt):
            score_dynamic(pru, text, statistics, DynamicSettings(learning_rate=0.01), progress=stop)
        assert all(torch.equal(value, before[name]) for name, value in pru.state_dict().items())
        assert all(module.training for module in pru.modules())
    finally:
        pru.eval()


def test_it_works_where_the_caller_has_switched_gradients_off(
    pru: LanguageModel, text: Tensor, train_text: Tensor
) -> None:
    with torch.no_grad():
        statistics = gradient_statistics(pru, train_text, batch=20)
        assert math.isfinite(score_dynamic(pru, text[:50], statistics).nll)
        assert not torch.is_grad_enabled()


def test_autocast_sees_the_weights_of_the_moment(
    model: LanguageModel, text: Tensor, statistics: GradientStatistics
) -> None:
    """Autocast keeps what it has cast, which here would be the weights of the first segment for ever."""
    settings = DynamicSettings(learning_rate=2e-3)
    exact = score_dynamic(model, text, statistics, settings).nll
    with torch.autocast("cpu", torch.bfloat16):
        rounded = score_dynamic(model, text, statistics, settings).nll
    assert abs(rounded - exact) < 0.1 * abs(exact - score(model, text).nll)


def test_an_evaluation_takes_settings_of_its_own_segment_only(
    pru: LanguageModel, text: Tensor, train_text: Tensor
) -> None:
    evaluation = DynamicEvaluation(pru, text, gradient_statistics(pru, train_text, batch=20), segment=7)
    with pytest.raises(PRUError, match="segments of 7"):
        evaluation.score(DynamicSettings())


def test_statistics_of_another_model_are_refused(pru: LanguageModel, text: Tensor) -> None:
    with pytest.raises(PRUError, match="another model"):
        score_dynamic(pru, text, GradientStatistics([torch.ones(2)], 1))


@pytest.mark.parametrize(
    "wrong", [{"learning_rate": -1.0}, {"decay": math.nan}, {"epsilon": 0.0}, {"segment": 0}]
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(PRUError, match=next(iter(wrong))):
        DynamicSettings(**wrong)  # type: ignore[arg-type]
