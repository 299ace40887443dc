from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_pru import errors
from torch_pru.lm.data import Tokenizer, text


def plain_words(content: str) -> list[str]:
    """The definition, a line at a time."""
    lines = content.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [word for line in lines for word in [*line.split(), "<eos>"]]


def read_words(path: Path) -> Iterator[list[str]]:
    return map(Tokenizer("spaces"), text.read_blocks(path))


def words_of(path: Path) -> list[str]:
    return [word for block in read_words(path) for word in block]


@given(content=st.text(alphabet="aéあ \n\t\r\u3000\x85", max_size=60), chunk=st.integers(1, 9))
def test_blocks_of_any_size_give_the_words_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory, content: str, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(content.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "CHUNK", chunk)
        assert words_of(path) == plain_words(content)


def test_blank_lines_and_an_unfinished_last_line_count(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b" \n = A = \r\n\nb")
    assert words_of(path) == ["<eos>", "=", "A", "=", "<eos>", "<eos>", "b", "<eos>"]


def test_byte_order_mark_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone two\n")
    assert words_of(path) == ["one", "two", "<eos>"]


@pytest.mark.parametrize("chunk", [4, 7, 1 << 20])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8_are_named_with_file_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, mark: bytes
) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(mark + "é à la ".encode() + b"caf\xe9 noir\n")
    monkeypatch.setattr(text, "CHUNK", chunk)
    offset = len(mark) + 12
    assert path.read_bytes()[offset] == 0xE9
    with pytest.raises(errors.PRUError, match=rf"latin\.txt is not UTF-8: byte 0xe9 at offset {offset};"):
        words_of(path)


def test_a_character_cut_off_at_the_end_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_bytes("noir é".encode()[:-1])
    with pytest.raises(errors.PRUError, match="offset 5;"):
        words_of(path)


def test_a_line_of_10_megabytes_passes_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"word " * 2_000_000)
    tracemalloc.start()
    try:
        lengths = [len(words) for words in read_words(path)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(lengths) == 2_000_001
    assert peak < 50e6  # the words of the whole line would be over 100 MB


def test_a_word_of_10_megabytes_is_one_word(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"x" * 10_000_000 + b"\ny\n")
    words = words_of(path)
    assert [len(word) for word in words] == [10_000_000, 5, 1, 5]


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.PRUError, match="cannot read"):
        words_of(tmp_path)
