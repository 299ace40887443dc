"""Two processes that share a batch give the run of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import WORKER, Workshop, free_port, wait_for_metrics

from torch_pru import PRUError
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World

EVERY_DROPOUT = {
    "input_dropout": 0.3,
    "hidden_dropout": 0.25,
    "output_dropout": 0.4,
    "embedding_dropout": 0.1,
    "weight_drop": 0.5,
    "activation": 2.0,
    "temporal": 1.0,
    "weight_decay": 1e-4,
}


def settings_for(text_folder: Path, **more: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"embedding": 8, "hidden": [12, 8], "batch": 4, "window": 10}
    settings |= {"learning_rate": 5.0, "corpus": str(text_folder), "device": "cpu"}
    return settings | EVERY_DROPOUT | more


def start_processes(
    workshop: Workshop, size: int, do: str, store: dist.TCPStore | None = None, **job: Any
) -> list[int]:
    """``store`` is torchrun's, which outlives what the processes do; without it the first of them has one."""
    port = free_port() if store is None else store.port
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {} if store is None else {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    places = [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [workshop.start(do, environment=place, **job) for place in places]


def in_processes(workshop: Workshop, size: int, out: Path, **job: Any) -> dict[str, Any]:
    children = start_processes(workshop, size, "steps", out=str(out), **job)
    assert [workshop.wait(child) for child in children] == [0] * size, workshop.said.read_text()
    return torch.load(out, weights_only=True)


def furthest(one: Any, other: Any) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_processes_join_for_one_run_after_another(workshop: Workshop) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = start_processes(workshop, 2, "worlds", store, times=8)
    assert [workshop.wait(child) for child in children] == [0, 0], workshop.said.read_text()


def test_both_processes_report_different_versions(workshop: Workshop, tmp_path: Path) -> None:
    """The first one serves the store, and must not end before the other one has read it."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    said = [tmp_path / "first", tmp_path / "second"]
    children = [
        workshop.start(
            "worlds", times=1, version=f"{rank}.0", said=str(path), environment=common | {"RANK": str(rank)}
        )
        for rank, path in enumerate(said)
    ]
    assert [workshop.wait(child) for child in children] == [2, 2]
    assert said[0].read_text() == said[1].read_text()
    assert "has torch-pru 1.0" in said[0].read_text()


@pytest.mark.parametrize(("unit", "variational", "averaging"), [("pru", True, True), ("lstm", False, False)])
def test_two_processes_are_one(
    unit: str, variational: bool, averaging: bool, workshop: Workshop, text_folder: Path, tmp_path: Path
) -> None:
    settings = settings_for(text_folder, unit=unit, variational=variational, precision="float64")
    settings["rotate_columns"] = averaging
    job = {"settings": settings, "steps": 50, "averaging": averaging}
    one = in_processes(workshop, 1, tmp_path / "one", **job)
    two = in_processes(workshop, 2, tmp_path / "two", **job)
    assert furthest(one["weights"], two["weights"]) < 1e-7
    assert one["loss"] == pytest.approx(two["loss"], abs=1e-7)
    for (h, c), (h2, c2) in zip(one["state"], two["state"], strict=True):
        assert max((h - h2).abs().max(), (c - c2).abs().max()) < 1e-7

    five = {"settings": settings | {"precision": "float32"}, "steps": 5}
    one = in_processes(workshop, 1, tmp_path / "one", **five)
    two = in_processes(workshop, 2, tmp_path / "two", **five)
    assert furthest(one["weights"], two["weights"]) < 1e-5


def test_torchrun_writes_one_run_folder(workshop: Workshop, text_folder: Path, tmp_path: Path) -> None:
    settings = settings_for(
        text_folder, unit="lstm", precision="float64", epochs=2, valid_batch=2, log_steps=5
    )
    settings |= {"checkpoint_steps": 7}
    said = {"said": str(tmp_path / "said")}
    job = {"do": "train", "run": str(tmp_path / "two"), "settings": settings} | said
    script = (
        f"import json, worker; worker.torch.set_num_threads(1); worker.do(json.loads({json.dumps(job)!r}))"
    )
    (tmp_path / "script.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(WORKER.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launcher, str(tmp_path / "script.py")],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert workshop.run("train", run=str(tmp_path / "one"), settings=settings) == 0
    one, two = RunFolder.open(tmp_path / "one"), RunFolder.open(tmp_path / "two")
    assert len(one.metrics()) == len(two.metrics()) > 0
    for line, other in zip(one.metrics(), two.metrics(), strict=True):
        line.pop("clock"), other.pop("clock")
        assert line == pytest.approx(other, abs=1e-7)
    assert json.loads((two.path / "environment.json").read_text())["processes"] == 2
    weights, others = dict(one.model().named_parameters()), dict(two.model().named_parameters())
    assert furthest(weights, others) < 1e-7


def test_a_signal_to_one_process_stops_all_at_one_step(
    workshop: Workshop, text_folder: Path, tmp_path: Path
) -> None:
    settings = settings_for(text_folder, unit="lstm", epochs=1000, valid_batch=2, log_steps=5)
    path = tmp_path / "run"
    children = start_processes(workshop, 2, "train", run=str(path), settings=settings)
    wait_for_metrics(path)
    os.kill(children[1], signal.SIGTERM)
    assert [workshop.wait(child) for child in children] == [143, 143], workshop.said.read_text()
    checkpoint = RunFolder.open(path).checkpoint()
    assert checkpoint is not None
    assert checkpoint.state["global_step"] % 5 == 0 < checkpoint.state["global_step"]


def test_columns_must_divide() -> None:
    cpu = torch.device("cpu")
    assert [World(cpu, rank, 2).batch_slice(20) for rank in (0, 1)] == [slice(0, 10), slice(10, 20)]
    with pytest.raises(PRUError, match="batch=20 cannot be divided among 3 processes"):
        World(cpu, 0, 3).batch_slice(20)
