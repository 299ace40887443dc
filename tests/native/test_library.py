"""Where the library comes from: a wheel, the cache, a compiler; and that a layer works without it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_pru import PRU, PRUError
from torch_pru.ops import backends
from torch_pru.ops.native import build, library

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process."""
    monkeypatch.setattr(library, "_load", library._load.__wrapped__)
    backends.forget()
    yield
    backends.forget()


@pytest.mark.usefixtures("_nothing_loaded")
def test_without_a_compiler_it_is_missing_and_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(library, "_packaged", lambda: None)
    with caplog.at_level(logging.INFO):
        assert library.missing_reason() == "there is no C++ compiler for the CPU kernels"
    [record] = caplog.records
    assert "no C++ compiler" in record.message
    assert torch.isfinite(PRU(8, 8)(torch.randn(9, 2, 8))[0]).all()
    with pytest.raises(PRUError, match="backend='native' cannot run this call: there is no C\\+\\+ compiler"):
        PRU(8, 8, backend="native")(torch.randn(9, 2, 8))


@pytest.mark.usefixtures("_nothing_loaded")
def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_PRU_NATIVE", "0")
    assert library.missing_reason() == "TORCH_PRU_NATIVE=0 turns the CPU kernels off"


@pytest.mark.usefixtures("_nothing_loaded")
def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho sorry\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    monkeypatch.setenv("TORCH_PRU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_packaged", lambda: None)
    reason = library.missing_reason()
    assert reason is not None
    assert "could not be compiled" in reason
    assert "sorry" in reason
    assert list((tmp_path / "cache").rglob("*")) == [tmp_path / "cache" / "kernels"]  # nothing is left in it


@pytest.mark.usefixtures("_nothing_loaded")
def test_a_damaged_library_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    damaged = tmp_path / "kernels.so"
    damaged.write_bytes(b"\0" * 100)
    monkeypatch.setattr(library, "_packaged", lambda: damaged)
    reason = library.missing_reason()
    assert reason is not None
    assert "cannot be loaded" in reason


def test_a_changed_source_has_another_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    before = build.source_digest()
    for path in build.SOURCE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    assert build.source_digest() == before
    (tmp_path / "vector.h").write_text("// another\n")
    assert build.source_digest() != before


CORE = ("test_contract.py", "test_equations.py", "test_golden.py", "test_module.py")


def test_the_layer_passes_its_tests_without_the_library():
    """The other half of what users run: PyTorch operations alone."""
    tests = [str(ROOT / "tests" / "layer" / name) for name in CORE]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"TORCH_PRU_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout
