from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from torch_pru.errors import PRUError
from torch_pru.lm.data import corpus as corpus_module
from torch_pru.lm.data import load_corpus, storage

Folder = Callable[..., Path]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The text files that were tokenised, in order."""
    seen = []
    original = corpus_module._words

    def recording(path: Path) -> Iterator[list[str]]:
        seen.append(path)
        return original(path)

    monkeypatch.setattr(corpus_module, "_words", recording)
    return seen


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "tokens").iterdir())


def test_the_second_load_does_not_tokenise(
    corpus_folder: Folder, own_cache: Path, readings: list[Path]
) -> None:
    first = load_corpus(corpus_folder())
    second = load_corpus(corpus_folder())
    assert len(readings) == 3
    assert len(entries(own_cache)) == 1
    assert second.vocabulary == first.vocabulary
    for split in ("train", "valid", "test"):
        assert torch.equal(first.split(split), second.split(split))


def test_changed_text_is_tokenised_again(corpus_folder: Folder, readings: list[Path]) -> None:
    load_corpus(corpus_folder())
    # As long as before: the content is the key, not the size.
    changed = load_corpus(corpus_folder(test=b"z\n"))
    assert len(readings) == 6
    assert "z" in changed.vocabulary


def test_texts_that_change_places_are_another_corpus(corpus_folder: Folder) -> None:
    load_corpus(corpus_folder(train=b"a\n", valid=b"b\n"))
    assert load_corpus(corpus_folder(train=b"b\n", valid=b"a\n")).vocabulary.word(0) == "b"


def test_any_damage_is_noticed_and_repaired(
    corpus_folder: Folder, own_cache: Path, readings: list[Path]
) -> None:
    expected = load_corpus(corpus_folder())
    (entry,) = entries(own_cache)
    whole = entry.read_bytes()
    damaged = [whole[:cut] for cut in (0, 10, 32, 33, len(whole) // 2, len(whole) - 1)]
    damaged += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 37)]
    for content in damaged:
        entry.write_bytes(content)
        readings.clear()
        with pytest.warns(UserWarning, match="is damaged"):
            corpus = load_corpus(corpus_folder())
        assert len(readings) == 3
        assert torch.equal(corpus.train, expected.train)
        assert corpus.vocabulary == expected.vocabulary
        assert entry.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(
    corpus_folder: Folder, own_cache: Path, readings: list[Path]
) -> None:
    own_cache.write_text("a file where the folder should be")
    for _ in range(2):
        with pytest.warns(UserWarning, match=re.escape(str(own_cache))) as caught:
            assert load_corpus(corpus_folder()).train.tolist() == [0, 1, 2, 3, 2]
        assert len(caught) == 1
    assert len(readings) == 6


def test_a_full_disk_leaves_no_entry(
    corpus_folder: Folder, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert len(load_corpus(corpus_folder()).train) == 5
    assert entries(own_cache) == []


def test_an_interrupt_leaves_no_entry(tmp_path: Path) -> None:
    def interrupted() -> None:
        with storage.write_aside(tmp_path / "a" / "b") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((tmp_path / "a").iterdir()) == []


def test_without_a_home_there_is_no_cache_but_a_corpus(
    corpus_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_PRU_CACHE")
    monkeypatch.setattr(Path, "home", nobody)
    with pytest.warns(UserWarning, match="set TORCH_PRU_CACHE"):
        assert len(load_corpus(corpus_folder()).train) == 5
    monkeypatch.delenv("PRU_DATA", raising=False)
    with pytest.raises(PRUError, match="set TORCH_PRU_CACHE"):
        load_corpus("ptb")


def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    assert storage.data_folder() == tmp_path / "data"
    monkeypatch.delenv("PRU_DATA")
    assert storage.data_folder() == storage.cache_folder() / "data"
    monkeypatch.delenv("TORCH_PRU_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert storage.cache_folder() == tmp_path / "xdg" / "torch-pru"
