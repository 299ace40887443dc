"""Time limits, the cooldown of the learning rate, and the reasons for which a run ends."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import small_config, small_corpus

from torch_pru.lm.config import TrainingConfig
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import TrainingProgress, resume, train, trainer
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.schedule import Schedule
from torch_pru.lm.training.trainer import Trainer


class Clock:
    """A clock that advances by one second per training step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: self.now, time=time.time))
        original = Trainer._take_step

        def ticking(trainer: Trainer, first: int, length: int) -> None:
            original(trainer, first, length)
            self.now += 1

        monkeypatch.setattr(Trainer, "_take_step", ticking)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def settings(text_folder: Path, **more: Any) -> dict[str, Any]:
    return {"unit": "lstm", "corpus": str(text_folder), "epochs": 4, "log_steps": 3} | more


@pytest.mark.usefixtures("clock")
def test_when_the_time_is_up_the_epoch_is_cut_short_and_validated(text_folder: Path, tmp_path: Path) -> None:
    heard: list[TrainingProgress] = []
    run = train(
        small_config(**settings(text_folder, minutes=15 / 60)), tmp_path / "run", progress=heard.append
    )
    last = run.epochs()[-1]
    assert last["step"] == 15
    assert (last["decision"], last["stop_reason"]) == ("stop", "time is up")
    assert last["valid_loss"] > 0
    assert all("stop_reason" not in line for line in run.epochs()[:-1])
    assert (heard[-1].stop_reason, heard[-1].seconds_left) == ("time is up", 0.0)
    assert all(progress.seconds_left <= 15 for progress in heard)
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    assert checkpoint.state["finished"]
    assert resume(run.path).metrics() == run.metrics()


@pytest.mark.usefixtures("clock")
def test_the_time_before_a_resume_counts(text_folder: Path, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(progress: TrainingProgress) -> None:
        raise StopError

    config = small_config(**settings(text_folder, minutes=15 / 60))
    with pytest.raises(StopError):
        train(config, tmp_path / "run", progress=stop)
    assert 0 < RunFolder.open(tmp_path / "run").checkpoint().state["global_step"] < 8  # type: ignore[union-attr]
    assert resume(tmp_path / "run").epochs()[-1]["step"] == 15


def learning_rates(monkeypatch: pytest.MonkeyPatch, config: Any) -> list[float]:
    """Of a run in memory, for windows of the usual length."""
    rates: list[float] = []
    original = AveragedSGD.prepare_step

    def noting(self: AveragedSGD, lr: float) -> None:
        rates.append(lr)
        original(self, lr)

    monkeypatch.setattr(AveragedSGD, "prepare_step", noting)
    made = Trainer(config, small_corpus(), World(torch.device("cpu")))
    for epoch in range(config.training.epochs):
        made.schedule.epoch, made.step_in_epoch = epoch, 0
        windows = made._windows()
        for first, length in windows:
            made._take_step(first, length)
            rates[-1] *= config.training.window / length
    return rates


def test_the_cooldown_is_linear_in_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(unit="lstm", epochs=4, cooldown=0.5, learning_rate=8.0)
    rates = learning_rates(monkeypatch, config)
    text = Trainer(config, small_corpus(), World(torch.device("cpu")))
    expected = []
    for epoch in range(4):
        text.schedule.epoch = epoch
        count = len(text._windows())
        expected += [8.0 * min(1.0, (1 - (epoch + step / count) / 4) / 0.5) for step in range(count)]
    assert rates == pytest.approx(expected)
    assert rates[0] == pytest.approx(8.0)
    assert 0 < rates[-1] < 0.7


def test_the_cooldown_follows_the_time_where_that_ends_first() -> None:
    made = Trainer(
        small_config(unit="lstm", epochs=100, cooldown=0.25, minutes=1.0, learning_rate=8.0),
        small_corpus(),
        World(torch.device("cpu")),
    )
    for time_used, rate in ((0.0, 8.0), (0.75, 8.0), (0.875, 4.0), (1.0, 0.0), (1.1, 0.0)):
        made.time_used = time_used
        assert made._learning_rate() == pytest.approx(rate)


@pytest.mark.parametrize(
    ("losses", "options", "reason"),
    [
        ([5.0, 4.0], {"epochs": 2}, "all epochs done"),
        (
            [5.0, 5.1, 5.1],
            {"epochs": 9, "early_stop_from": 1, "trigger_window": 1},
            "no improvement for 2 epochs",
        ),
    ],
)
def test_why_training_ends(losses: list[float], options: dict[str, int], reason: str) -> None:
    schedule = Schedule(TrainingConfig(**options), "train")
    for loss in losses:
        assert schedule.stop_reason == ""
        schedule.end_epoch(loss)
    assert schedule.stop_reason == reason


def test_why_finetuning_ends() -> None:
    schedule = Schedule.finetuning(TrainingConfig(epochs=9, trigger_window=1), best=4.0)
    for loss in (4.1, 4.2, 4.3):
        schedule.end_epoch(loss)
    assert schedule.stop_reason == "the last round of finetuning did not improve"


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_a_text_of_small_integers_gives_the_same_weights(dtype: torch.dtype, rotate: bool) -> None:
    corpus = small_corpus()
    small = dataclasses.replace(
        corpus, train=corpus.train.to(dtype), valid=corpus.valid.to(dtype), test=corpus.test.to(dtype)
    )
    ends = []
    for text in (corpus, small):
        made = Trainer(small_config(rotate_columns=rotate), text, World(torch.device("cpu")))
        made.text.rotate(0)
        for first, length in made._windows():
            made._take_step(first, length)
        ends.append((made._validate(), made.model.state_dict()))
    (loss, weights), (small_loss, small_weights) = ends
    assert loss == small_loss
    assert all(torch.equal(value, small_weights[name]) for name, value in weights.items())
    if not rotate:
        assert made.text.columns.dtype == dtype
        assert made.text.columns.data_ptr() == small.train.data_ptr()


def test_a_resumed_run_knows_the_time_used_from_its_first_step_on() -> None:
    config = small_config(unit="lstm", epochs=100, cooldown=0.5, minutes=1.0, learning_rate=8.0)
    saved, again = (Trainer(config, small_corpus(), World(torch.device("cpu"))) for _ in range(2))
    saved.earlier_seconds = 45.0
    again.load_checkpoint(saved.checkpoint())
    assert again._learning_rate() == pytest.approx(4.0)  # a quarter of the time is left, half of the cooldown
