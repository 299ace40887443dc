"""All commands, and how errors are shown."""

from __future__ import annotations

import sys
import warnings
from io import TextIOWrapper
from typing import Annotated, Any

import torch
import typer
from typer.core import TyperGroup

import torch_pru
from torch_pru.cli import (
    analyze,
    compare,
    data,
    evaluate,
    export,
    generate,
    page,
    recipes,
    report,
    resume,
    score,
    settings,
    sweep,
    train,
    verify,
)
from torch_pru.cli.command import Command
from torch_pru.cli.console import complain, rank, show_warning
from torch_pru.errors import PRUError, SharedError


class Commands(TyperGroup):
    """Turns errors into one line and an exit status: 2 for a PRUError, 1 for errors of the system."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = show_warning
                # PyTorch sets the context itself, and warns if a backward pass starts with a product.
                warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA")
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # `pru generate ... | head`: typer ends quietly
        except (PRUError, OSError, MemoryError, RuntimeError) as error:
            status = status_of(error)
            if status is None or ctx.params.get("debug"):
                raise
            if rank() == 0 or not isinstance(error, SharedError):
                complain(str(error) or "out of memory")  # Python's own MemoryError says nothing
            raise typer.Exit(status) from None


NO_MEMORY = ("DefaultCPUAllocator: ", "Storage size calculation overflowed")
"""PyTorch's messages, in a plain RuntimeError, if a tensor is too large for the memory of a CPU."""


def status_of(error: Exception) -> int | None:
    """The exit status of an error that needs no traceback; None for one that does.

    Example:
        >>> status_of(PRUError("groups=3 does not divide hidden_size=1400"))
        2
    """
    if isinstance(error, PRUError):
        return 2
    if isinstance(error, OSError | MemoryError | torch.OutOfMemoryError):
        return 1
    return 1 if any(words in str(error) for words in NO_MEMORY) else None


app = typer.Typer(
    name="pru",
    cls=Commands,
    help="Train, evaluate and use language models of pyramidal recurrent units (PRUs) and LSTMs.",
    epilog="Start with: pru train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables truncate the names of options on a narrow terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    train.train,
    resume.resume,
    resume.finetune,
    sweep.sweep,
    evaluate.evaluate,
    generate.generate,
    score.score,
    export.export,
    page.page,
    recipes.recipes,
    recipes.params,
    settings.settings,
    data.data,
    report.report,
    analyze.analyze,
    verify.verify,
):
    app.command(cls=Command)(command)
app.command(cls=compare.ManyAgainst)(compare.compare)


def show_version(wanted: bool) -> None:
    """What ``--version`` does."""
    if wanted:
        typer.echo(f"torch-pru {torch_pru.__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Options of every command; `Commands.invoke` reads --debug."""


def main() -> None:
    """What ``pru`` and ``python -m torch_pru`` run.

    Example:
        >>> main()                                                          # doctest: +SKIP
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # the terminal's encoding may lack a character
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="pru")
