"""``pru data``: download a published corpus, or prepare text of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.console import output, say
from torch_pru.cli.progress import bar
from torch_pru.errors import PRUError, nearest

if TYPE_CHECKING:
    from torch_pru.lm.data import PreparedText

TOKENS_HELP = "How to split the text into tokens: words, cased-words, characters, spaces or auto."
VOCABULARY_HELP = "Keep at most N different tokens; the others become <unk>."


def data(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="ptb, wikitext-2, or a name for text of your own.")
    ],
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="Your text: a file or a folder; may be repeated. For ptb and "
            "wikitext-2, a folder with a copy.",
        ),
    ] = None,
    tokens: Annotated[str, typer.Option(metavar="KIND", help=TOKENS_HELP)] = "auto",
    vocabulary: Annotated[int, typer.Option(min=3, metavar="N", help=VOCABULARY_HELP)] = 10_000,
) -> None:
    """Get a corpus or prepare your text.

    Prepared text is used by its name: pru train --corpus NAME. It is kept in $PRU_DATA, or in your cache
    folder. For a single run, pru train --text FILE does both steps.

    ptb and wikitext-2 must be the published text, byte for byte.
    """
    from torch_pru.lm.data.sources import CORPORA

    console = output()
    if name in (*CORPORA, "king-james"):
        published(name, source or [])
        return
    if not source:
        hint = nearest(name, CORPORA)
        raise PRUError(
            f"{name!r} is not a published corpus{hint or '; ptb and wikitext-2 are'}; "
            f"to prepare your own text, add --from FILE"
        )
    text = prepared(source, name, tokens, vocabulary)
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
    console.print(f"{', '.join(counts)} tokens; {len(corpus.vocabulary):,} words", soft_wrap=True)


def prepared(source: list[Path], name: str | None, tokens: str, vocabulary: int) -> PreparedText:
    """Prepare text under a bar."""
    from torch_pru.lm.data import prepare_text

    with bar("reading the text") as advance:
        return prepare_text(source, name, tokenizer=tokens, vocabulary=vocabulary, progress=advance)


def description(text: PreparedText) -> list[str]:
    """A prepared text in a few lines."""
    from torch_pru.lm.data import TOKENIZERS

    files = text.sources[0] if len(text.sources) == 1 else f"{len(text.sources):,} files"
    parts = {"train": "to train on", "valid": "for validation", "test": "for testing"}
    counts = ", ".join(f"{text.tokens[split]:,} {use}" for split, use in parts.items())
    return [
        f"{files} ({in_bytes(text.size)}): {text.reason or f'split into {TOKENIZERS[text.tokenizer]}'}",
        f"tokens: {counts}; {text.types:,} different ones; {text.unknown_share('valid'):.1%} of the "
        f"validation part are rare and read as <unk>",
    ]


def in_bytes(size: int) -> str:
    """A size of files.

    Example:
        >>> in_bytes(900), in_bytes(20_480), in_bytes(104_857_600)
        ('900 bytes', '20 kB', '105 MB')
    """
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:,.0f} kB" if size < 1_000_000 else f"{size / 1e6:,.3g} MB"
