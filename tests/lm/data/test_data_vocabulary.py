from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_pru.errors import PRUError
from torch_pru.lm.data import Vocabulary

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).filter(
    lambda word: word.split() == [word]
)


@given(st.lists(words, min_size=1, max_size=20, unique=True))
def test_saved_and_loaded_is_the_same(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> None:
    path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.txt"
    vocabulary = Vocabulary(words)
    vocabulary.save(path)
    loaded = Vocabulary.load(path)
    assert loaded == vocabulary
    assert loaded.encode(words).tolist() == list(range(len(words)))
    assert [loaded.word(number) for number in range(len(loaded))] == words


def test_unknown_words_become_unk() -> None:
    vocabulary = Vocabulary(["a", "<unk>", "b"])
    ids = vocabulary.encode(["b", "zebra", "a"])
    assert ids.dtype == torch.int64
    assert ids.tolist() == [2, 1, 0]


def test_without_unk_the_first_unknown_word_is_named() -> None:
    with pytest.raises(PRUError, match=r"'zebra' is not in the vocabulary, which has no '<unk>'"):
        Vocabulary(["a"]).encode(["a", "zebra", "yak"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "empty"),
        (["a", "b", "a"], "'a' twice"),
        (["a", ""], "''"),
        (["a b"], "'a b'"),
        (["a\n"], "white space"),
    ],
)
def test_bad_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(PRUError, match=message):
        Vocabulary(words)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_number_outside_is_refused(number: int) -> None:
    with pytest.raises(PRUError, match="use 0 to 1"):
        Vocabulary(["a", "b"]).word(number)


@pytest.mark.parametrize("content", [b"", b"a\n\nb\n", b"a\r\nb\r\n", b"caf\xe9\n", b"a\na\n"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(content)
    with pytest.raises(PRUError, match=r"vocabulary\.txt is not a vocabulary"):
        Vocabulary.load(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match=r"cannot read .*none\.txt"):
        Vocabulary.load(tmp_path / "none.txt")


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vocabulary.txt"
    Vocabulary(["old"]).save(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PRUError, match=r"cannot write .*vocabulary\.txt: No space left on device"):
        Vocabulary(["new"]).save(path)
    assert Vocabulary.load(path).words == ("old",)
    assert os.listdir(tmp_path) == ["vocabulary.txt"]
