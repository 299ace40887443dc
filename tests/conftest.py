"""Folders that some tests read, the reason where such a test is skipped, and what all of them share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torch_pru.ops import backends, native


def _folder(variable: str, holds: str) -> Path:
    value = os.environ.get(variable)
    if not value or not Path(value).is_dir():
        pytest.skip(f"{variable} names no folder with {holds}")
    return Path(value)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The data sets: ``penn`` and ``wikitext-2``."""
    return _folder("PRU_DATA", "the data sets")


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Arrays that the authors' implementation computed."""
    return _folder("PRU_GOLDEN", "the golden arrays")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Quicker for the small tensors of tests, and kind to whatever else runs."""
    torch.set_num_threads(1)


@pytest.fixture
def without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend ``native`` is missing, as without a compiler."""
    monkeypatch.setattr(native, "missing_reason", lambda: "turned off")
    backends.forget()
    yield
    backends.forget()


@pytest.fixture
def poisoned():
    """Every fresh buffer starts as NaN, so that an element nobody writes is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # for the filling alone, not to forbid anything
    yield
    torch.use_deterministic_algorithms(False)


def pytest_configure() -> None:
    """Under nohup and in background jobs, these signals are ignored, also by the processes of tests."""
    for number, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        if hasattr(signal, number) and signal.getsignal(getattr(signal, number)) == signal.SIG_IGN:
            signal.signal(getattr(signal, number), handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU, and there is none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
