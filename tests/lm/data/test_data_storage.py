"""Where data sets are kept, and files that are written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from torch_pru.errors import PRUError
from torch_pru.lm.data import load_corpus, storage

Folder = Callable[..., Path]


def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    def interrupted() -> None:
        with storage.write_aside(tmp_path / "a" / "b") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "a").iterdir()) == []


def test_without_a_home_there_are_no_named_corpora(
    corpus_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_PRU_CACHE")
    monkeypatch.delenv("PRU_DATA", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(PRUError, match="set PRU_DATA or TORCH_PRU_CACHE"):
        load_corpus("ptb")


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    assert storage.data_folder() == tmp_path / "data"
    monkeypatch.delenv("PRU_DATA")
    assert storage.data_folder() == Path(os.environ["TORCH_PRU_CACHE"]) / "data"
    monkeypatch.delenv("TORCH_PRU_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert storage.data_folder() == user_cache_path("torch-pru", appauthor=False) / "data"
    if sys.platform == "linux":
        assert storage.data_folder() == tmp_path / "xdg" / "torch-pru" / "data"
