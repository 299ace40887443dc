"""A user's text made ready for training: split into three parts, tokenized and numbered, in bounded memory.

A prepared corpus is a folder with ``corpus.json`` (how it was made), ``vocabulary.txt`` and the token ids of
each part (``train.npy``, ``valid.npy``, ``test.npy``), which are mapped into memory instead of read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from torch_pru.errors import PRUError
from torch_pru.lm.config import check_tokenizer, is_subwords
from torch_pru.lm.corpora import BUILT_IN, CORPORA
from torch_pru.lm.data.sources import PARTS, SPLITS
from torch_pru.lm.data.splitting import (
    FEWEST_TOKENS,
    ByteSplitter,
    Splitter,
    part_files,
    parts_of,
    sample_of,
)
from torch_pru.lm.data.storage import CHUNK, data_folder, make_folder, sha256_of, writing
from torch_pru.lm.data.subwords import FILE as SUBWORD_FILE
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.data.text import EOS, UNKNOWN, read_blocks
from torch_pru.lm.data.tokenizer import Tokenizer, choose_tokenizer
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.files import read_limited
from torch_pru.lm.progress import ProgressCallback
from torch_pru.lm.seal import parse_json

FORMAT = 1  # of the folder; part of the name of a text's corpus, so that a new format is prepared anew

ABOUT_LIMIT = 1 << 20  # bytes of corpus.json
RAREST = 2  # a word that the training part has less often becomes <unk>
MOST_WORDS = 10_000  # in the vocabulary, unless the caller says otherwise
MOST_TYPES = 500_000  # different words that are counted; those that come after them become <unk>


@dataclass(frozen=True)
class PreparedText:
    """What is known of a prepared corpus: the content of ``corpus.json``, and its name and folder.

    Attributes:
        name: what ``corpus=`` is set to.
        folder: where it is.
        sources: names of the files it was made from.
        size: bytes of these files.
        tokenizer: see `TOKENIZERS`.
        reason: why this tokenizer was chosen, where that is worth saying.
        types: size of the vocabulary, ``<eos>`` and ``<unk>`` included.
        tokens: number of tokens in each part.
        unknown: number of tokens in each part that are read as ``<unk>``: words outside the vocabulary, and
            ``<unk>`` in the text itself.
        digest: of the text and the options that it was made with.
    """

    name: str
    folder: Path
    sources: list[str]
    size: int
    tokenizer: str
    reason: str
    types: int
    tokens: dict[str, int]
    unknown: dict[str, int]
    digest: str = ""

    def unknown_share(self, split: str) -> float:
        """The share of a part's tokens that are read as ``<unk>``."""
        return self.unknown[split] / max(1, self.tokens[split])


def prepare_text(
    sources: Sequence[str | Path],
    name: str | None = None,
    *,
    tokenizer: str = "auto",
    vocabulary: int = MOST_WORDS,
    data_root: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> PreparedText:
    """Prepare text files for training, or find what was prepared from the same text before.

    A name that another text has, or the same text with other options, is refused.

    Stretches of the text, spread over all of it, are set aside for validation and test: 5% each, up to about
    30,000 tokens. A folder with ``train.txt``, ``valid.txt`` and ``test.txt`` keeps its own parts. The
    vocabulary comes from the training part alone; words that it has only once become ``<unk>``.

    Args:
        sources: UTF-8 files, or folders whose files are all read.
        name: of the corpus; by default the first file's, with the beginning of a hash of the text.
        tokenizer: one of `TOKENIZERS`; ``"bpe:N"`` learns N subwords from the training part, and a
            ``tokenizers`` file (``*.json``) brings its own; ``"auto"`` chooses characters for languages
            without spaces and for source code, and words for everything else.
        vocabulary: at most this many different tokens; the others become ``<unk>``. Not for subwords.
        data_root: where to; by default ``$PRU_DATA``, or the user's cache.
        progress: called after each block.
    """
    check_tokenizer(tokenizer)
    parts = parts_of([Path(os.path.expanduser(source)) for source in sources])
    files = [path for paths in parts.values() for path in paths]
    sample = sample_of(files)
    if not sample.strip():
        names = ", ".join(map(str, sources))
        raise PRUError(f"{names} has only white space; give at least {FEWEST_TOKENS} words of text")
    reason = ""
    if tokenizer == "auto":
        tokenizer, reason = choose_tokenizer(sample)
    kind = sha256_of(Path(tokenizer)) if tokenizer.endswith(".json") else tokenizer
    digest = digest_of(files, f"{FORMAT} {sorted(parts)} {kind} {vocabulary}")
    named = name is not None
    if name is None:
        name = f"{stem_of(Path(sources[0]))}-{digest[:8]}"
    check_name(name)
    folder = Path(data_root or data_folder()) / name
    if (folder / "corpus.json").exists():
        if named and prepared_text(folder).digest != digest:
            raise PRUError(
                f"corpus {name!r} exists with other text or options; choose another name, or remove {folder}"
            )
    else:
        if folder.exists():
            raise PRUError(f"{folder} exists and is not a prepared corpus; choose another name")
        make_folder(folder.parent)
        with writing(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".preparing-") as aside:
            size = sum(path.stat().st_size for path in files)
            if is_subwords(tokenizer):
                numbered = subword_parts(Path(aside), parts, size, tokenizer, progress)
            else:
                work = Preparation(Path(aside), Tokenizer(tokenizer), vocabulary, progress)
                work.read(parts, size, density=len(work.tokenizer(sample)) / max(1, len(sample.encode())))
                numbered = work.number()
            about = numbered | {
                "sources": [path.name for path in files[:1000]],
                "size": size,
                "tokenizer": tokenizer,
                "reason": reason,
                "digest": digest,
            }
            ready = Path(aside) / "ready"
            (ready / "corpus.json").write_text(json.dumps({"format": FORMAT, **about}, indent=1) + "\n")
            ready.rename(folder)
    return prepared_text(folder)


def subword_parts(
    folder: Path, parts: dict[str, list[Path]], size: int, tokenizer: str, progress: ProgressCallback | None
) -> dict[str, object]:
    """Write a corpus of subwords; what ``corpus.json`` says of it.

    The text is split into its parts first, in bytes, so that subwords are learned from the training part.
    """
    if "all" in parts:
        split_bytes(folder, parts["all"], size, progress)
        parts = {split: [folder / split] for split in SPLITS}

    def blocks(split: str) -> Iterator[str]:
        return chain.from_iterable(read_blocks(path, whole_lines=True) for path in parts[split])

    if tokenizer.endswith(".json"):
        subwords = Subwords.load(tokenizer)
    else:
        subwords = Subwords.learn(tokenizer, blocks("train"))
    ready = folder / "ready"
    ready.mkdir()
    tokens = {}
    for split in SPLITS:
        kind = smallest_integer(len(subwords.tokens))
        with open(folder / "ids", "wb") as file:
            for block in blocks(split):
                file.write(np.array(subwords.encode(block), kind).tobytes())
        length = (folder / "ids").stat().st_size // np.dtype(kind).itemsize
        if length < (FEWEST_TOKENS if split == "train" else 2):
            raise PRUError(f"the {PARTS[split]} part of the text has only {length:,} tokens; give more text")
        ids = np.lib.format.open_memmap(ready / f"{split}.npy", mode="w+", dtype=kind, shape=(length,))
        ids[:] = np.memmap(folder / "ids", kind, "r")
        ids.flush()
        tokens[split] = length
    Vocabulary(subwords.tokens).save(ready / "vocabulary.txt")
    (ready / SUBWORD_FILE).write_bytes(subwords.to_bytes())
    return {"types": len(subwords.tokens), "tokens": tokens, "unknown": dict.fromkeys(SPLITS, 0)}


def split_bytes(folder: Path, files: Sequence[Path], size: int, progress: ProgressCallback | None) -> None:
    """Write the three parts of a text into files of their own."""
    done = 0
    with part_files(folder) as outputs:
        splitter = ByteSplitter(size, outputs)
        for path in files:
            for block in read_blocks(path, whole_lines=True):
                splitter.add(np.frombuffer(block.encode(), np.uint8))
                done += len(block)
                if progress is not None:
                    progress(min(done, size), size)


def prepared_text(folder: Path) -> PreparedText:
    """What ``corpus.json`` in a folder says."""
    path = folder / "corpus.json"
    try:
        about = parse_json(read_limited(path, ABOUT_LIMIT))
        if about.pop("format") != FORMAT:
            raise PRUError(f"{folder} was prepared by another version of torch-pru; prepare the text again")
        text = PreparedText(name=folder.name, folder=folder, **about)
        check_tokenizer(text.tokenizer)
        return text
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, PRUError):
            raise
        raise PRUError(f"{path} is damaged; remove {folder} and prepare the text again") from error


def prepared_ids(folder: Path, split: str, types: int) -> np.ndarray:
    """The token ids of a part, mapped into memory; changes to the array do not reach the file.

    Args:
        folder: of the prepared corpus.
        split: the part.
        types: size of the vocabulary; every id is below it.
    """
    path = folder / f"{split}.npy"
    if not path.is_file():
        raise PRUError(f"{path} is missing; remove {folder} and prepare the text again")
    try:
        ids = np.load(path, mmap_mode="c", allow_pickle=False)
        if ids.dtype not in (np.uint8, np.uint16, np.int32) or ids.ndim != 1:
            raise ValueError("it is not a row of integers")
        check_ids(path, ids.offset, ids.dtype, types)
    except (OSError, ValueError) as error:
        raise PRUError(f"{path} is damaged; remove {folder} and prepare the text again") from error
    return ids


def check_ids(path: Path, offset: int, dtype: np.dtype, types: int) -> None:
    """Raise a ValueError unless all ids in a file are those of words. They are read in pieces."""
    with open(path, "rb") as file:
        file.seek(offset)
        while len(piece := np.frombuffer(file.read(CHUNK), dtype)):
            if piece.min() < 0 or piece.max() >= types:
                raise ValueError(f"it has ids outside the vocabulary of {types:,} words")


def smallest_integer(types: int) -> type[np.integer]:
    """The smallest type that holds the ids of a vocabulary."""
    return next(kind for kind in (np.uint8, np.uint16, np.int32) if types <= np.iinfo(kind).max + 1)


def check_name(name: str) -> None:
    """Refuse a name that is taken or is no name."""
    if name in (*CORPORA, BUILT_IN):
        raise PRUError(f"{name!r} is the name of a published corpus; choose another name")
    if not re.fullmatch(r"\w[\w.+-]*", name):
        raise PRUError(f"{name!r} cannot name a corpus; use letters, digits, '-', '_' and '.'")


def stem_of(source: Path) -> str:
    """The beginning of the name of a text's corpus: that of its first file."""
    return re.sub(r"[^\w-]+", "-", source.resolve().stem).strip("-_")[:40] or "text"


def digest_of(files: Sequence[Path], options: str) -> str:
    """A hash of a text and the options that it is prepared with."""
    digests = "".join(sha256_of(path) for path in files)
    return hashlib.sha256((options + digests).encode()).hexdigest()


def title_of(corpus: str) -> str:
    """The name of a corpus on the screen: that of its file or folder, without the hash of the text.

    Example:
        >>> title_of("my-book-1f0c9a2e"), title_of("/home/me/texts"), title_of("ptb")
        ('my-book', 'texts', 'ptb')
    """
    return re.sub("-[0-9a-f]{8}$", "", Path(corpus).name) or corpus


class Preparation:
    """One pass over the text numbers its tokens in order of appearance; a second one renumbers them.

    Args:
        folder: for files that are needed meanwhile; the corpus is made in ``folder/ready``.
        tokenizer: of the text.
        vocabulary: its largest size.
        progress: called after each block.
    """

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, vocabulary: int, progress: ProgressCallback | None
    ) -> None:
        self.folder, self.tokenizer, self.vocabulary, self.progress = folder, tokenizer, vocabulary, progress
        self.numbers = {EOS: 0, UNKNOWN: 1}

    def read(self, parts: dict[str, list[Path]], size: int, density: float) -> None:
        """Write each part's tokens, as numbers in order of appearance, into a file of its own.

        Args:
            parts: from `parts_of`.
            size: bytes there are.
            density: tokens per byte, about.
        """
        done = 0
        with part_files(self.folder) as outputs:
            splitter = Splitter(int(size * density), outputs)
            for split, files in parts.items():
                for path in files:
                    for block in read_blocks(path, whole_words=False):
                        ids = self._ids(self.tokenizer(block))
                        if split == "all":
                            splitter.add(ids)
                        else:
                            outputs[split].write(ids.tobytes())
                        done += len(block)
                        if self.progress is not None:
                            self.progress(min(done, size), size)

    def _ids(self, tokens: list[str]) -> np.ndarray:
        numbers = self.numbers
        if len(numbers) < MOST_TYPES:
            for token in dict.fromkeys(tokens):  # in the order of the text, so that it is always the same
                numbers.setdefault(token, len(numbers))
        return np.fromiter(map(numbers.get, tokens, repeat(1)), np.int32, len(tokens))

    def number(self) -> dict[str, object]:
        """Choose the vocabulary and write the corpus; what ``corpus.json`` says of it."""
        counts = np.zeros(len(self.numbers), np.int64)
        for ids in self._stored("train"):
            counts += np.bincount(ids, minlength=len(counts))
        total = int(counts.sum())
        if total < FEWEST_TOKENS:
            raise PRUError(
                f"the text has only {total:,} tokens to train on; give at least {FEWEST_TOKENS} words of text"
            )
        kept = self._kept(counts)
        words = list(self.numbers)
        ready = self.folder / "ready"
        ready.mkdir()
        Vocabulary([words[number] for number in kept]).save(ready / "vocabulary.txt")
        table = np.ones(len(counts), np.int64)  # 1 is <unk>
        table[kept] = np.arange(len(kept))
        tokens, unknown = {}, {}
        for split in SPLITS:
            tokens[split], unknown[split] = self._renumber(split, table, len(kept), ready / f"{split}.npy")
        return {"types": len(kept), "tokens": tokens, "unknown": unknown}

    def _kept(self, counts: np.ndarray) -> np.ndarray:
        """The numbers of the words to keep, most frequent first, after ``<eos>`` and ``<unk>``."""
        ranked = 2 + np.argsort(-counts[2:], kind="stable")
        ranked = ranked[counts[ranked] >= RAREST]
        return np.concatenate([[0, 1], ranked[: max(1, self.vocabulary - 2)]])

    def _stored(self, split: str) -> Iterator[np.ndarray]:
        with open(self.folder / split, "rb") as file:
            while piece := file.read(CHUNK):
                yield np.frombuffer(piece, np.int32)

    def _renumber(self, split: str, table: np.ndarray, types: int, path: Path) -> tuple[int, int]:
        """Write the final ids of a part; how many there are, and how many of them are ``<unk>``."""
        length = (self.folder / split).stat().st_size // 4
        if not length:
            raise PRUError(f"the text is too short to set a {split} part aside; give more text")
        ids = np.lib.format.open_memmap(path, mode="w+", dtype=smallest_integer(types), shape=(length,))
        start = unknown = 0
        for old in self._stored(split):
            new = table[old]
            unknown += int(np.count_nonzero(new == 1))
            ids[start : start + len(new)] = new
            start += len(new)
        ids.flush()
        return length, unknown
