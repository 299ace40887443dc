from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Folder = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TORCH_PRU_CACHE", str(cache))
    return cache


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Folder:
    """Writes a small corpus; a split given as None is left out."""

    def write(**splits: bytes | None) -> Path:
        folder = tmp_path / "corpus"
        folder.mkdir(exist_ok=True)
        contents = {"train": b"a b\nc\n", "valid": b"b d\n", "test": b"a\n", **splits}
        for split, content in contents.items():
            if content is not None:
                (folder / f"{split}.txt").write_bytes(content)
        return folder

    return write
