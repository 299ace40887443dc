"""``pru report``: runs in one table, or beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.console import output, say, wraps
from torch_pru.cli.tables import print_table
from torch_pru.errors import PRUError

if TYPE_CHECKING:
    from torch_pru.lm.summary import Summary

SPARE = ("minutes", "epochs", "parameters", "ended", "differs in")
"""Columns that a narrow terminal does not show; the first one is left out first."""


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folders, folders of runs, or .jsonl files written by --keep."
        ),
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

    One line per run: the settings in which it differs from the others, its scores, and how it ended. Where
    the output is piped, the table is Markdown. Scores are those that `pru evaluate` has recorded.
    """
    from torch_pru.lm.records import keep as keep_run
    from torch_pru.lm.records import record_paths
    from torch_pru.lm.report import report as write_report
    from torch_pru.lm.summary import summary
    from torch_pru.lm.visible import visible

    given = list({path.resolve(): path for path in record_paths(runs)}.values())  # each once
    kept = [] if keep is None else given
    names = [run.resolve().name for run in kept]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PRUError(f"--keep {keep}: several runs are named {', '.join(twice)}; keep them one at a time")
    found = None if paper else summary(given)
    if found is not None and found.rows and wraps(output()):
        show(found)
    else:
        text = write_report(runs) if found is None else found.markdown()
        typer.echo(visible(text, lines=True), nl=False)
    for run in kept:
        assert keep is not None
        keep_run(run, keep)


def show(found: Summary) -> None:
    """Print the table on a terminal."""
    from torch_pru.lm.summary import LEFT

    console = output()
    print_table(console, found.heading, found.rows, left=LEFT, wrapped=LEFT, spare=SPARE)
    if found.note:
        say(console, found.note)
