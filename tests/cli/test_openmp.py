"""The command lets PyTorch's threads sleep while they wait, unless the user has chosen otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torch_pru.openmp import is_command, wait_passively


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/bin/python3", "/home/me/.venv/bin/pru", "train"], True),
        (["C:\\env\\Scripts\\python.exe", "pru.exe", "train"], True),
        (["python", "-u", "-m", "torch_pru", "train"], True),
        (["python", "my_training.py", "pru"], False),
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
    wait_passively(environment)
    assert environment == {name: "0"}


@pytest.mark.skipif(sys.platform != "linux", reason="the loaded OpenMP library prints its settings on Linux")
@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_openmp_has_the_setting_when_it_is_loaded(given: str | None, expected: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_DISPLAY_ENV": "true"}
    environment.pop("OMP_WAIT_POLICY", None)
    if given:
        environment["OMP_WAIT_POLICY"] = given
    done = subprocess.run(
        [sys.executable, "-m", "torch_pru", "--version"], capture_output=True, text=True, env=environment
    )
    policies = [line for line in done.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    assert policies
    assert all(f"'{expected}'" in line for line in policies)
