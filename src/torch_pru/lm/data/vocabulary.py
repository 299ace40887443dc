"""The words a model knows, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import write_aside
from torch_pru.lm.data.text import UNKNOWN
from torch_pru.lm.files import VOCABULARY_LIMIT, read_limited


class Vocabulary:
    """V words, numbered from 0 in the order they are given.

    Example:
        >>> vocabulary = Vocabulary(["<eos>", "<unk>", "god"])
        >>> vocabulary.encode(["god", "golf", "<eos>"])
        tensor([2, 1, 0])
        >>> vocabulary.word(2), len(vocabulary), "golf" in vocabulary
        ('god', 3, False)
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words: tuple[str, ...] = tuple(words)
        self._ids = {word: number for number, word in enumerate(self.words)}
        if not self.words:
            raise PRUError("words is empty; a vocabulary needs at least one word")
        if len(self._ids) != len(self.words):
            twice = next(word for number, word in enumerate(self.words) if self._ids[word] != number)
            raise PRUError(f"words has {twice!r} twice; each word of a vocabulary must be there once")
        for word in self.words:
            if len(word.split()) != 1 or word != word.strip():
                raise PRUError(f"words has {word!r}; a word must not be empty or contain white space")

    @property
    def unknown(self) -> int | None:
        """The number of ``<unk>``, or None where the vocabulary is without it."""
        return self._ids.get(UNKNOWN)

    def encode(self, words: Iterable[str]) -> Tensor:
        """The numbers of words, (n,) int64; a word outside the vocabulary becomes ``<unk>``."""
        words = list(words)
        ids = self.find(words)
        missing = ids < 0
        if missing.any():
            if self.unknown is None:
                raise PRUError(
                    f"the word {words[int(missing.argmax())]!r} is not in the vocabulary, "
                    f"which has no {UNKNOWN!r} to stand for it"
                )
            ids[missing] = self.unknown
        return torch.from_numpy(ids)

    def find(self, words: Sequence[str]) -> np.ndarray:
        """The numbers of words, (n,) int64, and -1 for each word outside the vocabulary."""
        return np.fromiter(map(self._ids.get, words, repeat(-1)), np.int64, len(words))

    def word(self, number: int) -> str:
        """The word with a number."""
        if not 0 <= number < len(self.words):
            raise PRUError(f"number={number} is outside the vocabulary; use 0 to {len(self.words) - 1}")
        return self.words[number]

    def save(self, path: str | Path) -> None:
        """Write one word a line, UTF-8; an older file is replaced only by a complete one."""
        with write_aside(Path(path)) as file:
            file.write(self.to_bytes())

    def to_bytes(self) -> bytes:
        """One word a line, UTF-8."""
        return "".join(f"{word}\n" for word in self.words).encode("utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what ``save`` wrote."""
        return cls.from_bytes(read_limited(path, VOCABULARY_LIMIT), path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str | Path) -> Vocabulary:
        """What ``to_bytes`` gave; an error names the file at ``path``."""
        try:
            text = content.decode("utf-8")
            return cls(text.removesuffix("\n").split("\n") if text else [])
        except (PRUError, UnicodeDecodeError) as error:
            raise PRUError(f"{path} is not a vocabulary, one word a line: {error}") from error

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"
