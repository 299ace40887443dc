"""``pru data``: get a named corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.console import output
from torch_pru.cli.progress import bar


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="ptb or wikitext-2.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Adopt the copy in this folder instead of downloading."),
    ] = None,
) -> None:
    """Fetch a corpus, or adopt a copy.

    Either must be the published text to the byte. It goes to $PRU_DATA, or to the user's cache. The built-in
    corpus king-james needs nothing.
    """
    from torch_pru.lm.data import adopt, fetch, load_corpus

    if source is not None:
        folder = adopt(name, source)
    else:
        with bar(f"downloading {name}") as advance:
            folder = fetch(name, progress=advance)
    corpus = load_corpus(name)
    console = output()
    console.print(f"{name} is at {folder}", soft_wrap=True)
    counts = [f"{split} {len(corpus.split(split)):,}" for split in ("train", "valid", "test")]
    console.print(f"{', '.join(counts)} tokens; {len(corpus.vocabulary):,} words", soft_wrap=True)
