"""A stranger's run folder is never a way to write outside of it, whatever in it is a link."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from attack import FILES, items_of, move_out, pru, reseal_state, unchanged

from torch_pru import PRUError
from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.evaluation.scores import Scores, log_probabilities_file, save_log_probabilities, save_scores
from torch_pru.lm.files import locked
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.journal import Journal

CHECKPOINT = ["weights.safetensors", "best.safetensors", "state.json", "state.safetensors", "manifest.json"]
ITEMS = [*FILES, "events", "checkpoints", "newest", *(f"newest/{name}" for name in CHECKPOINT)]
ITEMS += ["scores.json", "checkpoints/.writing"]
MORE_ITEMS = ["older", "older/weights.safetensors", "older/manifest.json", "log_probabilities"]
TARGETS = ["its content, absolute", "its content, relative", "a folder, absolute", "nothing, absolute"]
TARGETS += ["hard link"]
MORE_TARGETS = ["a folder, relative", "nothing, relative", "another file, absolute", "another file, relative"]
EVERY_LINK = [(item, target) for item in [*ITEMS, *MORE_ITEMS] for target in [*TARGETS, *MORE_TARGETS]]


def locate(run: Path, item: str) -> Path:
    older, newest = sorted(name for name in os.listdir(run / "checkpoints") if name.isdigit())[-2:]
    if item == "events":
        return next(run.glob("events.*"))
    if item == "log_probabilities":
        return run / log_probabilities_file("valid", "static")
    return run / item.replace("newest", f"checkpoints/{newest}").replace("older", f"checkpoints/{older}")


def make_link(item: Path, target: str, outside: Path) -> None:
    """Replace an item of a run by a link."""
    kept = move_out(item, outside)
    if target == "hard link" and kept.is_file():
        os.link(kept, item)
        return
    what, _, kind = target.partition(", ")
    goals = {
        "a folder": outside / "documents",
        "another file": outside / "documents" / "thesis.txt",
        "nothing": outside / "not-yet-there",
    }
    goal = goals.get(what, kept)
    item.symlink_to(os.path.relpath(goal, item.parent) if kind == "relative" else goal)


def test_every_item_of_a_run_is_tried(interrupted: Path) -> None:
    assert {locate(interrupted, item) for item in ITEMS} == {
        interrupted / item for item in items_of(interrupted)
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("item", ITEMS)
def test_resuming_writes_nothing_through_a_link(
    item: str, target: str, interrupted: Path, outside: Path
) -> None:
    make_link(locate(interrupted, item), target, outside)
    with unchanged(outside):
        status, shown = pru("resume", interrupted)
    assert status in (0, 2), shown


@pytest.mark.parametrize("command", ["evaluate", "generate", "finetune", "report"])
@pytest.mark.parametrize("item", ITEMS)
def test_no_command_writes_through_a_link(item: str, command: str, finished: Path, outside: Path) -> None:
    make_link(locate(finished, item), "its content, absolute", outside)
    with unchanged(outside):
        status, shown = pru(command, finished)
    assert status in (0, 2), shown


@pytest.mark.slow
@pytest.mark.parametrize("command", ["resume", "evaluate", "generate", "finetune", "report", "verify"])
@pytest.mark.parametrize(("item", "target"), EVERY_LINK)
def test_every_link_and_every_command(
    item: str, target: str, command: str, finished: Path, interrupted: Path, outside: Path
) -> None:
    run = interrupted if command == "resume" else finished
    make_link(locate(run, item), target, outside)
    with unchanged(outside):
        status, shown = pru(command, run)
    assert status in (0, 1, 2), shown


@pytest.mark.parametrize("item", ["", *FILES, "checkpoints", "checkpoints/.writing", "scores.json"])
@pytest.mark.parametrize("target", TARGETS[1:])
def test_a_folder_planted_for_the_second_stage(item: str, target: str, finished: Path, outside: Path) -> None:
    planted = finished.with_name("finished-finetuned") / item
    planted.parent.mkdir(parents=True, exist_ok=True)
    make_link(planted, target, outside)
    with unchanged(outside):
        status, shown = pru("finetune", finished)
    assert status in (0, 2), shown


def test_a_link_to_a_run_that_the_user_names_is_followed(interrupted: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(interrupted)
    assert pru("resume", tmp_path / "latest")[0] == 0
    assert RunFolder.open(tmp_path / "latest").epochs()[-1]["decision"] == "stop"


@pytest.mark.parametrize("text", ["$(touch pwned)", "train\n$(touch pwned)\n", "Train"])
@pytest.mark.parametrize("field", ["stage", "round", "best", "epoch", "averaging"])
def test_what_a_strangers_checkpoint_says_is_not_written_into_lines(
    field: str, text: str, interrupted: Path
) -> None:
    reseal_state(interrupted, lambda state: state["schedule"].update({field: text}))
    before = (interrupted / "metrics.jsonl").read_bytes()
    status, shown = pru("resume", interrupted)
    assert (status, field in shown) == (2, True)
    assert field != "stage" or "expected train or finetune" in shown
    assert (interrupted / "metrics.jsonl").read_bytes() == before


# ------------------------------------------------------------------------- links that appear in the middle


class Swap:
    """Replaces an item of a run by a link to a victim's folder just before a chosen call of the system."""

    CALLS = ("open", "stat", "lstat", "mkdir", "replace", "unlink", "listdir", "fsync")

    def __init__(self, item: Path, target: Path, at: int) -> None:
        self.item, self.target, self.at = item, target, at
        self.calls = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in self.CALLS:
            patch.setattr(os, name, self._swapping(getattr(os, name)))

    def _swapping(self, original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self.swap()
            return original(*arguments, **options)

        return wrapped

    def swap(self) -> None:
        if self.item.exists() or self.item.is_symlink():
            os.rename(self.item, self.item.with_name(f"moved-{self.item.name}"))
        self.item.symlink_to(self.target)


def save_and_log(run: Path) -> None:
    """What training and evaluation write: the lock, the log, a checkpoint, scores."""
    with locked(run):
        journal = Journal(run, offset=0, step=1)
        journal.write({"kind": "steps", "step": 2, "loss": 5.0}, {"seconds": 2.0})
        save_checkpoint(run / "checkpoints", Checkpoint({"w": torch.ones(2)}, {}, {"step": 7}))
        journal.close()
        save_log_probabilities(torch.ones(3), run, "valid", "static")
        save_scores(Scores("digest", {}), run)


@pytest.mark.parametrize(
    "item", ["metrics.jsonl", "lock", "scores.json", "checkpoints", "checkpoints/.writing", ""]
)
def test_a_link_that_appears_between_check_and_use(
    item: str, outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Swap(tmp_path / "nothing", outside, at=0)
    (tmp_path / "counted").mkdir()
    with monkeypatch.context() as patch:
        counting.install(patch)
        save_and_log(tmp_path / "counted")
    assert counting.calls > 30
    with unchanged(outside):
        for number in range(1, counting.calls + 1):
            run = tmp_path / f"run{number}"
            (run / "checkpoints" / ".writing").mkdir(parents=True)
            (run / "metrics.jsonl").write_text("")
            (run / "lock").write_text("")
            is_file = item in ("metrics.jsonl", "lock", "scores.json")
            target = outside / ".bashrc" if is_file else outside / "documents"
            with monkeypatch.context() as patch:
                Swap(run / item, target, number).install(patch)
                with contextlib.suppress(PRUError):
                    save_and_log(run)
            shutil.rmtree(run, ignore_errors=True)


def test_a_hard_link_to_the_log_is_left_alone(interrupted: Path, outside: Path) -> None:
    """A backup made with ``cp -al`` keeps its log while the run goes on."""
    os.link(interrupted / "metrics.jsonl", outside / "backup.jsonl")
    with unchanged(outside):
        assert pru("resume", interrupted)[0] == 0
    assert RunFolder.open(interrupted).epochs()[-1]["decision"] == "stop"
