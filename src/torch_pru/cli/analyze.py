"""``pru analyze``: the paper's figures for any runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_pru.cli.checks import check_writable
from torch_pru.cli.console import output
from torch_pru.cli.progress import bar


def analyze(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, shown side by side.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures.")],
    sentence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Sentence for saliency, with the word to predict in brackets; may be repeated.",
            show_default="the paper's five, or sentences of the validation text",
        ),
    ] = None,
    top1: Annotated[
        bool,
        typer.Option(
            "--top1", help="Show the saliency of each model's own first guess instead of the given word."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="confidence, embeddings, saliency, coverage, curves or sweep; may be repeated.",
            show_default="all",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
) -> None:
    """Draw figures about trained models.

    These are the analyses of the paper. Writes figures (SVG and PNG), their numbers (JSON) and one HTML page.
    Analyses that cannot be made are left out, and the page says why.

    curves and sweep need no weights, so copies of run folders without weights are enough for them.
    """
    from torch_pru.analysis import analyze as write_analyses
    from torch_pru.lm.device import choose_device

    check_writable(out)
    sections = write_analyses(
        runs,
        out,
        only=only or None,
        sentences=sentence or None,
        top1=top1,
        device=choose_device(device),
        progress_bar=bar,
    )
    console = output()
    piped = not console.is_terminal  # a terminal wraps at words, a file keeps its lines
    for section in sections:
        console.print(f"{section.title}: {section.sentence}", soft_wrap=piped)
        for picture in section.pictures:
            if picture.sentence:
                console.print(f"  {picture.sentence}", soft_wrap=piped)
    console.print(str(out / "index.html"), soft_wrap=True)
