"""``pru report``: runs in one table, or beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_pru.errors import PRUError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, folders of runs, or compact records (.jsonl)."),
    ],
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Also keep a record of each run, without its weights: a copy in this folder, or a line in "
            "this .jsonl file.",
        ),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Print the paper's tables with the results of the runs.")
    ] = False,
) -> None:
    """Show runs in one table.

    One line per run: the settings in which it differs from the others, its scores, and how it ended. Prints
    Markdown. Scores are those that `pru evaluate` has recorded.
    """
    from torch_pru.lm.records import keep as keep_run
    from torch_pru.lm.report import report as write_report
    from torch_pru.lm.summary import summary
    from torch_pru.lm.visible import visible

    names = [run.resolve().name for run in runs]
    if keep is not None and (twice := sorted({name for name in names if names.count(name) > 1})):
        raise PRUError(f"--keep {keep}: several runs are named {', '.join(twice)}; keep them one at a time")
    text = write_report(runs) if paper else summary(runs)
    typer.echo(visible(text, lines=True), nl=False)
    if keep is not None:
        for run in runs:
            keep_run(run, keep)
