"""``pru verify``: check the files of a run folder."""

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
        typer.Option("--accept", help="Accept edited files, and remove damaged lines from the log."),
    ] = False,
) -> None:
    """Check the files of a run folder.

    Reports for each file whether it has changed since the run wrote it. Exits with status 1 if something is
    missing, damaged or edited.
    """
    from torch_pru.lm.run import pru_command
    from torch_pru.lm.verify import accept as accept_changes
    from torch_pru.lm.verify import verify as look

    if accept:
        accepted = ", ".join(accept_changes(run)) or "nothing; no file has changed"
        messages().print(f"accepted: {accepted}", soft_wrap=True)
    findings = look(run)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        state = "ok" if finding.fine else "MISSING" if finding.missing else "CHANGED"
        table.add_row(finding.item, state, finding.text)
    console = output()
    console.print(table)
    if all(finding.fine for finding in findings):
        console.print("all files match their checksums", soft_wrap=True)
        return
    console.print("some files are missing or have changed since the run wrote them", soft_wrap=True)
    if any(finding.acceptable for finding in findings):
        console.print(f"to accept the changes: {pru_command('verify', run)} --accept", soft_wrap=True)
    raise typer.Exit(1)
