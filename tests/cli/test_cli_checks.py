"""A mistake in the last of several runs is found before the first one begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command import refusal

from torch_pru.cli.checks import check_writable
from torch_pru.errors import PRUError
from torch_pru.lm.files import Folder, locked
from torch_pru.lm.run import About
from torch_pru.lm.verify import accept


@pytest.fixture
def pair(run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two finished runs, the first without a fault."""
    return shutil.copytree(run, tmp_path / "first"), shutil.copytree(run, tmp_path / "second")


def change(run: Path, old: str, new: str) -> None:
    """Another setting in a run's config.toml."""
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))
    accept(run)


def lose_weights(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def as_interrupted_at_once(run: Path) -> None:
    lose_weights(run)
    (run / "metrics.jsonl").unlink()


def damage_weights(run: Path) -> None:
    for path in run.glob("checkpoints/*/weights.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])


def files_in(folder: Path) -> dict[Path, bytes]:
    """Every file but the locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.read_bytes() for path in files}


def take_finetuned_name(run: Path) -> None:
    run.with_name(f"{run.name}-finetuned").write_text("a file")


def finetuned_already(run: Path) -> None:
    shutil.copytree(run, run.with_name(f"{run.name}-finetuned"))


def lose_text(run: Path) -> None:
    text = (run / "config.toml").read_text()
    lines = ['corpus = "nowhere"' if line.startswith("corpus") else line for line in text.splitlines()]
    (run / "config.toml").write_text("\n".join(lines))
    accept(run)


def move_text(run: Path) -> None:
    text = (run / "config.toml").read_text()
    lines = ['corpus = "/old/text"' if line.startswith("corpus") else line for line in text.splitlines()]
    (run / "config.toml").write_text("\n".join(lines))
    accept(run)


def lose_run(run: Path) -> None:
    shutil.rmtree(run)


def other_text(run: Path) -> None:
    about = About.read(Folder(run))
    About(about.stage, "0" * 64, about.files).write(Folder(run))


def impossible_batch(run: Path) -> None:
    change(run, "batch = 8", "batch = 9000")


FAULTS = [
    (lose_run, "there is no run in"),
    (lose_weights, "has a log but no checkpoints"),
    (damage_weights, "every checkpoint in"),
    (lose_text, "there is no corpus 'nowhere'"),
    (move_text, "is no longer at /old/text; put it back, or change corpus in "),
    (other_text, "has changed since the run"),
    (impossible_batch, "batch=9000"),
]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        *FAULTS,
        (as_interrupted_at_once, "is not finished"),
        (finetuned_already, "there is already a run in"),
        (take_finetuned_name, "is not a folder"),
    ],
)
def test_before_finetuning(fault: Callable[[Path], None], expected: str, pair: tuple[Path, Path]) -> None:
    fault(pair[1])
    before = files_in(pair[0].parent)
    errors = refusal("finetune", *pair)
    assert f"pru: error: {pair[1]}: " in errors
    assert expected in errors
    assert not pair[0].with_name("first-finetuned").exists()
    assert files_in(pair[0].parent) == before


def test_a_setting_that_does_not_fit_the_last_run(pair: tuple[Path, Path]) -> None:
    change(pair[1], 'unit = "pru"', 'unit = "lstm"')
    errors = refusal("finetune", *pair, "--set", "precision=float16")
    assert f"pru: error: {pair[1]}: the checkpoint " in errors
    assert "does not fit the run's config.toml and vocabulary.txt: weights" in errors
    assert not pair[0].with_name("first-finetuned").exists()


@pytest.mark.parametrize(("fault", "expected"), FAULTS)
def test_before_resuming(fault: Callable[[Path], None], expected: str, pair: tuple[Path, Path]) -> None:
    as_interrupted_at_once(pair[0])
    fault(pair[1])
    before = files_in(pair[0].parent)
    errors = refusal("resume", *pair)
    assert f"pru: error: {pair[1]}: " in errors
    assert expected in errors
    assert files_in(pair[0].parent) == before


@pytest.mark.parametrize("command", ["finetune", "evaluate"])
def test_a_text_that_has_moved(command: str, pair: tuple[Path, Path]) -> None:
    move_text(pair[0])
    errors = refusal(command, pair[0])
    assert f"put it back, or change corpus in {pair[0] / 'config.toml'} to where it is" in errors


def test_a_run_that_another_process_is_at_work_on(pair: tuple[Path, Path]) -> None:
    as_interrupted_at_once(pair[0])
    with locked(pair[1]):
        assert "another process is using the run" in refusal("resume", *pair)
    assert not (pair[0] / "checkpoints").exists()


@pytest.mark.parametrize("command", ["resume", "finetune"])
def test_a_run_that_is_given_twice(command: str, pair: tuple[Path, Path]) -> None:
    errors = refusal(command, pair[0], pair[1], pair[0].parent / "second" / ".." / "first")
    assert "given twice" in errors
    assert not pair[0].with_name("first-finetuned").exists()


def test_a_precision_that_the_last_recipe_cannot_have(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text()
    (tmp_path / "good.toml").write_text(text)
    other = text.replace('"pru"', '"lstm"').replace("[training]", '[training]\nprecision = "float16"')
    (tmp_path / "bad.toml").write_text(other)
    errors = refusal("train", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path / "runs")
    assert "pru: error: bad: precision='float16'" in errors
    assert not (tmp_path / "runs").exists()


def test_a_batch_that_processes_cannot_share(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    errors = refusal("train", recipe, "--seeds", 2, "--out", tmp_path / "runs")
    assert "batch=8 cannot be divided among 3 processes" in errors
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "new" / "deep")
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(PRUError, match=r"cannot write .*deep: .* is read-only"):
        check_writable(tmp_path / "new" / "deep")


def test_before_analyses(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr("torch_pru.analysis.analyze", lambda *_, **__: pytest.fail("hours of work"))
    assert "taken is not a folder" in refusal("analyze", run, "--out", tmp_path / "taken" / "figures")
