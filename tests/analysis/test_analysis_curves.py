"""Learning curves and the sweep, from run folders without weights."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from analysis_runs import write_run

from torch_pru.analysis import learning_curve, sweep_point
from torch_pru.analysis.sweep import recurrent_parameters
from torch_pru.errors import PRUError
from torch_pru.lm.config import build_config
from torch_pru.lm.data import load_corpus
from torch_pru.lm.evaluation.scores import Scores, save_scores
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.run import RunFolder


@pytest.fixture
def folder(tmp_path: Path, corpus: Path) -> Path:
    """A run without weights."""
    return write_run(tmp_path / "run", "pru", corpus, weights=False, epochs=3)


def test_the_curve_is_that_of_the_metrics(folder: Path) -> None:
    curve = learning_curve(RunFolder.open(folder))
    assert curve.epochs == [1, 2, 3]
    assert curve.train == pytest.approx([math.exp(4.9), math.exp(4.8), math.exp(4.7)])
    assert curve.valid == pytest.approx([math.exp(5.5), math.exp(5), math.exp(4.5 + 1 / 3)])
    assert curve.best == (3, curve.valid[2])
    assert curve.model == "PRU g=2 M=12"


def test_a_run_before_its_first_epoch_is_refused(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(PRUError, match="has not finished an epoch"):
        learning_curve(RunFolder.open(folder))


def test_the_point_of_a_run(folder: Path) -> None:
    # Two biases a gate; K=2 splits M into 3/4 from N and 1/4 from N/2; g=2 halves the context.
    def pru(n: int, m: int) -> int:
        return 4 * (n * m * 3 // 4 + n // 2 * m // 4) + 4 * m * m // 2 + 8 * m

    def lstm(n: int, m: int) -> int:
        return 4 * n * m + 4 * m * m + 8 * m

    point = sweep_point(RunFolder.open(folder))
    assert (point.levels, point.groups, point.unit, point.variant) == (2, 2, "pru", "")
    assert point.recurrent == pru(8, 12) + pru(12, 8)
    assert point.lstm == lstm(8, 12) + lstm(12, 8)
    assert point.saving == pytest.approx(1 - point.recurrent / point.lstm)
    assert point.perplexity == pytest.approx(math.exp(4.5 + 1 / 3))
    assert not point.scored


def test_a_score_goes_before_what_training_saw(folder: Path) -> None:
    save_scores(Scores("ab12", {}, {"static": {"valid": {"perplexity": 77.0}}}), folder)
    point = sweep_point(RunFolder.open(folder))
    assert (point.perplexity, point.scored) == (77.0, True)


def test_an_lstm_saves_nothing(tmp_path: Path, corpus: Path) -> None:
    point = sweep_point(RunFolder.open(write_run(tmp_path / "lstm", "lstm", corpus, weights=False)))
    assert (point.saving, point.levels, point.groups) == (0, 1, 1)


@pytest.mark.parametrize(
    ("settings", "stage", "regime", "variant"),
    [
        ({}, "train", "advanced dropouts", ""),
        ({}, "finetune", "advanced dropouts, finetuned", ""),
        ({"variational": False}, "train", "standard dropout", ""),
        ({"init": "lstm"}, "train", "advanced dropouts", "lstm init"),
        ({"levels": 4, "input_transform": "linear"}, "train", "advanced dropouts", "linear input"),
    ],
)
def test_what_sets_a_run_apart(
    settings: dict[str, Any], stage: str, regime: str, variant: str, corpus: Path, tmp_path: Path
) -> None:
    config = build_config("mine", {"embedding": 8, "hidden": [12, 8], "groups": 2, **settings})
    run = RunFolder.create(tmp_path / "run", config, load_corpus(str(corpus)), stage)
    # The best is below every epoch's: finetuning may begin with it.
    line = {"kind": "epoch", "epoch": 1, "train_loss": 5.5, "valid_loss": 5.0, "best_valid_loss": 4.5}
    line |= {"decision": "stop", "clock": {"seconds": 60.0}}
    (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    point = sweep_point(run)
    assert (point.regime, point.variant, point.groups) == (regime, variant, 2)
    assert point.levels == (1 if "input_transform" in settings else 2)
    assert point.perplexity == pytest.approx(math.exp(4.5))


def test_a_results_folder_needs_neither_weights_nor_words(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results"
    copy.mkdir()
    for name in ("run.json", "config.toml", "metrics.jsonl"):
        shutil.copy(folder / name, copy)
    assert learning_curve(RunFolder.open(copy)) == learning_curve(RunFolder.open(folder))
    assert sweep_point(RunFolder.open(copy)) == sweep_point(RunFolder.open(folder))


def test_counts_of_the_papers_models() -> None:
    """Section 5 of the paper's tables: 19.87 M for the LSTM, 18.90 M for PRU g=4, with 4.01 M of words."""
    lstm = recurrent_parameters(load_recipe("ptb-lstm-1000").model)
    pru = recurrent_parameters(load_recipe("ptb-pru-g4").model)
    assert (lstm + 4_010_000) / 1e6 == pytest.approx(19.87, abs=0.005)
    assert (pru + 4_010_000) / 1e6 == pytest.approx(18.90, abs=0.005)
