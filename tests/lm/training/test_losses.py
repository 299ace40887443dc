"""Losses of a run: what they are means of, and when they end it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_config, small_corpus
from torch import Tensor

from torch_pru.lm.data import Vocabulary
from torch_pru.lm.data.corpus import load_corpus
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import DivergenceError, train
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.progress import StopRequest
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.trainer import Trainer

CPU = torch.device("cpu")


def test_a_reported_loss_is_the_mean_over_the_tokens_since_the_last_report(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int]] = []  # of each step: loss and tokens
    original = TrainingStep.__call__

    def watched(self: TrainingStep, tokens: Tensor, *arguments: Any) -> Any:
        state, loss = original(self, tokens, *arguments)
        seen.append((loss.item(), tokens.numel()))
        return state, loss

    monkeypatch.setattr(TrainingStep, "__call__", watched)
    run = train(small_config(unit="lstm", corpus=str(text_folder), epochs=2), tmp_path / "run")

    def mean(steps: list[tuple[float, int]]) -> float:
        return sum(loss * tokens for loss, tokens in steps) / sum(tokens for _, tokens in steps)

    begun = 0
    for line in run.metrics():
        if line["kind"] == "steps":
            assert line["loss"] == pytest.approx(mean(seen[line["step"] - 7 : line["step"]]), rel=1e-6)
        else:
            assert line["train_loss"] == pytest.approx(mean(seen[begun : line["step"]]), rel=1e-6)
            begun = line["step"]
    assert begun == len(seen)


def test_tokens_are_counted_over_all_columns() -> None:
    trainer = Trainer(small_config(unit="lstm", batch=4), small_corpus(), World(CPU))
    trainer._take_step(0, 9)
    trainer._take_step(9, 11)
    assert trainer.log_loss.tokens == trainer.epoch_loss.tokens == 80


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_step(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    original = TrainingStep.__call__

    def poisoned(self: TrainingStep, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 16:
            with torch.no_grad():
                self.model.embedding.weight[0, 0] = math.nan
        return original(self, *arguments)

    monkeypatch.setattr(TrainingStep, "__call__", poisoned)
    config = small_config(unit="lstm", corpus=str(text_folder), checkpoint_steps=9, log_steps=50)
    with pytest.raises(
        DivergenceError, match=r"not finite at step 16; the checkpoints in .* hold the last good weights"
    ):
        train(config, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    kept = run.checkpoint()
    assert kept is not None
    assert kept.state["global_step"] == 9
    assert all(weight.isfinite().all() for weight in kept.weights.values())
    [epoch] = run.epochs()  # it ended after that checkpoint, and its weights are kept all the same
    valid = load_corpus(str(text_folder)).valid
    assert score(run.model("best"), valid, batch=2).nll == pytest.approx(epoch["valid_loss"], abs=1e-6)


def test_a_loss_that_runs_away_stops_the_run(text_folder: Path, tmp_path: Path) -> None:
    settings = {
        "unit": "lstm",
        "corpus": str(text_folder),
        "learning_rate": 1e4,
        "clip": 100.0,
        "log_steps": 2,
    }
    with pytest.raises(DivergenceError, match=r"exploded|not finite"):
        train(small_config(**settings), tmp_path / "run")


@pytest.mark.parametrize("words", [2, 40, 10_000])
def test_how_far_a_loss_may_be_above_a_uniform_guess(words: int, tmp_path: Path) -> None:
    corpus = dataclasses.replace(small_corpus(), vocabulary=Vocabulary(map(str, range(words))))
    corpus = dataclasses.replace(corpus, train=corpus.train % words, valid=corpus.valid % words)
    trainer = Trainer(small_config(unit="lstm"), corpus, World(CPU))
    trainer._start(RunFolder.create(tmp_path, trainer.config, corpus), StopRequest())
    trainer.log_loss.add(torch.tensor(math.log(words) + 9.9), tokens=1)
    trainer._check_divergence()
    trainer.log_loss.add(torch.tensor(math.log(words) + 10.3), tokens=1)
    with pytest.raises(DivergenceError, match=f"a uniform guess has {math.log(words):.1f}"):
        trainer._check_divergence()


def test_three_words_are_learned_at_the_usual_rate(tmp_path: Path) -> None:
    """The first steps are far above the 1.1 nats of a guess, and that is no reason to stop."""
    for split, lines in (("train", 200), ("valid", 40), ("test", 40)):
        (tmp_path / f"{split}.txt").write_text("a b\n" * lines)
    settings = {"embedding": 60, "hidden": [60, 60], "learning_rate": 30.0, "log_steps": 2}
    run = train(small_config(unit="lstm", corpus=str(tmp_path), epochs=2, **settings), tmp_path / "run")
    losses = [line["loss"] for line in run.metrics() if line["kind"] == "steps"]
    assert max(losses) > 2 * math.log(3)
    assert run.epochs()[-1]["valid_loss"] < 0.1


def test_a_validation_loss_that_is_not_a_number_stops_the_run(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([3.0, math.inf])
    monkeypatch.setattr(Trainer, "_validate", lambda self: next(losses))
    with pytest.raises(
        DivergenceError, match=r"the validation loss after epoch 2 is inf; the checkpoints in "
    ):
        train(small_config(unit="lstm", corpus=str(text_folder)), tmp_path / "run")
    assert len(RunFolder.open(tmp_path / "run").epochs()) == 1
