"""Text to tokens and back. A run keeps the name of its tokenizer in config.toml."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from torch_pru.errors import check_choice
from torch_pru.lm.data.text import EOS, UNKNOWN, read_blocks

TOKENIZERS = {
    "words": "lower-cased words, with punctuation split off",
    "cased-words": "words as written, with punctuation split off",
    "characters": "single characters",
    "spaces": "whatever stands between spaces",
}
"""Name and description of every tokenizer."""

SPACE, TAB = "▁", "␉"
"""What stands for a space and for a tab in the vocabulary of ``characters``."""

_CURLY = str.maketrans("‘’“”", "''\"\"")


class TextSize(NamedTuple):
    """How long a text is: words between white space, with each line break as one more, and bytes in UTF-8."""

    words: int
    bytes: int


class Tokenizer:
    """Splits text into tokens, and joins tokens into text as people write it.

    Text is first normalized to NFC (except by ``spaces``), and any line ending becomes ``<eos>``.

    Args:
        name: one of `TOKENIZERS`.

    Example:
        >>> words = Tokenizer("words")
        >>> words("My brother's keeper?")
        ['my', 'brother', "'s", 'keeper', '?']
        >>> words.join(["my", "brother", "'s", "keeper", "?"])
        "My brother's keeper?"
        >>> Tokenizer("characters")("a b")
        ['a', '▁', 'b']
    """

    def __init__(self, name: str) -> None:
        check_choice("tokenizer", name, TOKENIZERS)
        self.name = name

    def __call__(self, text: str) -> list[str]:
        """The tokens of a text; each line break in it becomes ``<eos>``."""
        if self.name == "spaces":
            return _split_at_spaces(text)
        text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n")
        if self.name == "characters":
            return _characters(text)
        text = text.translate(_CURLY)
        text = text.lower() if self.name == "words" else text
        return [EOS if token == "\n" else token for token in word_pattern().findall(text)]

    @property
    def whole_words(self) -> bool:
        """Whether each token is a word or a sign, rather than a part of a word."""
        return self.name in ("words", "cased-words", "spaces")

    def blocks(self, path: Path | int) -> Iterator[str]:
        """The text of a file in blocks of about a megabyte; a path of 0 is standard input."""
        return read_blocks(path, whole_words=self.name == "spaces")

    def join(self, tokens: Iterable[str], *, sentence_case: bool | None = None) -> str:
        """The text that tokens make.

        Args:
            tokens: the tokens.
            sentence_case: whether to capitalize the first word of each sentence; by default where the
                tokenizer lower-cases.
        """
        return "".join(self.pieces(tokens, sentence_case=sentence_case))

    def pieces(self, tokens: Iterable[str], *, sentence_case: bool | None = None) -> Iterator[str]:
        """What each token adds to the text, as soon as it comes."""
        if self.name == "characters":
            for token in tokens:
                yield {EOS: "\n", SPACE: " ", TAB: "\t"}.get(token, token)
            return
        spacing = Spacing()
        case: Callable[[str], str] = str
        if self.name == "words" if sentence_case is None else sentence_case:
            case = SentenceCase()
        for token in tokens:
            yield spacing(case(token))

    def spell(self, token: str) -> bytes:
        """What a token that is part of a word stands for in the text, in UTF-8."""
        return {EOS: "\n", SPACE: " ", TAB: "\t"}.get(token, token).encode()

    def spelled(self, tokens: Iterable[str]) -> Iterator[bytes]:
        """What each token adds to the text, in UTF-8."""
        pieces = raw_pieces(tokens) if self.name == "spaces" else self.pieces(tokens, sentence_case=False)
        return map(str.encode, pieces)

    def size(self, tokens: Iterable[str]) -> TextSize:
        """How long the text is that tokens make.

        Example:
            >>> Tokenizer("words").size(["he", "said", ",", "<unk>", ".", "<eos>"])
            TextSize(words=4, bytes=16)
        """
        words = length = 0
        inside = False  # of a word
        for piece in self.spelled(tokens):
            length += len(piece)
            if piece == b"\n":
                words += 1
            elif piece:
                words += len(piece.split()) - (inside and not piece[:1].isspace())
            inside = not piece[-1:].isspace() if piece else inside
        return TextSize(words, length)


def raw_pieces(tokens: Iterable[str]) -> Iterator[str]:
    """Tokens with a space between them, and a line break for ``<eos>``.

    Example:
        >>> "".join(raw_pieces(["in", "the", "<eos>", "and"]))
        'in the\\nand'
    """
    gap = ""
    for token in tokens:
        yield "\n" if token == EOS else gap + token
        gap = "" if token == EOS else " "


class Spacing:
    """Puts spaces between words and punctuation where they belong, token by token.

    Example:
        >>> spacing = Spacing()
        >>> "".join(map(spacing, ["he", "did", "n't", "say", '"', "no", '"', "(", "twice", ")", "."]))
        'he didn\\'t say "no" (twice).'
    """

    CLOSING = frozenset(".,;:!?)]}%…»”’،؛؟।") | {"'s", "n't", "'re", "'ve", "'ll", "'d", "'m", "'"}
    OPENING = frozenset("([{$£€#«“‘¿¡")
    JOINING: ClassVar = {"@-@": "-", "@,@": ",", "@.@": ".", "-": "-", "/": "/", "_": "_"}

    def __init__(self) -> None:
        self.gap = False  # whether a word that comes now needs a space before it
        self.quoted = False

    def __call__(self, token: str) -> str:
        """The token with the space before it, if there is one."""
        if token == EOS:
            self.gap = self.quoted = False
            return "\n"
        if token in self.JOINING:
            before, after, token = False, False, self.JOINING[token]
        elif token == '"':
            before, after = not self.quoted, self.quoted
            self.quoted = not self.quoted
        else:
            before, after = token not in self.CLOSING, token not in self.OPENING
        text = (" " if before and self.gap else "") + token
        self.gap = after
        return text


class SentenceCase:
    """Capitalizes the first word of each sentence, and the English "i", token by token.

    Example:
        >>> case = SentenceCase()
        >>> [case(token) for token in ["and", "i", "wept", ".", "then", "<eos>", "we", "ate"]]
        ['And', 'I', 'wept', '.', 'Then', '<eos>', 'We', 'ate']
    """

    def __init__(self) -> None:
        self.starting = True

    def __call__(self, token: str) -> str:
        """The token as it is written here."""
        if token in {EOS, ".", "!", "?", "؟", "।"}:
            self.starting = True
            return token
        if token == UNKNOWN:
            self.starting = False
        if not token[0].isalpha():
            return token
        first, self.starting = self.starting, False
        if first or token == "i" or token.startswith("i'"):
            return token[0].upper() + token[1:]
        return token


def choose_tokenizer(sample: str) -> tuple[str, str]:
    """The tokenizer that suits a text, and why.

    Example:
        >>> choose_tokenizer("In the beginning was the Word, and the Word was with God.")
        ('words', '')
        >>> choose_tokenizer("道可道，非常道。名可名，非常名。")[0]
        'characters'
    """
    letters = sum(character.isalpha() for character in sample)
    if not letters:
        return "spaces", "the text has no letters, so it is split at spaces"
    unspaced = len(_UNSPACED.findall(sample))
    if unspaced > 0.2 * letters:
        return "characters", "the language is written without spaces, so the text is split into characters"
    if len(re.findall(r"[{}()\[\];=<>_]", sample)) > 0.05 * len(sample):
        return "characters", "this looks like source code, so the text is split into characters"
    return "words", ""


# Thai, Lao, Tibetan, Burmese, Khmer; Hiragana, Katakana; Han. Korean has spaces.
_UNSPACED = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@cache
def word_pattern() -> re.Pattern[str]:
    """A line break; ``<unk>``; a word with inner hyphens and apostrophes; a possessive ending; a number; or
    any other sign by itself.

    Letters take their combining marks with them (Arabic, Hindi), which ``re`` does not count as letters.
    """
    marks = _ranges(code for code in range(0x300, 0x10000) if unicodedata.category(chr(code))[0] == "M")
    word = rf"[^\W\d_]+(?:[{marks}]+[^\W\d_]*)*"
    return re.compile(rf"\n|{UNKNOWN}|{word}(?:(?:-|'(?!s\b)){word})*|'s\b|\d+(?:[.,]\d+)*|[^\s\0]")


def _ranges(codes: Iterable[int]) -> str:
    """Characters as the inside of a regular expression's brackets."""
    parts: list[list[int]] = []
    for code in codes:
        if parts and parts[-1][1] == code - 1:
            parts[-1][1] = code
        else:
            parts.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in parts)


def _split_at_spaces(text: str) -> list[str]:
    first, *lines = text.split("\n")
    tokens = first.split()
    for line in lines:
        tokens.append(EOS)
        tokens += line.split()
    return tokens


def _characters(text: str) -> list[str]:
    return list(map(_SIGNS.get, text, text))


# White space, all of it below U+3001, cannot stand in a line of vocabulary.txt.
_SIGNS = {chr(code): SPACE for code in range(0x3001) if chr(code).isspace()} | {"\n": EOS, "\t": TAB}
