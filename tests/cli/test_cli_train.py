"""Several runs from one command: seeds, folders, who trains when, and what becomes of failures."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command import invoke as pru
from command import write_recipe

from torch_pru.cli import running as commands
from torch_pru.cli import training_view
from torch_pru.lm.config import Config, build_config
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training import Interrupted, driver, train


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread is enough for small models, and asking git takes longer than training them."""
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path, epochs=2, log_steps=5)


@pytest.fixture
def diverging(recipe: Path) -> Path:
    path = recipe.with_name("lost.toml")
    path.write_text(recipe.read_text().replace("learning_rate = 5.0", "learning_rate = 1e6\nclip = 1e6"))
    return path


@pytest.fixture(params=["at once", "in sequence"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of training several, here on a CPU."""
    monkeypatch.setattr(commands, "share_a_gpu", lambda configs: request.param == "at once")
    return str(request.param)


def seeds_in(out: Path) -> dict[str, int]:
    return {path.name: load_recipe(path / "config.toml").training.seed for path in sorted(out.iterdir())}


def test_seeds_and_recipes(recipe: Path, way: str, tmp_path: Path) -> None:
    other = recipe.with_name("other.toml")
    other.write_text(recipe.read_text())
    out = tmp_path / "runs"
    (out / "tiny-2").mkdir(parents=True)
    (out / "tiny-2" / "config.toml").write_text("[training]\nseed = 99\n")
    status, shown, _ = pru("train", recipe, other, "--seeds", 2, "--seed", 7, "--out", out)
    assert status == 0
    assert seeds_in(out) == {"other-1": 7, "other-2": 8, "tiny-1": 7, "tiny-2": 99, "tiny-3": 8}
    ends = [line.split(":")[0] for line in shown.splitlines() if "best validation" in line]
    assert ends == [str(out / name) for name in ("tiny-1", "tiny-3", "other-1", "other-2")]


def test_one_that_fails_does_not_stop_the_others(
    recipe: Path, diverging: Path, way: str, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    status, shown, errors = pru("train", diverging, recipe, "--out", out)
    assert status == 2
    assert f"next: pru evaluate {out / 'tiny-1'}" in shown
    assert "lost-1" not in shown
    *before, line = errors.splitlines()
    assert any(f"failed: {out / 'lost-1'}: the loss " in told for told in before)  # not only at the end
    assert line.startswith(f"pru: error: 1 of 2 runs failed: {out / 'lost-1'}: the loss ")
    assert "Traceback" not in errors


def test_a_single_run_fails_in_its_own_words(diverging: Path, way: str, tmp_path: Path) -> None:
    status, _, errors = pru("train", diverging, "--out", tmp_path / "runs")
    assert status == 2
    assert errors.splitlines()[-1].startswith("pru: error: the loss ")


def test_lines_name_their_run(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "share_a_gpu", lambda configs: True)
    monkeypatch.setattr(training_view, "LINE_SECONDS", 0.0)
    _, _, errors = pru("train", recipe, "--seeds", 2, "--out", tmp_path / "runs")
    first, *lines = errors.splitlines()
    assert first == f"training 2 runs in {tmp_path / 'runs'}: tiny-1 (seed 1), tiny-2 (seed 2)"
    for name in ("tiny-1", "tiny-2"):
        own = [line for line in lines if line.startswith(f"{name}: epoch ")]
        assert sum("in validation" in line for line in own) == 2
        assert sum("tokens/s" in line for line in own) > 2
    assert all(line.startswith(("tiny-1: ", "tiny-2: ")) for line in lines)


@pytest.mark.parametrize(("runs", "sizes"), [(2, [2]), (16, [16]), (17, [8, 9]), (36, [12, 12, 12])])
def test_as_many_groups_as_a_gpu_needs(runs: int, sizes: list[int]) -> None:
    config = build_config("a", {})
    tasks = [commands.Task(Path(f"run-{number}"), config, train, []) for number in range(runs)]
    groups = commands.groups_of(tasks)
    assert [len(group) for group in groups] == sizes
    assert [task for group in groups for task in group] == tasks


def test_more_runs_than_fit_on_a_gpu(
    recipe: Path, diverging: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "share_a_gpu", lambda configs: True)
    monkeypatch.setattr(driver, "MAX_RUNS", 2)
    out = tmp_path / "runs"
    status, shown, errors = pru("train", diverging, recipe, "--seeds", 2, "--out", out)
    assert status == 2
    titles = [line for line in errors.splitlines() if line.startswith("training 2 runs in")]
    assert titles == [
        f"training 2 runs in {out}: lost-1 (seed 1), lost-2 (seed 2)",
        f"training 2 runs in {out}: tiny-1 (seed 1), tiny-2 (seed 2)",
    ]
    ends = [line.split(":")[0] for line in shown.splitlines() if "best validation" in line]
    assert ends == [str(out / "tiny-1"), str(out / "tiny-2")]
    assert errors.splitlines()[-1].startswith(f"pru: error: 2 of 4 runs failed: {out / 'lost-1'}: the loss ")


def test_runs_named_by_a_dot_are_resumed(
    recipe: Path, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"
    assert pru("train", recipe, "--seeds", 2, "--set", "epochs=1", "--out", out)[0] == 0
    for name in ("tiny-1", "tiny-2"):
        shutil.rmtree(out / name / "checkpoints")  # as one that was interrupted at once
        (out / name / "metrics.jsonl").unlink()
    monkeypatch.chdir(out / "tiny-1")
    status, shown, errors = pru("resume", ".", "../tiny-2")
    assert status == 0, errors
    assert f"next: pru evaluate {out / 'tiny-1'}\n" in shown
    assert "next: pru evaluate ../tiny-2\n" in shown


def test_a_name_that_is_taken(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    command = ("train", recipe, "--name", "a", "--out", out)
    assert pru(*command)[0] == 0
    run = out / "a"
    assert pru(*command)[2] == f"pru: error: {run} exists already; choose another --name\n"
    (run / "metrics.jsonl").write_text("")  # as one that was interrupted at once
    assert pru(*command)[2].endswith(f"another --name, or continue the run with: pru resume {run}\n")
    said = pru("train", run)[2]
    assert f"{run} is a run: pru resume {run} continues it, and pru train {run}/config.toml starts" in said


def test_an_unfinished_run_is_not_finetuned(recipe: Path, tmp_path: Path) -> None:
    assert pru("train", recipe, "--name", "a", "--out", tmp_path)[0] == 0
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    status, _, errors = pru("finetune", tmp_path / "a")
    assert status == 2
    assert errors.startswith("pru: error: ")
    assert errors.count("\n") == 1


def test_a_stop_says_what_was_not_begun(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(config: Config, folder: Path, **_: object) -> None:
        raise Interrupted(signal.SIGINT, str(folder))

    monkeypatch.setattr("torch_pru.lm.training.train", stopped)
    out = tmp_path / "runs"
    status, _, errors = pru("train", recipe, "--seeds", 3, "--out", out)
    assert status == 130
    *_, saved, left = errors.splitlines()
    assert saved.endswith(f"continue with: pru resume {out / 'tiny-1'}")
    assert left == f"not started: {out / 'tiny-2'} (seed 2), {out / 'tiny-3'} (seed 3)"


@pytest.mark.parametrize(
    ("devices", "processes", "expected"),
    [
        (["cuda:0", "cuda:0"], "1", True),
        (["cuda:0"], "1", False),  # nothing to share
        (["cuda:0", "cuda:1"], "1", False),
        (["cuda:0", "cpu"], "1", False),
        (["cpu", "cpu"], "1", False),
        (["cuda:0", "cuda:0"], "2", False),
    ],
)
def test_who_trains_at_once(
    devices: list[str], processes: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_pru.lm.device.choose_device", torch.device)
    monkeypatch.setenv("WORLD_SIZE", processes)
    configs = [build_config("a", {"device": device}) for device in devices]
    assert commands.share_a_gpu(configs) is expected


AT_ONCE = """
from torch_pru.cli import running
from torch_pru.cli.app import main
running.share_a_gpu = lambda configs: True
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_runs_say_how_each_goes_on(tmp_path: Path, number: int, status: int) -> None:
    recipe, out = write_recipe(tmp_path, epochs=100_000, log_steps=1), tmp_path / "runs"
    process = subprocess.Popen(
        [sys.executable, "-c", AT_ONCE, "train", str(recipe), "--seeds", "2", "--out", str(out)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    metrics = out / "tiny-2" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not metrics.exists() or not metrics.stat().st_size:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    ends = sorted(line.split("continue with: ")[1] for line in errors.splitlines()[-2:])
    assert ends == [f"pru resume {out / name}" for name in ("tiny-1", "tiny-2")]
    assert "Traceback" not in errors
