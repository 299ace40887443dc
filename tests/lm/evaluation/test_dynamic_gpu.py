"""Dynamic evaluation as CUDA graphs: the numbers of plain segments, in whatever way it ends."""

from __future__ import annotations

import copy

import pytest
import torch
from small_models import WORDS, speak, taught
from torch import Tensor

from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.device import autocast
from torch_pru.lm.evaluation import (
    DynamicSettings,
    GradientStatistics,
    dynamic,
    gradient_statistics,
    score,
    score_dynamic,
    tune_dynamic,
)
from torch_pru.lm.evaluation.dynamic import DynamicEvaluation
from torch_pru.lm.model import LanguageModel
from torch_pru.ops import reference
from torch_pru.ops.cuda import updates

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")
PRECISIONS = ["float32", "float16", "bfloat16"]
SETTINGS = [
    DynamicSettings(learning_rate=1e-3, decay=0.02, epsilon=1e-3),
    DynamicSettings(learning_rate=2e-3, decay=0.0),
    DynamicSettings(learning_rate=1e-3, decay=1e3),
]


@pytest.fixture(scope="module")
def on_gpu(pru: LanguageModel) -> LanguageModel:
    return copy.deepcopy(pru).to(DEVICE)


@pytest.fixture(scope="module")
def statistics(on_gpu: LanguageModel, train_text: Tensor) -> GradientStatistics:
    return gradient_statistics(on_gpu, train_text, batch=20)


@pytest.fixture
def no_graphs(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Its ``setattr`` and ``undo`` switch graphs off and on again."""
    monkeypatch.setattr(dynamic, "can_capture", lambda model: False)
    return monkeypatch


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_graph_gives_the_scores_of_plain_segments(
    on_gpu: LanguageModel,
    text: Tensor,
    statistics: GradientStatistics,
    no_graphs: pytest.MonkeyPatch,
    precision: str,
) -> None:
    """60 segments and a shorter one, with one setting after another."""
    before = copy.deepcopy(on_gpu.state_dict())
    with autocast(precision, DEVICE):
        plain = [score_dynamic(on_gpu, text, statistics, settings).nll for settings in SETTINGS]
        no_graphs.undo()
        evaluation = DynamicEvaluation(on_gpu, text, statistics)
        assert isinstance(evaluation.adaptation.update, updates.DynamicUpdate)
        for settings, expected in zip(SETTINGS, plain, strict=True):
            found = evaluation.score(settings)
            assert found.tokens == 302
            assert found.nll == pytest.approx(expected, rel=1e-4)
            assert all(torch.equal(value, before[name]) for name, value in on_gpu.state_dict().items())
        assert evaluation.score(SETTINGS[0]).nll == pytest.approx(plain[0], rel=1e-4)
    assert evaluation.reader._graphed.graph is not None
    assert len({round(nll, 3) for nll in plain}) == 3


def test_the_score_is_the_cpus(
    pru: LanguageModel,
    on_gpu: LanguageModel,
    text: Tensor,
    statistics: GradientStatistics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # it rounds as the CPU
    on_cpu = GradientStatistics([rms.cpu() for rms in statistics.rms], statistics.segments)
    for settings in SETTINGS:
        expected = score_dynamic(pru, text, on_cpu, settings).nll
        assert score_dynamic(on_gpu, text, statistics, settings).nll == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_without_learning_it_is_the_static_score(
    on_gpu: LanguageModel,
    text: Tensor,
    statistics: GradientStatistics,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # float32 without rounding to TF32
    with autocast(precision, DEVICE):
        found = score_dynamic(on_gpu, text, statistics, DynamicSettings(learning_rate=0.0))
        assert found.nll == pytest.approx(
            score(on_gpu, text).nll, rel=1e-5 if precision == "float32" else 2e-3
        )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_statistics(
    on_gpu: LanguageModel, train_text: Tensor, no_graphs: pytest.MonkeyPatch, precision: str
) -> None:
    with autocast(precision, DEVICE):
        plain = gradient_statistics(on_gpu, train_text, batch=20)
        no_graphs.undo()
        graphed = gradient_statistics(on_gpu, train_text, batch=20)
    assert plain.segments == graphed.segments == 20  # the last one is shorter
    for ours, theirs in zip(graphed.rms, plain.rms, strict=True):
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm()


def test_the_weights_come_back_after_control_c(on_gpu: LanguageModel, statistics: GradientStatistics) -> None:
    text, before = speak(1203, seed=4), copy.deepcopy(on_gpu.state_dict())
    heard = []

    def stop(done: int, total: int) -> None:
        heard.append((done, total))
        if done < total:
            assert not all(torch.equal(value, before[name]) for name, value in on_gpu.state_dict().items())
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_dynamic(on_gpu, text, statistics, DynamicSettings(learning_rate=0.01), progress=stop)
    assert heard == [(5 * dynamic.PROGRESS_INTERVAL, 1202), (1202, 1202)]
    assert all(torch.equal(value, before[name]) for name, value in on_gpu.state_dict().items())
    assert all(parameter.grad is None for parameter in on_gpu.parameters())


def test_tuning(on_gpu: LanguageModel, repeating: Tensor, statistics: GradientStatistics) -> None:
    tuning = tune_dynamic(
        on_gpu, repeating, statistics, tokens=200, learning_rates=(1e-5, 1e-3), decays=(1e-3, 1e-2)
    )
    for one in tuning.tries:
        again = score_dynamic(on_gpu, repeating[:200], statistics, one.settings)
        assert again.perplexity == pytest.approx(one.perplexity, rel=1e-4)
    assert tuning.best == min(tuning.tries, key=lambda one: one.perplexity).settings
    assert tuning.best.learning_rate >= 1e-3  # the text repeats itself: it goes beyond the grid


def test_a_mixture_of_softmaxes(train_text: Tensor, text: Tensor, no_graphs: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = ModelConfig(unit="pru", embedding=16, hidden=(24,), experts=3, groups=2)
    model = LanguageModel(config, RegularizationConfig(), WORDS).eval().to(DEVICE)
    statistics = gradient_statistics(model, train_text, batch=20)
    plain = score_dynamic(model, text, statistics, SETTINGS[0]).nll
    no_graphs.undo()
    assert score_dynamic(model, text, statistics, SETTINGS[0]).nll == pytest.approx(plain, rel=1e-4)


def test_an_lstm_goes_without_graphs(train_text: Tensor, text: Tensor) -> None:
    model = taught("lstm", train_text)
    expected = score_dynamic(model, text, gradient_statistics(model, train_text, batch=20), SETTINGS[0]).nll
    model.to(DEVICE)
    evaluation = DynamicEvaluation(model, text, gradient_statistics(model, train_text, batch=20))
    assert evaluation.score(SETTINGS[0]).nll == pytest.approx(expected, rel=1e-2)  # cuDNN may use TF32
    assert evaluation.reader._graphed.graph is None


def test_the_kernel_updates_as_the_rule_says() -> None:
    """More tensors than one launch takes, of all sizes, and some that do not start at 16 bytes."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    shapes = [
        (7,),
        (1,),
        (1401,),
        (400, 350),
        (2, 4, 3, 3),
        (1_000_003,),
        *[(size,) for size in range(1, 90)],
    ]

    def draw() -> list[Tensor]:
        drawn = [torch.rand(shape, device=DEVICE, generator=generator) - 0.3 for shape in shapes]
        drawn[2] = torch.cat([drawn[2], drawn[2]])[1401:]
        return drawn

    weights, trained, gradients = draw(), draw(), draw()
    rms = [each.abs() for each in draw()]
    ours, theirs = ([each.clone() for each in weights] for _ in range(2))
    ours[2] = torch.cat([weights[2], weights[2]])[1401:]
    for weights, kind in ((ours, updates.dynamic_update), (theirs, reference.dynamic_update)):
        update = kind(weights, trained, rms)
        for rate, losses in ((0.1, 5), (0.2, 3)):
            update.prepare(rate, torch.tensor(4.0, device=DEVICE), 0.05)
            update.apply(tuple(gradients), losses)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
