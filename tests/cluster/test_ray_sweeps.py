"""Sweeps on Ray: trials that lose their machine, early stopping, and many trials."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'torch-pru[ray]'")

from ray.cluster_utils import Cluster
from sweeping import best_weights, sweep, write_grid, write_text

from torch_pru.lm.run import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SET_CHILD_SUBREAPER = 36  # of prctl(2)
NOTICE_SOON = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 4,
}
"""Ray takes a machine for lost after 2 s, not 15: before its trial ends."""


@contextmanager
def adopting() -> Iterator[None]:
    """In this context, processes that outlive their parents become children of this one, as zombies do."""
    prctl = ctypes.CDLL(None).prctl
    prctl(SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(SET_CHILD_SUBREAPER, 0)


def children() -> set[int]:
    """The processes whose parent is this one, zombies included."""
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {int(child) for line in lists for child in line.split()}


def still_running(numbers: set[int], seconds: float) -> list[str]:
    """Command lines of the children that have not ended after this time; those that have are reaped."""
    deadline = time.monotonic() + seconds
    while numbers and time.monotonic() < deadline:
        numbers = {number for number in numbers if os.waitpid(number, os.WNOHANG) == (0, 0)}
        time.sleep(0.1)
    return [Path(f"/proc/{number}/cmdline").read_text() for number in numbers]


@pytest.mark.parametrize("its_trial", ["ends", "lives on"])
def test_a_machine_is_lost_in_the_middle_of_an_epoch(tmp_path: Path, its_trial: str) -> None:
    grid = write_grid(
        tmp_path, "[grid]\ngroups = [1, 2]\nlevels = [1, 2]", "king-james", epochs=1, hidden=[64],
        embedding=64, checkpoint_steps=20, log_steps=10,
    )  # fmt: skip
    whole = sweep(grid, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    options = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    options["_system_config"] = NOTICE_SOON
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        lost = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        out = tmp_path / "lost" / "grid-sweep"
        job = subprocess.Popen(
            [sys.executable, "-m", "torch_pru", "sweep", grid, "--ray", cluster.address, "--out", out.parent],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while sum(path.stat().st_size > 0 for path in out.glob("*/metrics.jsonl")) < 2:
            assert job.poll() is None, job.communicate()[0]
            time.sleep(0.05)
        time.sleep(2)
        assert not any('"kind": "epoch"' in path.read_text() for path in out.glob("*/metrics.jsonl"))
        raylet = lost.all_processes["raylet"][0].process
        raylet.kill()
        if its_trial == "ends":
            raylet.wait()  # Ray takes a zombie for alive: the trial is cut off and goes on
        said, _ = job.communicate(timeout=1200)
        assert job.returncode == 0, said
        assert "retried" in said
    finally:
        cluster.shutdown()
    assert len(best_weights(out)) == 4
    assert best_weights(out) == best_weights(tmp_path / "whole" / "grid-sweep")


def test_asha_stops_the_worst(tmp_path: Path) -> None:
    # With no learning to speak of, the loss orders the runs by their learning rate.
    text = write_text(tmp_path / "text")
    grid = write_grid(
        tmp_path,
        "[grid]\nlearning_rate = [5.0, 1.0, 1e-3, 1e-4]\n[early_stopping]\ngrace = 1\nfactor = 2\n"
        "[resources]\ncpus = 2",
        text, epochs=4, hidden=[8], embedding=8, batch=4, window=10, log_steps=10,
    )  # fmt: skip
    done = sweep(grid, "--ray", "local", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "grid-sweep"
    epochs = {run.parent.name: len(RunFolder.open(run.parent).epochs()) for run in folder.glob("*/run.json")}
    assert epochs["learning_rate5.0-seed1"] == 4
    assert epochs["learning_rate0.0001-seed1"] == 1
    assert epochs["learning_rate0.001-seed1"] == 1
    stopped = json.loads((folder / "stopped.json").read_text())
    assert "learning_rate0.0001-seed1" in stopped
    again = sweep("--resume", folder, "--ray", "local")
    assert again.returncode == 0, again.stderr
    assert {
        run.parent.name: len(RunFolder.open(run.parent).epochs()) for run in folder.glob("*/run.json")
    } == epochs


def test_ctrl_c_stops_and_resume_continues(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    grid = write_grid(
        tmp_path, "[grid]\ngroups = [1, 2]", text, epochs=30, hidden=[8], embedding=8, batch=4, window=10,
        log_steps=10,
    )  # fmt: skip
    whole = sweep(grid, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "runs" / "grid-sweep"
    command = [sys.executable, "-m", "torch_pru", "sweep", grid, "--ray", "local", "--out", folder.parent]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while sum(path.stat().st_size > 0 for path in folder.glob("*/metrics.jsonl")) < 2:
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)
    job.send_signal(signal.SIGINT)
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 130, said
    assert f"continue with: pru sweep --resume {folder}" in " ".join(said.split())
    done = sweep("--resume", folder, "--ray", "local")
    assert done.returncode == 0, done.stderr
    assert best_weights(folder) == best_weights(tmp_path / "whole" / "grid-sweep")


def test_a_hundred_trials_leave_nothing_behind(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text")
    grid = write_grid(
        tmp_path, "seeds = 50\n[grid]\ngroups = [1, 2]", text, epochs=1, hidden=[8], embedding=8, batch=8,
        window=20,
    )  # fmt: skip
    temporary, before, shared = tmp_path / "temporary", children(), set(os.listdir("/dev/shm"))
    temporary.mkdir()
    command = [sys.executable, "-m", "torch_pru", "sweep", grid, "--ray", "local", "--out", tmp_path / "runs"]
    with TemporaryDirectory(dir="/tmp") as sessions, adopting():
        environment = os.environ | {"TMPDIR": str(temporary), "RAY_TMPDIR": sessions}
        environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}  # made on import
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)
        assert done.returncode == 0, done.stderr
        assert still_running(children() - before, seconds=5) == []
        assert os.listdir(sessions) == []
    assert os.listdir(temporary) == []
    assert [name for name in set(os.listdir("/dev/shm")) - shared if "plasma" in name] == []
    folder = tmp_path / "runs" / "grid-sweep"
    assert len(list(folder.glob("*/run.json"))) == 100
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "grid.toml", "lock", "sweep.md", "sweep.svg", "sweep.png",
    }  # fmt: skip
    allowed = {
        "run.json",
        "config.toml",
        "vocabulary.txt",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
    }
    allowed |= {"scores.json", "lock", "tokens", "logprobs-valid-static.npz", "logprobs-test-static.npz"}
    for run in folder.glob("*-seed*"):
        names = {path.name for path in run.iterdir() if not path.name.startswith("events.")}
        assert names <= allowed, names


def test_optuna_learns_from_earlier_runs(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="needs optuna: pip install 'torch-pru[ray]'")
    text = write_text(tmp_path / "text")
    grid = write_grid(
        tmp_path,
        "samples = 3\nsampler = 'optuna'\n[search]\nlearning_rate = { min = 0.1, max = 10.0, log = true }\n"
        "clip = [1, 0.25]\ngroups = [1, 2]\nlevels = { min = 1, max = 2 }",
        text, epochs=1, hidden=[8], embedding=8, batch=8, window=20,
    )  # fmt: skip
    done = sweep(grid, "--ray", "local", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "grid-sweep"
    assert len(list(folder.glob("*/run.json"))) == 3
    stored = folder / "grid.toml"
    stored.write_text(stored.read_text().replace("samples = 3", "samples = 5"))
    done = sweep("--resume", folder, "--ray", "local")
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob("*/run.json"))) == 5
