"""``pru report``: runs beside the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torch_pru.errors import PRUError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or copies of them without weights.")
    ],
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also copy each run there, without its weights, for later reports."),
    ] = None,
) -> None:
    """Report runs beside the paper's.

    In Markdown, to redirect to a file. Scores are those that `pru evaluate` has left in the folders.
    """
    from torch_pru.lm.report import report as write_report
    from torch_pru.lm.results import keep as keep_run

    names = [run.resolve().name for run in runs]
    if keep is not None and (twice := sorted({name for name in names if names.count(name) > 1})):
        raise PRUError(f"--keep {keep}: several runs are called {', '.join(twice)}; keep them one by one")
    typer.echo(write_report(runs), nl=False)
    if keep is not None:
        for run in runs:
            keep_run(run, keep)
