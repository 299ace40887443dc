"""What ``pru evaluate`` leaves in a run folder, whoever else is at work there."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command import invoke, pru

from torch_pru import PRUError
from torch_pru.cli.evaluate import show
from torch_pru.lm.checkpoint import save_checkpoint
from torch_pru.lm.evaluation import Evaluation, evaluation
from torch_pru.lm.evaluation.static import Score
from torch_pru.lm.files import locked
from torch_pru.lm.run import RunFolder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run without scores."""
    path = shutil.copytree(run, tmp_path / "copy")
    (path / "scores.json").unlink(missing_ok=True)
    return path


def kept(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "scores.json").read_text()))


def test_two_evaluations_at_once_keep_both_scores(copy: Path) -> None:
    first = Evaluation(RunFolder.open(copy), "cpu")
    found = {"static": first.score("static", first.corpus.valid)}
    pru("evaluate", copy, "--split", "test")
    assert first.record("valid", found) == []
    assert sorted(kept(copy)["results"]["static"]) == ["test", "valid"]


def test_tuning_keeps_what_came_meanwhile(copy: Path) -> None:
    first, second = (Evaluation(RunFolder.open(copy), "cpu") for _ in range(2))
    first.tune("cache", 30)
    pru("evaluate", copy)
    first.record()
    second.record("test", {"static": second.score("static", second.corpus.test)})
    assert sorted(kept(copy)["results"]["static"]) == ["test", "valid"]
    assert kept(copy)["tuning"]["cache"]["tokens"] == 30


def test_one_that_writes_is_waited_for(copy: Path) -> None:
    holds = threading.Event()

    def hold() -> None:
        with locked(copy):
            holds.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    Evaluation(RunFolder.open(copy), "cpu").record()
    thread.join()
    assert kept(copy)["results"] == {}


def test_a_score_in_the_midst_of_training_is_not_kept(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LOCK_TIMEOUT", 0.0)
    with locked(copy):
        status, shown, errors = invoke("evaluate", copy)
    assert (status, shown.splitlines()[1].split()[0]) == (0, "valid")
    assert errors.startswith("not recorded: another process is using the run")
    assert not (copy / "scores.json").exists()


def test_a_score_of_weights_of_before_is_not_kept(copy: Path) -> None:
    run = RunFolder.open(copy)
    before = Evaluation(run, "cpu")
    newest = run.checkpoint()
    assert newest is not None
    save_checkpoint(run.checkpoints, newest)  # as training that has gone on and ended
    with pytest.raises(PRUError, match="has been trained further since it was opened"):
        before.record("valid", {"static": before.score("static", before.corpus.valid)})
    assert not (copy / "scores.json").exists()


def test_a_folder_that_cannot_be_written_to_is_evaluated_all_the_same(copy: Path) -> None:
    (copy / "lock").unlink()
    (copy / "lock").mkdir()  # which nobody can open, root neither
    status, shown, errors = invoke("evaluate", copy, "--cache", "--tune", "--tune-tokens", 30)
    assert status == 0
    assert "tuned on validation" in shown
    assert errors.splitlines() == [f"not recorded: cannot write {copy / 'lock'}: Is a directory"] * 2


def test_scores_of_float64_weights_say_so(recipe: Path, tmp_path: Path) -> None:
    pru("train", recipe, "--set", "precision=float64", "--set", "epochs=1", "--out", tmp_path)
    pru("evaluate", tmp_path / "tiny-1", "--precision", "bfloat16")
    found = kept(tmp_path / "tiny-1")["results"]["static"]["valid"]
    assert found["precision"] == "float64"


def test_float64_counts_as_float32_does(copy: Path) -> None:
    scores = Evaluation(RunFolder.open(copy), "cpu").scores
    wide, narrow = (
        evaluation.entry(Score(4.0, 10, 1.0), "cpu", precision) for precision in ("float64", "float16")
    )
    assert scores.note("static", "valid", narrow)
    assert scores.note("static", "valid", wide)
    assert not scores.note("static", "valid", narrow)
    assert scores.results["static"]["valid"] == wide


def test_what_no_report_would_read_is_not_kept(copy: Path) -> None:
    work = Evaluation(RunFolder.open(copy), "cpu")
    entry = evaluation.entry(Score(4.0, 10, 1.0), "cpu")
    with pytest.raises(PRUError, match=r"split='tset' is not known.*did you mean 'test'"):
        work.record("tset", {"static": entry})
    with pytest.raises(PRUError, match="method='statick' is not known"):
        work.record("test", {"statick": entry})
    with pytest.raises(PRUError, match="tokens=-5"):
        work.tune("dynamic", -5)
    assert "statistics" not in vars(work)  # refused before they are gathered
    assert not (copy / "scores.json").exists()


def test_a_perplexity_beyond_all_bounds_leaves_room(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Score(nll=668.0, tokens=10, seconds=1.0)
    show("valid", {"static": evaluation.entry(lost, "cpu")}, set(), None, as_json=False)
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("valid", "1.284e+290", "668.0000", "10", "1.0")
    ]
