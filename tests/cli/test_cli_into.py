"""``pru train --into RUN`` starts a run, or resumes the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import invoke, pru, refusal, write_recipe

from torch_pru.lm.run import RunFolder


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


def test_the_same_command_starts_and_resumes(tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path, epochs=1, log_steps=5), tmp_path / "there" / "run"
    assert (
        "batch=8 cannot be divided among 3 processes"
        in invoke("train", recipe, "--into", run, WORLD_SIZE="3")[2]
    )
    assert not run.exists()
    status, _, errors = invoke("train", recipe, "--into", run, WORLD_SIZE="3", RANK="1")
    assert (status, errors) == (2, "")  # the first process reports it
    pru("train", recipe, "--into", run)
    before = (run / "metrics.jsonl").read_bytes()
    status, output, _ = invoke("train", recipe, "--into", run)
    assert status == 0
    assert f"{run} is already finished" in output.replace("\n", " ")
    assert (run / "metrics.jsonl").read_bytes() == before
    assert RunFolder.open(run).config.training.epochs == 1
    said = refusal("train", recipe, "--into", run, "--epochs", 2)
    assert f"was trained with epochs=1, not 2; to resume it, use pru resume {run}; for a new run, " in said


def test_what_cannot_be_used_with_into(tmp_path: Path) -> None:
    recipe, into = write_recipe(tmp_path), ("--into", tmp_path / "run")
    for others, named in [
        (("--seeds", 2), "--seeds"),
        (("--name", "a"), "--name"),
        (("--name", "a", "--seeds", 2), "--name and --seeds"),
        (("quickstart",), "2 recipes"),
    ]:
        said = refusal("train", recipe, *into, *others)
        assert said == f"pru: error: --into trains one run of one recipe; it cannot be used with {named}\n"
