"""Byte-level BPE: tokens are pieces of words, learned from a text. Nothing is unknown to it.

The file is a ``tokenizer.json`` of Hugging Face's ``tokenizers``. It may come from a stranger, so only two
things are taken from it, the tokens and the merges. They are checked, and everything else is built anew.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import SUBWORDS
from torch_pru.lm.data.text import EOS, read_blocks
from torch_pru.lm.data.tokenizer import Tokenizer
from torch_pru.lm.files import read_limited
from torch_pru.lm.seal import parse_object

FILE = "tokenizer.json"
LIMIT = 32 << 20
"""Bytes of a tokenizer file."""

MOST_LISTS = 2_000_000
"""Lists and objects in a tokenizer file, of which each merge is one."""

_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
BYTES = {chr(byte): byte for byte in _PLAIN} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""The character that stands for each byte, as in GPT-2: none of them is white space."""


class Subwords(Tokenizer):
    """Splits text into the tokens of a byte-level BPE; a line break becomes ``<eos>``.

    Args:
        name: as in the settings: ``"bpe:8000"``, or the file that the tokens come from.
        tokens: in the order of their ids, one for each byte and ``<eos>`` among them.
        merges: pairs of tokens that are joined, most important first.

    Example:
        >>> verses = ["in the beginning god created the heaven"] * 9
        >>> subwords = Subwords.learn("bpe:300", verses)
        >>> subwords("the heaven\\nthe")
        ['the', 'Ġheaven', '<eos>', 'the']
        >>> subwords.join(subwords("the heaven 道"))
        'the heaven 道'
    """

    def __init__(self, name: str, tokens: Iterable[str], merges: Iterable[tuple[str, str]]) -> None:
        self.name = name
        self.tokens = tuple(tokens)
        self.fast = _assemble(name, {token: number for number, token in enumerate(self.tokens)}, list(merges))

    @classmethod
    def learn(cls, name: str, text: Iterable[str]) -> Subwords:
        """Learn tokens from a text. The same text gives the same tokens.

        Args:
            name: ``"bpe:N"``: at most N tokens.
            text: pieces of the text; no token crosses a line break.
        """
        library, found = _library(name), SUBWORDS.fullmatch(name)
        assert found is not None
        fast = library.Tokenizer(library.models.BPE())
        fast.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(BYTES)
        trainer = library.trainers.BpeTrainer(
            vocab_size=int(found[1]), special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
        )
        fast.train_from_iterator((line for piece in text for line in _lines(piece)), trainer)
        return cls.parse(json.loads(fast.to_str()), name, name)

    @classmethod
    def load(cls, path: str | Path) -> Subwords:
        """Read a tokenizer file that a user names."""
        return cls.from_bytes(read_limited(path, LIMIT), path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str | Path, name: str | None = None) -> Subwords:
        """What ``to_bytes`` gave, or another byte-level BPE; an error names the file at ``path``."""
        if len(content) > LIMIT:
            raise PRUError(f"{path} has {len(content):,} bytes; the limit for it is {LIMIT:,}")
        return cls.parse(parse_object(content, Path(path), MOST_LISTS), path, name or str(path))

    @classmethod
    def parse(cls, content: Mapping[str, Any], path: str | Path, name: str) -> Subwords:
        """The tokens and merges of a tokenizer file, after every one of them was checked."""
        try:
            tokens, merges = _model_of(content)
        except (_MalformedError, TypeError, KeyError, AttributeError, ValueError) as error:
            reason = error if isinstance(error, _MalformedError) else "it is malformed"
            raise PRUError(f"{path} is not the file of a byte-level BPE: {reason}") from error
        return cls(name, tokens, merges)

    def to_bytes(self) -> bytes:
        """The file, as ``tokenizers`` and Transformers read it."""
        return str(self.fast.to_str()).encode() + b"\n"

    def __call__(self, text: str) -> list[str]:
        """The tokens of a text; each line break in it becomes ``<eos>``."""
        return list(self.fast.encode(text, add_special_tokens=False).tokens)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self.fast.encode(text, add_special_tokens=False).ids)

    def blocks(self, path: Path | int) -> Iterator[str]:
        """The text of a file in blocks of whole lines, so that the tokens do not depend on the blocks."""
        return read_blocks(path, whole_lines=True)

    def pieces(self, tokens: Iterable[str], *, sentence_case: bool | None = None) -> Iterator[str]:
        """What each token adds to the text; part of a character is held back until the character is whole."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(self.spell(token))
        yield decoder.decode(b"", final=True)

    def spell(self, token: str) -> bytes:
        """The bytes that a token stands for."""
        return b"\n" if token == EOS else bytes(map(BYTES.__getitem__, token))

    def spelled(self, tokens: Iterable[str]) -> Iterator[bytes]:
        """The bytes of each token."""
        return map(self.spell, tokens)


class _MalformedError(ValueError):
    """What is wrong with a file."""


def _model_of(content: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    model, cut = content["model"], content.get("pre_tokenizer") or {}
    if model.get("type", "BPE") != "BPE":
        raise _MalformedError(f"its model is {model['type']!r:.50}")
    if cut.get("type") != "ByteLevel" or cut.get("add_prefix_space") or not cut.get("use_regex", True):
        raise _MalformedError("its pre-tokenizer must be ByteLevel, without a prefix space")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise _MalformedError(f"it has {option}")
    vocab = model["vocab"]
    if not isinstance(vocab, dict) or not isinstance(model["merges"], list):
        raise _MalformedError("the tokens or merges are missing")
    if not all(type(number) is int for number in vocab.values()):
        raise _MalformedError("ids must be integers")
    tokens = sorted(vocab, key=vocab.__getitem__)
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise _MalformedError("ids must count from 0, each once")
    if missing := sum(character not in vocab for character in BYTES):
        raise _MalformedError(f"{missing} of the 256 bytes have no token")
    if any(not token or (token != EOS and not BYTES.keys() >= set(token)) for token in tokens):
        raise _MalformedError("a token is not made of bytes")
    if EOS not in vocab:
        tokens.append(EOS)
    merges = []
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) != 2 or not {pair[0], pair[1], pair[0] + pair[1]} <= vocab.keys() or EOS in pair:
            raise _MalformedError("a merge is not a pair of tokens that make a token")
        merges.append((pair[0], pair[1]))
    return tokens, merges


def _assemble(name: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    library = _library(name)
    fast = library.Tokenizer(library.models.BPE(vocab=vocab, merges=merges))
    line_ends = [("\r\n", "\n"), ("\r", "\n"), ("\n", EOS)]
    replacements = [library.normalizers.Replace(old, new) for old, new in line_ends]
    fast.normalizer = library.normalizers.Sequence(replacements)
    fast.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = library.decoders.ByteLevel()
    fast.post_processor = library.processors.TemplateProcessing(
        single=f"{EOS} $A", pair=f"{EOS} $A {EOS} $B", special_tokens=[(EOS, vocab[EOS])]
    )
    fast.add_special_tokens([library.AddedToken(EOS, special=True, normalized=True)])
    return fast


def _library(name: str) -> Any:
    """The package ``tokenizers``, which is imported only where it is needed."""
    try:
        import tokenizers
    except ImportError as error:
        raise PRUError(f"tokenizer={name!r} needs tokenizers; pip install 'torch-pru[lm]'") from error
    return tokenizers


def _lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
