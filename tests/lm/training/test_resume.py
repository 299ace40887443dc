"""Nothing lost: killed at any moment and resumed, a run ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import hashlib
import io
import json
import math
import random
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from processes import Workshop, wait_for_metrics
from small import SMALL, small_config, small_corpus

from torch_pru import PRUError
from torch_pru.lm.checkpoint import Checkpoint, load_newest, read_verified, save_checkpoint
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import Interrupted, TrainingProgress, finetune, resume, train, trainer
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.journal import Journal

SETTINGS: dict[str, Any] = SMALL | {"unit": "pru", "groups": 2, "rotate_columns": True, "checkpoint_steps": 9}


@pytest.fixture(scope="module")
def settings(text_folder: Path) -> dict[str, Any]:
    return SETTINGS | {"corpus": str(text_folder)}


@pytest.fixture(scope="module")
def whole(workshop: Workshop, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert workshop.run("train", run=str(path), settings=settings) == 0, workshop.said.read_text()
    epochs = [line for line in RunFolder.open(path).metrics() if line["kind"] == "epoch"]
    assert len(epochs) == 4
    assert [line["averaged"] for line in epochs][-1], "the run must reach its averaged phase"
    return path


def without_clock(path: Path) -> list[dict[str, Any]]:
    lines = RunFolder.open(path).metrics()
    assert all(line.pop("clock") for line in lines)
    return lines


def assert_same(found: Any, expected: Any, where: str = "state") -> None:
    """Equal to the last bit, all the way down."""
    assert type(found) is type(expected), where
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype, where
        assert torch.equal(found, expected), where
    elif isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for key in found:
            assert_same(found[key], expected[key], f"{where}.{key}")
    elif isinstance(found, list | tuple):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    else:
        assert found == expected, where


def assert_same_end(path: Path, whole: Path) -> None:
    found, expected = RunFolder.open(path).checkpoint(), RunFolder.open(whole).checkpoint()
    assert found is not None
    assert expected is not None
    clock = ("seconds", "metrics_bytes")  # the file's length depends on the clock's digits
    for checkpoint in (found, expected):
        assert checkpoint.state["finished"]
        for name in clock:
            checkpoint.state.pop(name)
    assert_same(found.weights, expected.weights, "weights")
    assert_same(found.best, expected.best, "best")
    assert_same(found.state, expected.state)
    assert without_clock(path) == without_clock(whole)


def test_two_runs_are_the_same(
    workshop: Workshop, settings: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    assert workshop.run("train", run=str(tmp_path / "run"), settings=settings) == 0
    assert_same_end(tmp_path / "run", whole)


@pytest.mark.parametrize("trials", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(
    trials: int, workshop: Workshop, settings: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    numbers = random.Random(7)
    start = time.monotonic()
    workshop.run("train", run=str(tmp_path / "timed"), settings=settings)
    duration = time.monotonic() - start
    killed = 0

    def kill_at_random(child: int, latest: float) -> float:
        """When the run was to be killed, or infinity if it was: it may have ended before."""
        nonlocal killed
        moment = numbers.uniform(0, latest)
        status = workshop.kill_after(moment, child)
        assert status in (0, -signal.SIGKILL), workshop.said.read_text()
        killed += status == -signal.SIGKILL
        return moment if status == 0 else math.inf

    trial = 0
    while trial < trials or killed < trials * 4 / 3:
        assert trial < 4 * trials, "the test must kill runs at work"
        path = tmp_path / f"run{trial}"
        trial += 1
        ended = kill_at_random(workshop.start("train", run=str(path), settings=settings), duration)
        duration = min(duration, ended)  # runs may be faster now than when they were timed
        for _ in range(2):
            if not (path / "run.json").exists():
                assert workshop.run("train", run=str(path), settings=settings) == 0
                break
            kill_at_random(workshop.start("resume", run=str(path)), duration / 2)
        assert workshop.run("resume", run=str(path)) == 0, workshop.said.read_text()
        assert_same_end(path, whole)


@pytest.mark.parametrize("call", [2, 10, 13, *range(18, 29, 3), *range(29, 40)])
def test_kill_9_inside_the_calls_that_write(
    call: int, workshop: Workshop, settings: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    status = workshop.run("train", run=str(path), settings=settings, die_at_call=call)
    assert status == -signal.SIGKILL
    again = "resume" if (path / "run.json").exists() else "train"
    assert workshop.run(again, run=str(path), settings=settings) == 0, workshop.said.read_text()
    assert_same_end(path, whole)
    assert len(list((path / "checkpoints").iterdir())) == 2  # nothing half written is left behind


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_save_and_leave_with_their_status(
    number: int, expected: int, workshop: Workshop, settings: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    rare = settings | {"checkpoint_steps": 0}
    child = workshop.start("train", run=str(path), settings=rare)
    wait_for_metrics(path)
    status = workshop.kill_after(0.05, child, number)
    assert status == expected, workshop.said.read_text()
    assert "pru resume" in workshop.said.read_text()
    checkpoint = load_newest(path / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["global_step"] > 0
    assert not checkpoint.state["finished"]
    assert workshop.run("resume", run=str(path)) == 0
    assert_same_end(path, whole)


def test_finetuning_survives_a_kill(
    workshop: Workshop, settings: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        shutil.copytree(whole, tmp_path / name)
    assert workshop.run("finetune", run=str(tmp_path / "a")) == 0, workshop.said.read_text()
    assert workshop.run("finetune", run=str(tmp_path / "b"), die_at_call=30) == -signal.SIGKILL
    assert workshop.run("resume", run=str(tmp_path / "b-finetuned")) == 0, workshop.said.read_text()
    assert_same_end(tmp_path / "b-finetuned", tmp_path / "a-finetuned")


# ------------------------------------------------------------------------------------ what a checkpoint holds


def trainer_in_float16() -> trainer.Trainer:
    return trainer.Trainer(small_config(precision="float16"), small_corpus(), World(torch.device("cpu")))


def test_a_checkpoint_brings_the_loss_scale_back() -> None:
    saved, again = trainer_in_float16(), trainer_in_float16()
    assert saved.training_step.loss_scale is not None
    for norm in (torch.inf, 1.0, 1.0):
        saved.training_step.loss_scale.update(torch.tensor(norm))
    again.load_checkpoint(saved.checkpoint())
    assert again.training_step.loss_scale is not None
    assert (again.training_step.loss_scale.scale, again.training_step.loss_scale.good_steps) == (2048.0, 2.0)


def test_on_another_kind_of_device_the_masks_begin_anew() -> None:
    saved, again = trainer_in_float16(), trainer_in_float16()
    before = again.masks.generator.get_state()
    saved.masks.weights(torch.ones(9), 0.5)
    checkpoint = saved.checkpoint()
    checkpoint.state["masks"]["device"] = "cuda"
    with pytest.warns(
        UserWarning, match="resuming on cpu: the random state of cuda cannot be restored there"
    ):
        again.load_checkpoint(checkpoint)
    assert torch.equal(again.masks.generator.get_state(), before)


def old_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint as it was laid out before 0.1."""
    scale = state["loss_scale"]
    return {
        "schedule": state["schedule"],
        "window": state["step_in_epoch"],
        "steps": state["global_step"],
        "finished": state["finished"],
        "averages": state["optimizer"]["averages"],
        "averaged_steps": state["optimizer"]["averaged_steps"],
        "hidden": state["recurrent_state"],
        "masks": state["masks"]["generator"],
        "device": state["masks"]["device"],
        "interval": state["log_loss"],
        "epoch": state["epoch_loss"],
        "loss_scale": [scale["scale"], scale["good_steps"]] if scale else [],
        "metrics_bytes": state["metrics_bytes"],
        "seconds": state["seconds"],
    }


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_checkpoint_of_an_earlier_version_is_resumed_to_the_same_end(
    precision: str, text_folder: Path, tmp_path: Path
) -> None:
    settings = SETTINGS | {"corpus": str(text_folder), "precision": precision}
    whole = train(small_config(**settings), tmp_path / "whole")

    def stop_while_averaging(progress: TrainingProgress) -> None:
        if progress.averaging and not progress.ended:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(small_config(**settings), tmp_path / "run", progress=stop_while_averaging)
    run = RunFolder.open(tmp_path / "run")
    found = run.checkpoint()
    assert found is not None
    assert found.state["step_in_epoch"] > 0
    assert found.state["optimizer"]["averages"]
    save_checkpoint(run.checkpoints, Checkpoint(found.weights, found.best, old_state(found.state)))
    resume(run.path)
    assert_same_end(run.path, whole.path)


def test_a_checkpoint_is_due_when_its_minutes_are_over(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, saved = 0.0, []
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: now, time=time.time))

    def look(report: TrainingProgress) -> None:
        nonlocal now
        now += 40
        found = load_newest(tmp_path / "checkpoints")
        assert found is not None
        saved.append(found.state["global_step"])

    settings = {"unit": "lstm", "epochs": 1, "log_steps": 2, "checkpoint_minutes": 1.0}
    train(small_config(corpus=str(text_folder), **settings), tmp_path, progress=look)
    # Reports at 0, 40, 80, 120 and 160 seconds, after steps 2, 4, 6, 8 and 10; but every step asks.
    assert saved[:5] == [0, 0, 5, 5, 9]


# ------------------------------------------------------------------------------------ damaged checkpoints


@pytest.fixture(scope="module")
def interrupted(
    workshop: Workshop, settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run that was killed while it wrote its fourth checkpoint."""
    path = tmp_path_factory.mktemp("interrupted") / "run"
    assert workshop.run("train", run=str(path), settings=settings, die_at_checkpoint=4) == -signal.SIGKILL
    assert len(checkpoints(path)) == 2
    return path


def checkpoints(path: Path) -> list[Path]:
    return sorted(item for item in (path / "checkpoints").iterdir() if item.name.isdigit())


@pytest.mark.parametrize("file", ["weights.safetensors", "best.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    file: str, damage: str, interrupted: Path, tmp_path: Path
) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    older, newest = checkpoints(tmp_path / "run")
    target = newest / file
    content = bytearray(target.read_bytes())
    if damage == "truncated":
        target.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[len(content) // 2] ^= 0x10
        target.write_bytes(content)
    else:
        target.unlink()
    steps = json.loads(read_verified(older)["state.json"])["global_step"]
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        checkpoint = load_newest(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["global_step"] == steps


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    workshop: Workshop, interrupted: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    (checkpoints(tmp_path / "run")[-1] / "state.json").write_bytes(b"")
    assert workshop.run("resume", run=str(tmp_path / "run")) == 0, workshop.said.read_text()
    assert_same_end(tmp_path / "run", whole)


def test_the_seconds_at_work_are_counted_on(interrupted: Path, tmp_path: Path) -> None:
    run = RunFolder.open(shutil.copytree(interrupted, tmp_path / "run"))
    found = run.checkpoint()
    assert found is not None
    long_ago = found.state | {"seconds": 1000.0}
    save_checkpoint(run.checkpoints, Checkpoint(found.weights, found.best, long_ago))
    assert 1000 < resume(run.path).metrics()[-1]["clock"]["seconds"] < 1300
    ended = run.checkpoint()
    assert ended is not None
    assert 1000 < ended.state["seconds"] < 1300


def test_scores_of_earlier_weights_are_forgotten(
    workshop: Workshop, interrupted: Path, whole: Path, tmp_path: Path
) -> None:
    for source, name in ((interrupted, "interrupted"), (whole, "whole")):
        shutil.copytree(source, tmp_path / name)
        (tmp_path / name / "scores.json").write_text("{}")
        assert workshop.run("resume", run=str(tmp_path / name)) == 0, workshop.said.read_text()
    assert not (tmp_path / "interrupted" / "scores.json").exists()
    assert (tmp_path / "whole" / "scores.json").exists()  # it was finished: its weights stay


def test_a_run_whose_checkpoints_are_gone_is_left_as_it_is(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    (path / "scores.json").write_text("{}")
    for use in (lambda: resume(path), lambda: finetune(path), RunFolder.open(path).model):
        with pytest.raises(PRUError, match="has a log but no checkpoints; use the folder") as caught:
            use()
        assert "pru resume" not in str(caught.value)
    assert (path / "scores.json").exists()
    assert without_clock(path) == without_clock(whole)


def test_when_all_are_damaged_the_run_is_refused(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    for path in checkpoints(tmp_path / "run"):
        (path / "state.json").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="trying the checkpoint before it") as told,
        pytest.raises(PRUError, match=r"every checkpoint in .* is damaged.* does not match its checksum"),
    ):
        resume(tmp_path / "run")
    assert len(told) == 1  # there is none before the oldest


class Mischief:
    """What a stranger's file could hold."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


def test_a_strangers_checkpoint_runs_no_code(interrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(interrupted, tmp_path / "run")
    older, newest = checkpoints(tmp_path / "run")
    shutil.rmtree(older)
    content = io.BytesIO()
    torch.save({"steps": Mischief(tmp_path / "proof")}, content)
    manifest = json.loads((newest / "manifest.json").read_text())
    for name in ("state.json", "state.safetensors"):
        del manifest[name]
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    manifest["state.pt"] = {"bytes": len(content.getvalue()), "sha256": digest}
    (newest / "state.pt").write_bytes(content.getvalue())
    (newest / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(PRUError, match="cannot be read"):
        resume(tmp_path / "run")
    assert not (tmp_path / "proof").exists()


def test_a_finished_run_is_left_as_it_is(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = checkpoints(tmp_path / "run")
    resume(tmp_path / "run")
    assert checkpoints(tmp_path / "run") == before
    assert_same_end(tmp_path / "run", whole)


def test_a_checkpoint_before_the_first_line_after_a_resume_knows_the_length(tmp_path: Path) -> None:
    journal = Journal(tmp_path, offset=0, step=0)
    journal.write({"kind": "steps", "step": 1, "loss": 6.0}, {"seconds": 1.0})
    saved = journal.offset()
    journal.write({"kind": "steps", "step": 2, "loss": 5.0}, {"seconds": 2.0})
    journal.close()
    again = Journal(tmp_path, offset=saved, step=1)  # the second line came after the checkpoint
    assert again.offset() == saved == (tmp_path / "metrics.jsonl").stat().st_size
    again.write({"kind": "steps", "step": 2, "loss": 5.0}, {"seconds": 2.0})
    assert again.offset() == (tmp_path / "metrics.jsonl").stat().st_size
    again.close()
