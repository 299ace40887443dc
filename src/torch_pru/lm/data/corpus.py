"""A corpus: three texts in numbers, and the vocabulary that numbers them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice, did_you_mean
from torch_pru.lm.config import DataConfig, is_subwords
from torch_pru.lm.corpora import BUILT_IN, CORPORA
from torch_pru.lm.data.king_james import king_james_verses
from torch_pru.lm.data.prepare import prepared_ids, prepared_text, smallest_integer
from torch_pru.lm.data.sources import SPLITS, check_digest
from torch_pru.lm.data.storage import data_folder, sha256_of
from torch_pru.lm.data.subwords import FILE as SUBWORD_FILE
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.text import EOS, UNKNOWN, read_blocks
from torch_pru.lm.data.tokenizer import Tokenizer, raw_pieces
from torch_pru.lm.data.vocabulary import Vocabulary

NAMES = (*CORPORA, BUILT_IN)
"""Of the corpora that everybody has."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Three texts as ids, each (N,), their vocabulary and, if they are split into subwords, what splits them.

    The ids are int64, or of a smaller integer type where a user's text is mapped from disk. Convert the piece
    that you read with ``.long()``, not the whole text.

    Example:
        >>> corpus = load_corpus("king-james")
        >>> corpus.vocabulary.word(int(corpus.train[0])), corpus.split("test").dtype
        ('in', torch.int64)
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: Vocabulary
    subwords: Subwords | None = None

    def split(self, name: str) -> Tensor:
        """The text called "train", "valid" or "test"."""
        check_choice("split", name, SPLITS)
        text: Tensor = getattr(self, name)
        return text

    def digest(self) -> str:
        """SHA-256 of the numbered texts: what a run keeps to know them again."""
        total = hashlib.sha256()
        for split in SPLITS:
            ids = self.split(split)
            total.update(len(ids).to_bytes(8, "little"))
            for piece in ids.split(1 << 20):  # a large text is not copied as a whole
                total.update(piece.numpy().astype("<i4").tobytes())
        return total.hexdigest()


def load_corpus(
    name_or_folder: str | Path, tokenizer: str | Subwords = "auto", *, data_root: str | Path | None = None
) -> Corpus:
    """Read a corpus: "ptb", "wikitext-2", "king-james", one made by `prepare_text`, or a folder with
    train.txt, valid.txt and test.txt.

    The words of such a folder are split at spaces and numbered in order of appearance over all three files.
    A name comes before a folder of that name; for the folder, write "./ptb" or give a ``Path``. A published
    corpus must be the published text to the byte, so that scores compare; other text loads as a folder.

    Args:
        name_or_folder: which corpus.
        tokenizer: ``"bpe:N"`` splits the text into subwords, which are learned from its training part; those
            of a file, or given as `Subwords`, are used as they are. Any other leaves the text as it is.
        data_root: the folder of the named corpora; by default ``$PRU_DATA``, or the user's cache.
    """
    name = name_or_folder if isinstance(name_or_folder, str) else None
    if isinstance(tokenizer, Subwords) or is_subwords(tokenizer):
        return _load_in_subwords(name_or_folder, tokenizer, data_root)
    if name == BUILT_IN:
        return _king_james()
    if (prepared := prepared_folder(name_or_folder, data_root)) is not None:
        return _load_prepared(prepared, tokenizer)
    files = _text_files(name_or_folder, data_root)
    published = name if name in CORPORA else None
    return _read_folder(files["train"].parent.resolve(), published, _versions(files))


@lru_cache(maxsize=1)  # see _read_folder
def _king_james() -> Corpus:
    verses = king_james_verses()
    return _number({split: [list(chain(*verses[split]))] for split in SPLITS})


def _text_files(name_or_folder: str | Path, data_root: str | Path | None) -> dict[str, Path]:
    """The files of a published corpus, or of a folder of texts."""
    name = name_or_folder if isinstance(name_or_folder, str) else None
    if name is not None and name in CORPORA:
        folder = Path(data_root or data_folder()) / CORPORA[name].folder
        if not all((folder / f"{split}.txt").is_file() for split in SPLITS):
            raise PRUError(
                f"corpus {name!r} is not at {folder}; get it with `pru data {name}`, "
                f"or import a local copy with `pru data {name} --from DIR`"
            )
        return _files_of(folder)
    folder = Path(os.path.expanduser(name_or_folder))
    if not folder.is_dir():
        raise PRUError(
            f"there is no corpus '{name_or_folder}' in {data_root or data_folder()}, and no folder of that "
            f"name; use {', '.join(map(repr, NAMES))}, the name of a corpus that you prepared with "
            f"`pru data NAME --from FILE`, or a folder with train.txt, valid.txt and test.txt"
            f"{did_you_mean(str(name_or_folder), NAMES)}"
        )
    return _files_of(folder)


def _load_prepared(folder: Path, tokenizer: str | Subwords) -> Corpus:
    name = tokenizer if isinstance(tokenizer, str) else tokenizer.name
    made = prepared_text(folder).tokenizer
    if is_subwords(made) != is_subwords(name) and name != "auto":
        raise PRUError(
            f"corpus {folder.name!r} was prepared with --tokens {made}, so tokenizer={name!r} does not fit; "
            f"prepare the text again with --tokens {name}"
        )
    vocabulary = Vocabulary.load(folder / "vocabulary.txt")
    ids = (prepared_ids(folder, split, len(vocabulary)) for split in SPLITS)
    train, valid, test = map(torch.from_numpy, ids)
    subwords = Subwords.load(folder / SUBWORD_FILE) if is_subwords(made) else None
    return Corpus(train, valid, test, vocabulary, subwords)


def _load_in_subwords(
    name_or_folder: str | Path, tokenizer: str | Subwords, data_root: str | Path | None
) -> Corpus:
    if (prepared := prepared_folder(name_or_folder, data_root)) is not None:
        return _load_prepared(prepared, tokenizer)
    texts = _texts(name_or_folder, data_root)
    if isinstance(tokenizer, str):
        files = {} if name_or_folder == BUILT_IN else _text_files(name_or_folder, data_root)
        tokenizer = _subwords(tokenizer, name_or_folder, data_root, _versions(files))
    ids = {}
    for split, blocks in texts.items():
        arrays = [np.array(tokenizer.encode(block), np.int64) for block in blocks()]
        ids[split] = torch.from_numpy(np.concatenate(arrays))
    return Corpus(ids["train"], ids["valid"], ids["test"], Vocabulary(tokenizer.tokens), tokenizer)


@lru_cache(maxsize=2)  # learned once for the plan, the header and the training of a run
def _subwords(
    tokenizer: str, name_or_folder: str | Path, data_root: str | Path | None, versions: object
) -> Subwords:
    if tokenizer.endswith(".json"):
        return Subwords.load(os.path.expanduser(tokenizer))
    return Subwords.learn(tokenizer, _texts(name_or_folder, data_root)["train"]())


def _texts(
    name_or_folder: str | Path, data_root: str | Path | None
) -> dict[str, Callable[[], Iterable[str]]]:
    """What reads each part of a text that is not prepared, in blocks of whole lines."""
    if name_or_folder == BUILT_IN:
        verses = king_james_verses()
        return {split: partial(list, ["".join(raw_pieces(chain(*verses[split])))]) for split in SPLITS}
    files = _text_files(name_or_folder, data_root)
    _check_published(files, name_or_folder)
    for path in files.values():
        refuse_empty(path)
    return {split: partial(read_blocks, path, whole_lines=True) for split, path in files.items()}


def tokenizer_of(data: DataConfig) -> Tokenizer:
    """How text from elsewhere is cut into the tokens of a run's corpus.

    Published corpora and folders with train.txt, valid.txt and test.txt are already cut, by spaces.

    Example:
        >>> tokenizer_of(DataConfig(corpus="king-james"))("My brother's")
        ['my', 'brother', "'s"]
        >>> tokenizer_of(DataConfig(corpus="ptb")).name
        'spaces'
    """
    return Tokenizer(tokenizer_name(data))


def tokenizer_name(data: DataConfig) -> str:
    """The name of what splits the text of a run into tokens."""
    if data.tokenizer != "auto":
        return data.tokenizer
    if data.corpus == BUILT_IN:
        return "words"
    folder = prepared_folder(data.corpus)
    return "spaces" if folder is None else prepared_text(folder).tokenizer


def located(data: DataConfig) -> DataConfig:
    """The same text in a way that still holds tomorrow and elsewhere: a folder by its full path, and the
    tokenizer by its name."""
    corpus, folder = data.corpus, Path(os.path.expanduser(data.corpus))
    if corpus not in NAMES and prepared_by_name(corpus) is None and folder.is_dir():
        corpus = str(folder.resolve())
    name = tokenizer_name(data)
    return DataConfig(corpus, str(Path(name).expanduser().resolve()) if name.endswith(".json") else name)


def prepared_folder(corpus: str | Path, data_root: str | Path | None = None) -> Path | None:
    """The folder of a prepared corpus, given by name or as a folder; None for any other text."""
    if corpus in NAMES:
        return None
    folder = Path(os.path.expanduser(corpus))
    prepared = prepared_by_name(str(corpus), data_root)
    return prepared or (folder if (folder / "corpus.json").is_file() else None)


def prepared_by_name(name: str, data_root: str | Path | None = None) -> Path | None:
    """The folder of the prepared corpus of that name; None where there is none."""
    if os.sep in name or name in ("", ".", ".."):
        return None
    folder = Path(data_root or data_folder()) / name
    return folder if (folder / "corpus.json").is_file() else None


class EncodedText(NamedTuple):
    """A text file in numbers.

    Attributes:
        ids: (N,) of the smallest integer type that holds them; a large text is mapped from a temporary file.
        unknown: how many of them are ``<unk>``: words outside the vocabulary, and ``<unk>`` in the file.
    """

    ids: Tensor
    unknown: int


def encode_text(path: str | Path, vocabulary: Vocabulary, tokenizer: Tokenizer | None = None) -> EncodedText:
    """A text file as ids of a given vocabulary, with ``<eos>`` after every line.

    A word outside the vocabulary becomes ``<unk>``. Where the vocabulary has none, the first such word is an
    error that names its line. The text is read once, in blocks, and never held as a whole.

    Args:
        path: the file.
        vocabulary: of the model that is to read it.
        tokenizer: of that model's run, see `tokenizer_of`; without one the text is split at spaces.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("god said\\n")
        >>> encode_text(path, Vocabulary(["<eos>", "<unk>", "god"]))
        EncodedText(ids=tensor([2, 1, 0], dtype=torch.uint8), unknown=1)
    """
    path, tokenizer = Path(path), tokenizer or Tokenizer("spaces")
    if EOS not in vocabulary:
        raise PRUError(f"the vocabulary has no {EOS!r}, which ends every line of {path}")
    unknown = words = lines = 0
    kind = smallest_integer(len(vocabulary))
    with tempfile.TemporaryFile() as file:
        for block in tokenizer.blocks(path):
            tokens = tokenizer(block)
            ids = vocabulary.find(tokens)
            missing = ids < 0
            if missing.any():
                if vocabulary.unknown is None:
                    raise _unknown_word(path, block, lines, vocabulary, tokenizer)
                ids[missing] = vocabulary.unknown
            if vocabulary.unknown is not None:
                unknown += int(np.count_nonzero(ids == vocabulary.unknown))
            words += len(tokens) - tokens.count(EOS)
            lines += block.count("\n")
            file.write(ids.astype(kind).tobytes())
        if not words:
            raise PRUError(f"{path} is empty; it needs at least one word")
        return EncodedText(_mapped(file, kind), unknown)


def _unknown_word(
    path: Path, block: str, lines: int, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> PRUError:
    for number, line in enumerate(block.split("\n"), start=lines + 1):
        for word in tokenizer(line):
            if word not in vocabulary:
                return PRUError(
                    f"{path}, line {number}: {word!r} is not in the vocabulary, which has no {UNKNOWN!r} to "
                    f"stand for it"
                )
    raise AssertionError("every word of the block is in the vocabulary")


def _files_of(folder: Path) -> dict[str, Path]:
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    for path in files.values():
        if not path.is_file():
            raise PRUError(f"{path} is missing; a corpus is a folder with train.txt, valid.txt and test.txt")
    return files


def _versions(files: Mapping[str, Path]) -> tuple[tuple[int, ...], ...]:
    """What changes if one of the files does."""
    statuses = [path.stat() for path in files.values()]
    return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses)


def _check_published(files: Mapping[str, Path], name: str | Path) -> None:
    if isinstance(name, str) and name in CORPORA:
        for split, path in files.items():
            check_digest(name, split, path, sha256_of(path))


@lru_cache(maxsize=1)  # a command needs its text several times: to check it, for the header, and to train
def _read_folder(folder: Path, name: str | None, versions: tuple[tuple[int, ...], ...]) -> Corpus:
    """The texts of a folder, read again only if one of the files has changed."""
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    _check_published(files, name or folder)
    return _number({split: _words(path) for split, path in files.items()}, mapped=name is None)


def refuse_empty(path: Path) -> None:
    """A text must have a word."""
    if all(block.isspace() for block in read_blocks(path)):
        raise PRUError(f"{path} is empty; it needs at least one word")


def _words(path: Path) -> Iterator[list[str]]:
    refuse_empty(path)
    return map(Tokenizer("spaces"), read_blocks(path))


def _number(splits: Mapping[str, Iterable[list[str]]], *, mapped: bool = False) -> Corpus:
    """Number the words of the three splits, given in blocks, in order of appearance.

    With ``mapped`` the ids are mapped from temporary files, so that a text of any size takes little memory.
    """
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new word gets the next number, without a test per word
    kind = np.int32 if mapped else np.int64
    ids = {}
    for split, blocks in splits.items():
        arrays = (np.fromiter(map(numbers.__getitem__, words), kind, len(words)) for words in blocks)
        if mapped:
            with tempfile.TemporaryFile() as file:
                file.writelines(array.tobytes() for array in arrays)
                ids[split] = _mapped(file, kind)
        else:
            ids[split] = torch.from_numpy(np.concatenate(list(arrays)))
    return Corpus(ids["train"], ids["valid"], ids["test"], Vocabulary(numbers))


def _mapped(file: IO[bytes], kind: type[np.integer]) -> Tensor:
    """The integers in a file, mapped into memory; they can be read after it is closed."""
    file.flush()
    return torch.from_numpy(np.memmap(file, kind, "r+"))
