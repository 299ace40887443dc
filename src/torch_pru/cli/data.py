"""``pru data``: download a published corpus, or prepare text of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.console import output, say
from torch_pru.cli.progress import bar
from torch_pru.errors import PRUError, did_you_mean
from torch_pru.lm.corpora import BUILT_IN, CORPORA

if TYPE_CHECKING:
    from torch_pru.lm.data import PreparedText

TOKENS_HELP = (
    "How to split the text into tokens: words, cased-words, characters, spaces, bpe:8000 (8,000 subwords, "
    "learned from the text), a tokenizers file (*.json), or auto."
)
SUBWORDS = "subwords: frequent words, parts of words, and single bytes"
VOCABULARY = 10_000
VOCABULARY_HELP = "Keep the N most frequent of the tokens that occur at least twice; all others become <unk>."


def data(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help=f"{', '.join(CORPORA)}, or a name for your own text."),
    ],
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Your text: a file or a folder; may be repeated. For a published corpus: the folder "
            "with its files.",
        ),
    ] = None,
    tokenizer: Annotated[str, typer.Option("--tokens", metavar="KIND", help=TOKENS_HELP)] = "auto",
    vocabulary: Annotated[int, typer.Option(min=3, metavar="N", help=VOCABULARY_HELP)] = VOCABULARY,
) -> None:
    """Download a corpus, or prepare text.

    Train on it with pru train --corpus NAME. It is stored in $PRU_DATA, or in your cache folder. To
    train one model on your own text, pru train --text FILE is enough: it prepares the text and trains.

    With --from, the files of a published corpus must be the published ones, byte for byte.
    """
    console = output()
    if name in (*CORPORA, BUILT_IN):
        published(name, source or [])
        return
    if not source:
        hint = did_you_mean(name, CORPORA)
        raise PRUError(
            f"{name!r} is not a published corpus ({', '.join(CORPORA)}){hint}; to prepare your own text, add "
            f"--from FILE"
        )
    text = prepared(source, name, tokenizer, vocabulary)
    for line in description(text):
        say(console, line)
    console.print(f"next: pru train --corpus {name}", soft_wrap=True)


def published(name: str, source: list[Path]) -> None:
    """Download a published corpus, or take a copy."""
    from torch_pru.lm.data import adopt, fetch, load_corpus

    if len(source) > 1:
        raise PRUError(f"--from was given {len(source)} times; {name!r} needs one folder")
    if source:
        folder = adopt(name, source[0])
    else:
        with bar(f"downloading {name}") as advance:
            folder = fetch(name, progress=advance)
    corpus = load_corpus(name)
    console = output()
    console.print(f"{name} is at {folder}", soft_wrap=True)
    counts = [f"{split} {len(corpus.split(split)):,}" for split in ("train", "valid", "test")]
    console.print(f"{', '.join(counts)} tokens; vocabulary: {len(corpus.vocabulary):,}", soft_wrap=True)


def prepared(source: list[Path], name: str | None, tokenizer: str, vocabulary: int) -> PreparedText:
    """Prepare text under a bar."""
    from torch_pru.lm.data import prepare_text

    with bar("reading the text") as advance:
        return prepare_text(source, name, tokenizer=tokenizer, vocabulary=vocabulary, progress=advance)


def description(text: PreparedText) -> list[str]:
    """A prepared text in a few lines: its files, its parts and its vocabulary."""
    from torch_pru.lm.data.sources import PARTS

    counts = ", ".join(f"{text.tokens[split]:,} {part}" for split, part in PARTS.items())
    lines = [split_line(text), f"tokens: {counts}", f"vocabulary: {text.types:,}"]
    return [*lines, unknown] if (unknown := unknown_line(text)) else lines


def unknown_line(text: PreparedText) -> str:
    """How much of the validation part is ``<unk>``; empty for subwords, which spell every word."""
    from torch_pru.lm.data import TOKENIZERS

    if text.tokenizer not in TOKENIZERS:
        return ""
    return unknown_in_words(text.unknown["valid"], text.tokens["valid"], "validation tokens")


def unknown_in_words(unknown: int, tokens: int, name: str = "tokens") -> str:
    """How many tokens are read as ``<unk>``, and what is counted.

    Example:
        >>> unknown_in_words(3, 12)
        'read as <unk>: 3 of 12 tokens (25.0%), which are outside the vocabulary or <unk> in the text itself'
    """
    return (
        f"read as <unk>: {unknown:,} of {tokens:,} {name} ({unknown / tokens:.1%}), which are outside the "
        f"vocabulary or <unk> in the text itself"
    )


def split_line(text: PreparedText) -> str:
    """The files of a prepared text, and how they were split into tokens."""
    from torch_pru.lm.data import TOKENIZERS

    files = text.sources[0] if len(text.sources) == 1 else f"{len(text.sources):,} files"
    kind = TOKENIZERS.get(text.tokenizer, SUBWORDS)
    return f"{files} ({in_bytes(text.size)}): {text.reason or f'split into {kind}'}"


def in_bytes(size: int) -> str:
    """A size of files.

    Example:
        >>> in_bytes(900), in_bytes(20_480), in_bytes(104_857_600)
        ('900 bytes', '20 kB', '105 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:,.0f} kB" if size < 1_000_000 else f"{size / 1e6:,.3g} MB"
