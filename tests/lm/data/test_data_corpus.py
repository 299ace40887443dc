from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torch_pru.errors import PRUError
from torch_pru.lm.data import Corpus, Tokenizer, Vocabulary, encode_text, load_corpus, text
from torch_pru.lm.data import corpus as corpus_module

SPLITS = ("train", "valid", "test")


def test_words_are_numbered_in_order_of_appearance(corpus_folder: Callable[..., Path]) -> None:
    corpus = load_corpus(corpus_folder(train=b"the cat\n\nthe", valid=b"a cat\n", test=b"dog\n"))
    assert corpus.vocabulary.words == ("the", "cat", "<eos>", "a", "dog")
    assert corpus.train.tolist() == [0, 1, 2, 2, 0, 2]
    assert corpus.valid.tolist() == [3, 1, 2]
    assert corpus.test.tolist() == [4, 2]
    assert {corpus.split(split).dtype for split in SPLITS} == {torch.int32}


def test_the_digest_tells_words_and_splits_apart() -> None:
    words = Vocabulary(["<eos>", "a", "b"])

    def digest(*texts: list[int]) -> str:
        return Corpus(*map(torch.tensor, texts), words).digest()

    found = {digest([1, 0], [2, 0], [0]), digest([2, 0], [1, 0], [0]), digest([1, 0, 2], [0], [0])}
    assert len(found) == 3
    assert digest([1, 0], [2, 0], [0]) in found


def test_an_unknown_split_is_refused(corpus_folder: Callable[..., Path]) -> None:
    with pytest.raises(PRUError, match=r"split='tset' is not known; .*did you mean 'test'"):
        load_corpus(corpus_folder()).split("tset")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "missing"), (b"", "empty"), (b" \n\n", "empty"), (b"\xff", "not UTF-8: byte 0xff at offset 0")],
)
def test_a_bad_split_is_named(
    corpus_folder: Callable[..., Path], split: str, content: bytes | None, message: str
) -> None:
    with pytest.raises(PRUError, match=rf"{split}\.txt is {message}"):
        load_corpus(corpus_folder(**{split: content}))


def test_an_unknown_name_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match=r"no corpus 'wikitext2' in .*; use .* did you mean 'wikitext-2'"):
        load_corpus("wikitext2", data_root=tmp_path)


def test_a_folder_may_bear_the_name_of_a_corpus(
    corpus_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus_folder().rename(tmp_path / "ptb").parent)
    for folder in ("./ptb", Path("ptb")):
        assert load_corpus(folder, data_root=tmp_path).vocabulary.words[0] == "a"
    with pytest.raises(PRUError, match="corpus 'ptb' is not at"):
        load_corpus("ptb", data_root=tmp_path)


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/text", Path("none")])
def test_a_folder_that_is_not_there_is_refused(folder: str | Path) -> None:
    with pytest.raises(PRUError, match=f"there is no corpus '{folder}'"):
        load_corpus(folder)


def test_a_named_corpus_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    for _ in range(2):  # without a folder, and with one that has nothing
        with pytest.raises(PRUError, match=r"get it with `pru data ptb`, .* `pru data ptb --from DIR`"):
            load_corpus("ptb", data_root=tmp_path)
        (tmp_path / "penn").mkdir(exist_ok=True)


def test_a_name_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(PRUError, match=f"no corpus 'mine' in {tmp_path}, and no folder of that name"):
        load_corpus("mine", data_root=tmp_path)


def test_other_text_under_a_published_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "penn"
    folder.mkdir()
    for split in SPLITS:
        (folder / f"{split}.txt").write_text("not the Penn Treebank\n")
    with pytest.raises(PRUError, match=r"train\.txt is not the published train text of 'ptb'"):
        load_corpus("ptb", data_root=tmp_path)
    assert load_corpus(folder).vocabulary.words[0] == "not"


def test_text_is_encoded_with_a_given_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("b zebra\n\na")
    assert encode_text(path, Vocabulary(["<eos>", "a", "b", "<unk>"])).ids.tolist() == [2, 3, 0, 0, 1, 0]


@pytest.mark.parametrize("chunk", [3, 5, 1 << 20])
def test_without_unk_the_first_unknown_word_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(text, "CHUNK", chunk)
    path = tmp_path / "new.txt"
    path.write_text("a a a\n\na <eos> a\na a zebra yak\nyak\n")
    with pytest.raises(PRUError, match=r"new\.txt, line 4: 'zebra' is not in the vocabulary"):
        encode_text(path, Vocabulary(["<eos>", "a"]))


def test_text_is_cut_into_words_as_the_corpus_is(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("My brother's\n<unk>, said\n")
    words = ["<eos>", "<unk>", "my", "brother", "'s", ",", "said", "My"]
    split = Tokenizer("words")
    ids, unknown = encode_text(path, Vocabulary(words), split)
    assert (ids.tolist(), unknown) == ([2, 3, 4, 0, 1, 5, 6, 0], 1)  # <unk> in the text
    ids, unknown = encode_text(path, Vocabulary(words))
    assert (ids.tolist(), unknown) == ([7, 1, 0, 1, 6, 0], 2)  # brother's and <unk>, with a comma
    with pytest.raises(PRUError, match="line 2: '<unk>'"):
        encode_text(path, Vocabulary([word for word in words if word != "<unk>"]), split)


def test_text_that_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("\n\n")
    with pytest.raises(PRUError, match=r"new\.txt is empty"):
        encode_text(path, Vocabulary(["<eos>", "<unk>"]))
    with pytest.raises(PRUError, match="no '<eos>'"):
        encode_text(path, Vocabulary(["a", "<unk>"]))
    with pytest.raises(PRUError, match=r"cannot read .*none\.txt"):
        encode_text(tmp_path / "none.txt", Vocabulary(["<eos>", "<unk>"]))


@pytest.mark.skipif("PRU_DATA" not in os.environ, reason="PRU_DATA names no folder with penn and wikitext-2")
@pytest.mark.parametrize(
    ("name", "counts", "words"),
    [
        ("ptb", [929_589, 73_760, 82_430], 10_000),
        ("wikitext-2", [2_088_628, 217_646, 245_569], 33_278),
    ],
)
def test_published_corpora_have_the_published_counts(name: str, counts: list[int], words: int) -> None:
    start = time.perf_counter()
    corpus = load_corpus(name)
    assert time.perf_counter() - start < 5
    assert [len(corpus.split(split)) for split in SPLITS] == counts
    assert len(corpus.vocabulary) == words
    assert corpus.vocabulary.unknown is not None
    again = load_corpus(name)  # from the cache
    assert again.vocabulary == corpus.vocabulary
    for split in SPLITS:
        assert torch.equal(again.split(split), corpus.split(split))


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    peaks = []
    for lines in (280_000, 560_000):
        for split in SPLITS:
            (tmp_path / f"{split}.txt").write_text("a b c d\n" * (lines if split == "train" else 10))
        tracemalloc.start()
        corpus = load_corpus(tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(corpus.train) == 5 * lines
        assert corpus.train[-5:].tolist() == [0, 1, 2, 3, 4]
    assert peaks[1] - peaks[0] < 4 << 20  # the additional ids are 11 MB as int64


def test_a_folder_is_read_again_only_if_a_file_has_changed(
    corpus_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = corpus_folder(train=b"the cat\n", valid=b"a cat\n", test=b"dog\n")
    first = load_corpus(folder)
    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "read_blocks", None)
        assert load_corpus(folder).train.equal(first.train)
        assert load_corpus(str(folder)).vocabulary == first.vocabulary
    (folder / "test.txt").write_bytes(b"pig\n")
    assert load_corpus(folder).vocabulary.words[-1] == "pig"
