"""A user's text as a corpus: its parts, its vocabulary, and texts that cannot be used."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from torch_pru.errors import PRUError
from torch_pru.lm.config import DataConfig
from torch_pru.lm.data import Vocabulary, encode_text, load_corpus, located, prepare_text, tokenizer_of
from torch_pru.lm.data import prepare as prepare_module

SPLITS = ("train", "valid", "test")


@pytest.fixture(autouse=True)
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def english(lines: int, seed: int = 1) -> str:
    numbers = random.Random(seed)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dogs"]
    return "".join(
        " ".join(numbers.choices(words, k=8)).capitalize() + f" rare{line if line % 7 == 0 else ''}.\n"
        for line in range(lines)
    )


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def decoded(corpus: object, split: str) -> list[str]:
    return [corpus.vocabulary.word(number) for number in corpus.split(split).tolist()]


def test_all_tokens_go_to_one_part_each_and_in_order(tmp_path: Path) -> None:
    text = "".join(f"line number {'x' * (n % 50 + 1)} {n}\n" for n in range(4000))
    prepared = prepare_text([written(tmp_path / "a.txt", text)], vocabulary=10**6)
    corpus = load_corpus(prepared.name)
    ends = {split: decoded(corpus, split).count("<eos>") for split in SPLITS}
    assert sum(ends.values()) == 4000
    assert sum(prepared.tokens.values()) == 5 * 4000
    for split in ("valid", "test"):
        assert 0.03 * 20_000 < prepared.tokens[split] < 0.08 * 20_000
        assert decoded(corpus, split)[-1] == "<eos>"  # stretches end with a line


def test_the_vocabulary_is_that_of_the_training_part(tmp_path: Path) -> None:
    prepared = prepare_text([written(tmp_path / "a.txt", english(3000))])
    corpus = load_corpus(prepared.name)
    assert corpus.vocabulary.words[:2] == ("<eos>", "<unk>")
    counts = Counter(corpus.train.tolist())
    for number, word in enumerate(corpus.vocabulary.words[2:], start=2):
        assert counts[number] >= 2, word
    assert "rare7" not in corpus.vocabulary  # once in the whole text
    for split in SPLITS:
        assert prepared.unknown[split] == corpus.split(split).tolist().count(1) > 0
    assert prepared.types == len(corpus.vocabulary)


def test_frequent_words_stay_where_the_vocabulary_is_limited(tmp_path: Path) -> None:
    prepared = prepare_text([written(tmp_path / "a.txt", english(3000))], vocabulary=5)
    words = load_corpus(prepared.name).vocabulary.words
    assert len(words) == 5
    assert {"."} <= set(words[2:])


def test_a_text_is_prepared_once_and_always_the_same(tmp_path: Path, data_root: Path) -> None:
    path = written(tmp_path / "My book.txt", english(500))
    first = prepare_text([path])
    assert first.name.startswith("My-book-")
    stamp = (first.folder / "corpus.json").stat().st_mtime_ns
    digest = load_corpus(first.name).digest()
    assert prepare_text([path]) == first
    assert (first.folder / "corpus.json").stat().st_mtime_ns == stamp
    again = prepare_text([path], "another", data_root=tmp_path / "elsewhere")
    assert load_corpus("another", data_root=tmp_path / "elsewhere").digest() == digest
    assert again.tokens == first.tokens
    changed = prepare_text([written(path, english(500, seed=2))])
    assert changed.name != first.name
    assert prepare_text([path], tokenizer="characters").name != changed.name
    assert [entry.name for entry in data_root.iterdir() if entry.name.startswith(".")] == []


def test_a_name_keeps_its_text_and_options(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", english(500))
    first = prepare_text([path], "mine")
    assert prepare_text([written(tmp_path / "copy.txt", english(500))], "mine") == first
    for source, options in [
        (written(tmp_path / "b.txt", english(500, seed=2)), {}),
        (path, {"tokenizer": "characters"}),
        (path, {"vocabulary": 100}),
    ]:
        with pytest.raises(PRUError, match=rf"'mine' exists with other text or options; .* {first.folder}$"):
            prepare_text([source], "mine", **options)
    assert prepare_text([path], "mine") == first


def test_a_folder_is_read_as_one_text(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    written(folder / "a.txt", english(200))
    written(folder / "sub" / "b.md", english(200, seed=2).rstrip("\n"))  # the last line has no end
    written(folder / "image.png", b"\x89PNG\0\0")
    written(folder / ".git" / "config", "hidden")
    prepared = prepare_text([folder])
    assert prepared.sources == ["a.txt", "b.md"]
    corpus = load_corpus(prepared.name)
    assert sum(decoded(corpus, split).count("<eos>") for split in SPLITS) == 400


def test_a_folder_with_three_parts_keeps_them(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    written(folder / "train.txt", english(200))
    written(folder / "valid.txt", "The zebra sat.\n")
    written(folder / "test.txt", "A dogs saw\n")
    corpus = load_corpus(prepare_text([folder], "mine").name)
    assert decoded(corpus, "valid") == ["the", "<unk>", "sat", ".", "<eos>"]
    assert decoded(corpus, "test") == ["a", "dogs", "saw", "<eos>"]


def test_small_ids_take_little_room(tmp_path: Path) -> None:
    prepared = prepare_text([written(tmp_path / "a.txt", english(300))])
    ids = prepare_module.prepared_ids(prepared.folder, "train", prepared.types)
    assert isinstance(ids, np.memmap)
    assert ids.dtype == np.uint8
    assert load_corpus(prepared.name).train.tolist() == ids.tolist()


def test_lines_end_in_any_way_and_a_mark_is_skipped(tmp_path: Path) -> None:
    text = english(300)
    plain = load_corpus(prepare_text([written(tmp_path / "a.txt", text)]).name)
    windows = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
    other = load_corpus(prepare_text([written(tmp_path / "b.txt", windows)]).name)
    assert other.vocabulary.words[:12] == plain.vocabulary.words[:12]
    assert "\ufeff" not in "".join(other.vocabulary.words)


def test_a_long_text_without_a_space_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_pru.lm.data.text.CHUNK", 1000)
    text = "道可道非常道名可名非常名" * 1000
    prepared = prepare_text([written(tmp_path / "dao.txt", text)])
    assert prepared.tokenizer == "characters"
    assert "without spaces" in prepared.reason
    corpus = load_corpus(prepared.name)
    assert sum(prepared.tokens.values()) == len(text) + 1  # one line end
    assert set("".join(decoded(corpus, "train"))) <= set("道可非常名<eos>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.txt is empty; it needs at least 500 words"),
        (b"\n \n", "a.txt has only white space; give at least 500 words of text"),
        (b"too short\n", "the text has only 3 tokens to train on; give at least 500 words"),
        (
            "caf\xe9 ".encode("latin-1") * 300,
            r"is not UTF-8: byte 0xe9 at offset 3; .*iconv -f LATIN1 -t UTF-8",
        ),
        ("hello ".encode("utf-16") * 300, r"is not UTF-8: .*iconv -f UTF-16 -t UTF-8"),
        (b"word " * 600 + b"\0 word", "is not a text file: it has a NUL byte at offset 3000"),
    ],
)
def test_text_that_cannot_be_used_gets_one_clear_line(
    tmp_path: Path, data_root: Path, content: bytes, message: str
) -> None:
    with pytest.raises(PRUError, match=message) as caught:
        prepare_text([written(tmp_path / "a.txt", content)])
    assert "\n" not in str(caught.value)
    assert not data_root.exists() or list(data_root.iterdir()) == []


def test_names_that_cannot_be_used(tmp_path: Path, data_root: Path) -> None:
    path = written(tmp_path / "a.txt", english(300))
    for name, message in (
        ("ptb", "is the name of a published corpus"),
        ("../x", "cannot name a corpus"),
        ("", "cannot name a corpus"),
    ):
        with pytest.raises(PRUError, match=message):
            prepare_text([path], name)
    (data_root / "taken").mkdir(parents=True)
    with pytest.raises(PRUError, match="is not a prepared corpus; choose another name"):
        prepare_text([path], "taken")
    with pytest.raises(PRUError, match="there is no file or folder"):
        prepare_text([tmp_path / "none.txt"])


def test_a_damaged_corpus_says_so(tmp_path: Path) -> None:
    prepared = prepare_text([written(tmp_path / "a.txt", english(300))], "mine")
    written(prepared.folder / "train.npy", b"not numpy")
    with pytest.raises(PRUError, match=r"train\.npy is damaged; remove .* and prepare the text again"):
        load_corpus("mine")
    written(prepared.folder / "corpus.json", "{")
    with pytest.raises(PRUError, match=r"corpus\.json is damaged"):
        prepare_text([tmp_path / "a.txt"], "mine")


def test_a_run_keeps_the_tokenizer(tmp_path: Path) -> None:
    prepared = prepare_text([written(tmp_path / "a.txt", english(300))], "mine", tokenizer="cased-words")
    data = located(DataConfig(corpus="mine"))
    assert data == DataConfig("mine", "cased-words")
    assert tokenizer_of(data)("The Cat.") == ["The", "Cat", "."]
    assert located(DataConfig(corpus=str(prepared.folder))).corpus == str(prepared.folder)
    assert located(DataConfig(corpus="ptb")) == DataConfig("ptb", "spaces")


def test_memory_does_not_grow_with_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.data.text.CHUNK", 1 << 16)
    monkeypatch.setattr(prepare_module, "CHUNK", 1 << 16)
    monkeypatch.setattr(prepare_module, "MOST_TYPES", 2000)
    numbers = np.random.default_rng(1).integers(0, 10**6, 300_000)
    path = written(tmp_path / "a.txt", "\n".join(f"word w{number}" for number in numbers))
    tracemalloc.start()
    try:
        prepared = prepare_text([path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 3e6
    assert peak < 5e6
    assert prepared.types <= 2000


def test_encoded_text_counts_its_unknown_words(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "the Cat\nzebra <unk>\n")
    ids, unknown = encode_text(path, Vocabulary(["<eos>", "<unk>", "the"]))
    assert ids.tolist() == [2, 1, 0, 1, 1, 0]
    assert unknown == 3
