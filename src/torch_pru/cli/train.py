"""``pru train``, ``pru resume`` and ``pru finetune``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torch_pru.cli.console import messages, output, rank
from torch_pru.cli.settings import parse_settings

if TYPE_CHECKING:
    from torch_pru.lm.run import RunFolder


def train(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="Names (see pru recipes) or TOML files.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders go.")] = Path("runs"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=...")] = None,
    device: Annotated[str | None, typer.Option(help="Short for --set device=...: cpu, cuda, ...")] = None,
) -> None:
    """Train recipes, one after the other, each into a new run folder.

    Without a recipe: quickstart, minutes on two CPU cores, with a built-in text
    and no network.

    Ctrl-C saves; pru resume goes on.
    """
    from torch_pru.lm.recipe import load_recipe
    from torch_pru.lm.training import train as train_config

    changes = parse_settings(settings)
    changes |= {} if seed is None else {"seed": str(seed)}
    changes |= {} if device is None else {"device": device}
    # All are read before the first is trained: a mistake in the last is found now, not tomorrow.
    configs = [load_recipe(recipe, changes) for recipe in recipes or ["quickstart"]]
    for config in configs:
        folder = new_folder(out, config.name)
        ending(watched(partial(train_config, config, folder), f"training {config.name} into {folder}"))


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an interrupted run.")],
) -> None:
    """Go on with an interrupted run from its last checkpoint."""
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training import resume as resume_run

    RunFolder.open(run)  # so that a wrong folder is said before anything else
    ending(watched(partial(resume_run, run), f"resuming {run}"))


def finetune(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
) -> None:
    """The paper's second stage, from a finished run into RUN-finetuned.

    Rounds of averaged SGD, repeated while validation improves.
    """
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training import finetune as finetune_run

    RunFolder.open(run)
    ending(watched(partial(finetune_run, run), f"finetuning {run}"))


def watched(work: Callable[..., RunFolder], title: str) -> RunFolder:
    """Let ``work(progress=...)`` run under a live bar."""
    from torch_pru.cli.training_view import TrainingView
    from torch_pru.lm.training import Interrupted

    console = messages()
    console.print(title, soft_wrap=True)
    try:
        with TrainingView(console) as view:
            return work(progress=view)
    except Interrupted as stop:
        console.print(str(stop), soft_wrap=True)
        raise


def ending(run: RunFolder) -> None:
    """What a finished run has come to, and what to do with it."""
    from torch_pru.cli.quickstart import show_quickstart

    if rank() != 0:
        return
    if run.config.data.corpus == "king-james":
        show_quickstart(run)
        return
    epochs = [line for line in run.metrics() if line["kind"] == "epoch"]
    best = min(epochs, key=lambda line: line["valid_loss"])
    console = output()
    console.print(
        f"{run.path}: best validation perplexity {best['valid_perplexity']:.2f} at epoch {best['epoch']} of "
        f"{len(epochs)} (at batch {run.config.training.valid_batch}, which only steers)",
        soft_wrap=True,
    )
    console.print(f"next: pru evaluate {run.path}", soft_wrap=True)


def new_folder(out: Path, name: str) -> Path:
    """The first of ``name-1``, ``name-2``, ... that is not there.

    Processes of one run agree on it: the first creates the folder only after all have met.

    Example:
        >>> new_folder(Path("/nowhere"), "quickstart").name
        'quickstart-1'
    """
    number = 1
    while (out / f"{name}-{number}").exists():
        number += 1
    return out / f"{name}-{number}"
