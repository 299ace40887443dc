"""The second stage: its settings, what it begins with, and what it is refused to."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from small import small_config, small_corpus

from torch_pru import PRUError
from torch_pru.lm.checkpoint import Checkpoint
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import finetune, train
from torch_pru.lm.training.api import FinetuningRun
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.driver import run_all
from torch_pru.lm.training.progress import StopRequest
from torch_pru.lm.training.schedule import Schedule
from torch_pru.lm.training.trainer import Trainer


@pytest.fixture(scope="module")
def finished(text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    config = small_config(unit="lstm", corpus=str(text_folder), epochs=6)
    return train(config, tmp_path_factory.mktemp("runs") / "run")


def test_finetuning_has_settings_of_its_own(text_folder: Path, tmp_path: Path) -> None:
    config = small_config(corpus=str(text_folder), epochs=1)
    config = dataclasses.replace(config, finetuning={"hidden_dropout": 0.3, "temporal": 3.0})
    run = train(config, tmp_path / "run")
    assert RunFolder.open(run.path).config.finetuning == config.finetuning
    tuned = finetune(run.path, overrides={"hidden_dropout": "0.4"})
    rates = tuned.config.regularization
    assert (rates.hidden_dropout, rates.temporal) == (0.4, 3.0)
    assert rates == dataclasses.replace(config.regularization, hidden_dropout=0.4, temporal=3.0)
    with pytest.raises(PRUError, match=r"levels cannot be changed in finetuning"):
        finetune(run.path, tmp_path / "other", {"levels": "1"})
    assert not (tmp_path / "other").exists()


def test_finetuning_starts_averaged_from_the_best_weights(finished: RunFolder, tmp_path: Path) -> None:
    tuned = finetune(finished.path, tmp_path / "tuned")
    assert (tuned.stage, tuned.config) == ("finetune", finished.config)
    lines = [line for line in tuned.metrics() if line["kind"] == "epoch"]
    assert all(line["averaged"] and line["stage"] == "finetune" for line in lines)
    rounds = [line["round"] for line in lines]
    assert rounds == sorted(rounds)
    assert rounds[0] == 1
    assert lines[-1]["decision"] == "stop"
    assert sum(line["decision"] == "restart" for line in lines) == rounds[-1] - 1
    before = min(line["valid_loss"] for line in finished.epochs())
    assert lines[-1]["best_valid_loss"] <= before
    with pytest.raises(PRUError, match=r"there is already a run in"):
        finetune(finished.path, tmp_path / "tuned")
    with pytest.raises(
        PRUError, match=r"tuned has already been finetuned; .* finetune the run that it came from"
    ):
        finetune(tuned.path)


def test_one_that_came_first_is_left_as_it_is(finished: RunFolder, tmp_path: Path) -> None:
    path = tmp_path / "tuned"
    late = FinetuningRun(finished.path, path)
    finetune(finished.path, path, {"epochs": "1"})
    before = sorted(path.rglob("*"))
    with pytest.raises(PRUError, match=r"there is already a run in"):
        run_all([late], None)
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("valid_batch", [1, 5])
def test_finetuning_measures_what_it_begins_with(
    finished: RunFolder, tmp_path: Path, valid_batch: int
) -> None:
    """A loss at another batch is another measure, and must not pass for a gain or a loss."""
    overrides = {"valid_batch": str(valid_batch), "learning_rate": "1e-12", "epochs": "1"}
    run = finetune(finished.path, tmp_path / "second", overrides=overrides)
    [line] = run.epochs()
    assert line["valid_loss"] == pytest.approx(line["best_valid_loss"], abs=1e-6)
    assert abs(line["valid_loss"] - finished.epochs()[-1]["best_valid_loss"]) > 1e-4


def test_a_round_begins_with_the_best_weights_and_an_average_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(small_config(unit="lstm", epochs=9), small_corpus(), World(torch.device("cpu")))
    trainer.schedule = Schedule.finetuning(trainer.config.training, best=9.0)
    trainer.optimizer.start_averaging()
    steps = trainer.fit(RunFolder.create(tmp_path, trainer.config, small_corpus()), StopRequest())
    losses = iter([3.0, 3.1, 3.2])  # the first epoch's are the best weights; the third one ends the round
    monkeypatch.setattr(trainer, "_validate", lambda: next(losses))
    ends = [next(report for report in steps if report is not None and report.ended) for _ in range(3)]
    assert (trainer.schedule.round, trainer.schedule.best_epoch) == (2, 1)
    assert [end.round for end in ends] == [1, 1, 1]
    assert [line["round"] for line in RunFolder.open(tmp_path).epochs()] == [1, 1, 1]
    assert all(torch.equal(trainer.best[name], value) for name, value in trainer.model.named_parameters())
    next(steps)
    assert trainer.optimizer.averages is not None
    for average, weight in zip(trainer.optimizer.averages, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(average, weight.detach())  # the mean of one step
    steps.close()


def test_weights_whose_validation_is_no_number_are_not_finetuned() -> None:
    """As where a precision overflows that they were not trained in."""
    trainer = Trainer(small_config(unit="lstm"), small_corpus(), World(torch.device("cpu")))
    weights = {name: torch.full_like(value, math.nan) for name, value in trainer.model.named_parameters()}
    with pytest.raises(PRUError, match="the validation loss before finetuning is nan with precision='auto'"):
        trainer.start_finetuning(Checkpoint({}, weights, {}))


def test_an_unfinished_run_is_not_finetuned(text_folder: Path, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", small_config(corpus=str(text_folder)), small_corpus())
    with pytest.raises(PRUError, match="is not finished"):
        finetune(tmp_path / "run")
    with pytest.raises(PRUError, match="has no best weights"):
        RunFolder.open(tmp_path / "run").model()
