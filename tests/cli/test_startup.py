"""Before PyTorch is loaded, the command lets its threads sleep while they wait, and makes Ctrl-C quiet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torch_pru.startup import is_command, set_waiting


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/bin/python3", "/home/me/.venv/bin/pru", "train"], True),
        (["C:\\env\\Scripts\\python.exe", "pru.exe", "train"], True),
        (["python", "-u", "-m", "torch_pru", "train"], True),
        (["python", "my_training.py", "pru"], False),
        (["python", "pru.py"], False),
        (["python", "-c", "import torch_pru"], False),
        (["python", "-m", "pytest"], False),
        ([], False),
    ],
)
def test_who_is_the_command(arguments: list[str], expected: bool) -> None:
    assert is_command(arguments) is expected


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_the_users_choice_stays(name: str) -> None:
    environment = {name: "0"}
    set_waiting(environment)
    assert environment == {name: "0"}


@pytest.mark.skipif(sys.platform != "linux", reason="the loaded OpenMP library prints its settings on Linux")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "30000000000"}),
    ],
)
def test_openmp_has_the_setting_when_it_is_loaded(given: dict[str, str], expected: dict[str, str]) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_DISPLAY_ENV": "verbose"}
    for name in expected:
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "torch_pru", "--version"],
        capture_output=True,
        text=True,
        env=environment | given,
    )
    for name, value in expected.items():
        lines = [line for line in done.stderr.splitlines() if name in line]
        assert lines
        assert all(f"'{value}'" in line for line in lines)


def test_minutes_count_from_before_pytorch_is_loaded() -> None:
    code = """
import time
begun = time.monotonic()
import torch_pru
loaded = time.monotonic()
from torch_pru.cli.train import RESERVE, seconds_to_train
used = 600 - RESERVE - seconds_to_train(10)
assert used > 0.9 * (loaded - begun), (used, loaded - begun)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------ Ctrl-C


HOOK = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            os.write(1, b"loading torch\\n")

sys.meta_path.insert(0, Watch())
"""


def interrupted(arguments: list[str], delay: float, folder: Path) -> tuple[int, str]:
    """Status and messages of the command after Ctrl-C, so many seconds after it began to import PyTorch."""
    (folder / "sitecustomize.py").write_text(HOOK)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_pru", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"loading torch\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=60)
    status = process.returncode
    # While Python shuts down, it has no handler, and the signal ends the process. Shells call this 130, too.
    return 130 if status == -signal.SIGINT else status, messages.decode()


TRAIN = ["train", "--epochs", "1", "--name", "a", "--set", "hidden=[16]", "--set", "embedding=16"]


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches a process in another way on Windows")
@pytest.mark.parametrize(
    ("arguments", "delays"),
    [
        (TRAIN, [0.0, 0.2, 0.6]),
        pytest.param(TRAIN, [0.03 * n for n in range(100)], marks=pytest.mark.slow),
        pytest.param(["recipes"], [0.03 * n for n in range(50)], marks=pytest.mark.slow),
        pytest.param(["train", "nothing"], [0.03 * n for n in range(50)], marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_at_any_moment_shows_no_traceback(
    arguments: list[str], delays: list[float], tmp_path: Path
) -> None:
    statuses = set()
    for number, delay in enumerate(delays):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, said = interrupted(arguments, delay, folder)
        assert "Traceback" not in said, (delay, said)
        assert "KeyboardInterrupt" not in said, (delay, said)
        statuses.add(status)
    assert 130 in statuses
    assert statuses <= ({130} if arguments == TRAIN else {130, 0, 2})  # the others end by themselves
