"""``pru verify``: whether a run folder is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from torch_pru.cli.console import messages, output


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept edited files; leave out damaged lines of the log."),
    ] = False,
) -> None:
    """Check a run folder.

    Says of every file whether it is as the run left it. Exits with status 1 if something is missing, damaged
    or edited.
    """
    from torch_pru.lm.run import pru_command
    from torch_pru.lm.verify import accept as accept_changes
    from torch_pru.lm.verify import verify as look

    if accept:
        accepted = ", ".join(accept_changes(run)) or "nothing, because nothing was changed"
        messages().print(f"accepted: {accepted}", soft_wrap=True)
    findings = look(run)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(finding.item, "ok" if finding.fine else "WRONG", finding.text)
    console = output()
    console.print(table)
    if all(finding.fine for finding in findings):
        console.print("whole, complete and safe to open", soft_wrap=True)
        return
    console.print("safe to open, but not as the run left it: see above", soft_wrap=True)
    if any(finding.acceptable for finding in findings):
        console.print(f"if you made the changes: {pru_command('verify', run)} --accept", soft_wrap=True)
    raise typer.Exit(1)
