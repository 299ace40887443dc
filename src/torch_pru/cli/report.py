"""``pru report``: runs beside the paper."""

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
) -> None:
    """Compare runs with the paper.

    Prints Markdown. Scores are those that `pru evaluate` has written to the run folders.
    """
    from torch_pru.lm.report import report as write_report
    from torch_pru.lm.results import keep as keep_run

    names = [run.resolve().name for run in runs]
    if keep is not None and (twice := sorted({name for name in names if names.count(name) > 1})):
        raise PRUError(f"--keep {keep}: several runs are named {', '.join(twice)}; keep them one at a time")
    typer.echo(write_report(runs), nl=False)
    if keep is not None:
        for run in runs:
            keep_run(run, keep)
