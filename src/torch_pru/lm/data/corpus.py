"""A corpus: three texts in numbers, and the vocabulary that numbers them."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice, nearest
from torch_pru.lm.data.king_james import king_james_verses, split_words
from torch_pru.lm.data.sources import CORPORA, SPLITS, check_digest
from torch_pru.lm.data.storage import data_folder, sha256_of
from torch_pru.lm.data.text import EOS, UNKNOWN, read_blocks, read_words
from torch_pru.lm.data.token_cache import Arrays, cached
from torch_pru.lm.data.vocabulary import Vocabulary

_FORMAT = b"torch-pru tokens 1\n"  # part of every cache key: change it when tokenising changes


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three texts as ids, each (N,) int64, and their vocabulary.

    Example:
        >>> corpus = load_corpus("king-james")
        >>> corpus.vocabulary.word(int(corpus.train[0])), corpus.split("test").dtype
        ('in', torch.int64)
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: Vocabulary

    def split(self, name: str) -> Tensor:
        """The text called "train", "valid" or "test".

        Example:
            >>> corpus = load_corpus("king-james")
            >>> corpus.split("valid") is corpus.valid
            True
        """
        check_choice("split", name, SPLITS)
        text: Tensor = getattr(self, name)
        return text

    def digest(self) -> str:
        """SHA-256 of the numbered texts: what a run keeps to know them again.

        Example:
            >>> len(load_corpus("king-james").digest())
            64
        """
        total = hashlib.sha256()
        for split in SPLITS:
            ids = self.split(split).numpy().astype("<i4")
            total.update(len(ids).to_bytes(8, "little") + ids.tobytes())
        return total.hexdigest()


def load_corpus(name_or_folder: str | Path, *, data_root: str | Path | None = None) -> Corpus:
    """Read a corpus: "ptb", "wikitext-2", "king-james", or any folder with train.txt, valid.txt and test.txt.

    Words are numbered in order of appearance over train, valid and test. A name goes before a folder of that
    name; for the folder, write "./ptb" or give a ``Path``. A named corpus must be the published text to the
    byte, so that its scores compare with the published ones; other text loads as a folder.

    Args:
        name_or_folder: which corpus.
        data_root: the folder of the named corpora; by default ``$PRU_DATA``, or the user's cache.

    Example:
        >>> len(load_corpus("king-james").vocabulary) > 5000
        True
    """
    name = name_or_folder if isinstance(name_or_folder, str) else None
    if name == "king-james":
        verses = king_james_verses()
        return _corpus_of(_number({split: [list(chain(*verses[split]))] for split in SPLITS}))
    if name is not None and name in CORPORA:
        folder = Path(data_root or data_folder()) / CORPORA[name].folder
        if not folder.is_dir():
            raise PRUError(
                f"corpus {name!r} is not at {folder}; get it with `pru data {name}`, "
                f"or adopt a local copy with `pru data {name} --from DIR`"
            )
        return _load_folder(folder, name)
    folder = Path(os.path.expanduser(name_or_folder))
    if not folder.is_dir():
        known = [*CORPORA, "king-james"]
        raise PRUError(
            f"corpus '{name_or_folder}' is neither a folder nor a known corpus; "
            f"use {', '.join(map(repr, known))} or a folder with train.txt, valid.txt and test.txt"
            f"{nearest(str(name_or_folder), known)}"
        )
    return _load_folder(folder, None)


Split = Callable[[str], list[str]]
"""Cuts a line into words."""


def word_splitter(corpus: str) -> Split:
    """How a text from elsewhere is cut into the words of a corpus: texts in files come cut, by white space.

    Example:
        >>> word_splitter("king-james")("My brother's"), word_splitter("ptb")("my brother 's")
        (['my', 'brother', "'s"], ['my', 'brother', "'s"])
    """
    return split_words if corpus == "king-james" else str.split


def encode_text(path: str | Path, vocabulary: Vocabulary, split: Split = str.split) -> Tensor:
    """A text file as ids of a given vocabulary, (N,) int64, ``<eos>`` after every line.

    A word outside the vocabulary becomes ``<unk>``; where the vocabulary has none, the first such word is
    refused with its line.

    Args:
        path: the file.
        vocabulary: of the model that is to read it.
        split: of that model's corpus, see `word_splitter`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("god said\\n")
        >>> encode_text(path, Vocabulary(["<eos>", "<unk>", "god"]))
        tensor([2, 1, 0])
    """
    path = Path(path)
    if EOS not in vocabulary:
        raise PRUError(f"the vocabulary has no {EOS!r}, which ends every line of {path}")
    if path.exists() and not path.is_file() and not path.is_dir():
        raise PRUError(f"{path} can be read only once, and is read several times; use a file")
    _check_not_empty(path)
    if vocabulary.unknown is None:
        _check_known(path, vocabulary, split)
    return torch.cat([vocabulary.encode(words) for words in read_words(path, split)])


def count_unknown(path: str | Path, vocabulary: Vocabulary, split: Split = str.split) -> tuple[int, int]:
    """How many words of a text file are outside the vocabulary, and how many words it has.

    An ``<unk>`` that stands in the file is a word of the vocabulary, and ``<eos>`` is none.

    Args:
        path, vocabulary, split: as for `encode_text`.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("god said\\n")
        >>> count_unknown(path, Vocabulary(["<eos>", "<unk>", "god"]))
        (1, 2)
    """
    unknown = total = 0
    for block in read_words(Path(path), split):
        words = [word for word in block if word != EOS]
        unknown += sum(word not in vocabulary for word in words)
        total += len(words)
    return unknown, total


def _check_known(path: Path, vocabulary: Vocabulary, split: Split) -> None:
    line = 1
    for block in read_blocks(path):
        for piece in block.split("\n"):
            for word in split(piece):
                if word not in vocabulary:
                    raise PRUError(
                        f"{path}, line {line}: {word!r} is the first word outside the vocabulary, "
                        f"which has no {UNKNOWN!r} to stand for it"
                    )
            line += 1
        line -= 1  # the next block goes on in the line this one ended in


def _load_folder(folder: Path, name: str | None) -> Corpus:
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    for path in files.values():
        if not path.is_file():
            raise PRUError(f"{path} is missing; a corpus is a folder with train.txt, valid.txt and test.txt")
    digests = {split: sha256_of(path) for split, path in files.items()}
    if name is not None:
        for split, path in files.items():
            check_digest(name, split, path, digests[split])
    key = hashlib.sha256(_FORMAT + "".join(digests[split] for split in SPLITS).encode()).hexdigest()
    return _corpus_of(cached(key, lambda: _read_files(files)))


def _read_files(files: Mapping[str, Path]) -> Arrays:
    for path in files.values():
        _check_not_empty(path)
    return _number({split: read_words(path) for split, path in files.items()})


def _check_not_empty(path: Path) -> None:
    if all(block.isspace() for block in read_blocks(path)):
        raise PRUError(f"{path} is empty; it needs at least one word")


def _number(splits: Mapping[str, Iterable[list[str]]]) -> Arrays:
    """Number words in order of appearance: ids (N,) int32 of each split, and the words as lines of UTF-8."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new word gets the next number, without a test per word
    arrays = {}
    for split, blocks in splits.items():
        arrays[split] = np.concatenate(
            [np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)) for words in blocks]
        )
    arrays["words"] = np.frombuffer("\n".join(numbers).encode("utf-8"), np.uint8)
    return arrays


def _corpus_of(arrays: Arrays) -> Corpus:
    vocabulary = Vocabulary(arrays["words"].tobytes().decode("utf-8").split("\n"))
    train, valid, test = (torch.from_numpy(arrays[split].astype(np.int64)) for split in SPLITS)
    return Corpus(train, valid, test, vocabulary)
