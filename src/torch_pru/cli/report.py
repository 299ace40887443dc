"""``pru report``: runs beside the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, or copies of them without weights.")
    ],
) -> None:
    """Print a Markdown report of runs beside the paper's numbers; redirect it to RESULTS.md.

    Scores are those that `pru evaluate` has left in the folders.
    """
    from torch_pru.lm.report import report as write_report

    typer.echo(write_report(runs), nl=False)
