"""``pru train``, ``pru resume`` and ``pru finetune``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from torch_pru.cli.checks import check_recipes, check_runs, opened_to_finetune, opened_to_resume
from torch_pru.cli.console import messages, output, processes, rank
from torch_pru.cli.settings import SET_HELP, parse_settings

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.run import RunFolder

Result = TypeVar("Result")


def train(
    recipes: Annotated[
        list[str] | None, typer.Argument(metavar="RECIPE", help="Names (see pru recipes) or TOML files.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the run folders go.")] = Path("runs"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Short for --set seed=...")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Train each recipe N times: seed, seed + 1, ...")
    ] = 1,
    device: Annotated[str | None, typer.Option(help="Short for --set device=...: cpu, cuda, ...")] = None,
) -> None:
    """Train recipes into new run folders.

    On a GPU several train at the same time, 16 at most; on a CPU and under torchrun one after the other.

    Without a recipe: quickstart, minutes on two CPU cores, with a built-in text and no network.

    Ctrl-C saves; pru resume goes on.
    """
    from torch_pru.lm import training
    from torch_pru.lm.recipe import load_recipe

    changes = parse_settings(settings)
    changes |= {} if seed is None else {"seed": str(seed)}
    changes |= {} if device is None else {"device": device}
    loaded = [load_recipe(recipe, changes) for recipe in recipes or ["quickstart"]]
    check_recipes(loaded, texts=len(loaded) * seeds > 1)  # a single run finds mistakes in its text at once
    configs = [with_seed(config, number) for config in loaded for number in range(seeds)]
    with new_folders(out, [config.name for config in configs]) as folders:
        tasks = []
        for config, folder in zip(configs, folders, strict=True):
            title = f"training {config.name} (seed {config.training.seed}) into {folder}"
            tasks.append(Task(folder, config, partial(training.train, config, folder), title))
        carry_out(tasks, partial(training.train_together, configs, folders), "training")


def with_seed(config: Config, number: int) -> Config:
    """The configuration of a recipe's run with this number, from 0."""
    training = dataclasses.replace(config.training, seed=config.training.seed + number)
    return dataclasses.replace(config, training=training)


@dataclass(frozen=True)
class Task:
    """One run's share of a command: where it goes, its settings, what does it alone, and how that is said."""

    folder: Path
    config: Config
    work: Callable[..., RunFolder]
    title: str


def carry_out(tasks: list[Task], together: Callable[..., list[RunFolder]], verb: str) -> None:
    """At the same time on a GPU, else one after the other."""
    if share_a_gpu([task.config for task in tasks]):
        at_once(tasks, together, verb)
    else:
        in_sequence(tasks)


def share_a_gpu(configs: list[Config]) -> bool:
    """Whether runs train at the same time. On a CPU that gains nothing: they would share the cores."""
    from torch_pru.lm.device import choose_device

    if len(configs) == 1 or processes() > 1:
        return False
    devices = {choose_device(config.training.device) for config in configs}
    return len(devices) == 1 and devices.pop().type == "cuda"


def at_once(tasks: list[Task], together: Callable[..., list[RunFolder]], verb: str) -> None:
    """All at the same time; those that finish have their ending even where others failed."""
    from torch_pru.lm.training import RunsFailed

    folders = [task.folder for task in tasks]
    names = ", ".join(f"{task.folder.name} (seed {task.config.training.seed})" for task in tasks)
    title = f"{verb} {len(folders)} runs in {folders[0].parent}: {names}"
    try:
        runs = watched(together, title, folders)
    except RunsFailed as failed:
        for run in failed.finished:
            ending(run)
        raise
    for run in runs:
        ending(run)


def in_sequence(tasks: list[Task]) -> None:
    """One after the other. One that fails does not stop the next."""
    from torch_pru.lm.training import Failures, Interrupted

    failures, finished = Failures(), []
    for number, task in enumerate(tasks, start=1):
        try:
            run = watched(task.work, task.title)
        except Interrupted:
            if left := [f"{one.folder} (seed {one.config.training.seed})" for one in tasks[number:]]:
                messages().print(f"not begun: {', '.join(left)}", soft_wrap=True)
            raise
        except Exception as error:
            if processes() > 1:  # the others may be in the middle of it
                raise
            failures.add(task.folder, error)
            if task is not tasks[-1]:
                messages().print(f"failed: {failures.lines()[-1]}", soft_wrap=True)
        else:
            finished.append(run)
            ending(run)
    failures.raise_any(finished)


def resume(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of interrupted runs.")],
) -> None:
    """Go on with interrupted runs.

    Each from its last checkpoint; on a GPU several at the same time. A finished run is left as it is.
    """
    from torch_pru.lm import training
    from torch_pru.lm.run import RunFolder

    check_runs(runs, opened_to_resume)
    opened = [RunFolder.open(run) for run in runs]
    tasks = [
        Task(run.path, run.config, partial(training.resume, run.path), f"resuming {run.path}")
        for run in opened
    ]
    carry_out(tasks, partial(training.resume_together, [run.path for run in opened]), "resuming")


def finetune(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
) -> None:
    """Take finished runs further.

    The paper's second stage, from each RUN into RUN-finetuned: rounds of averaged SGD, repeated while
    validation improves. On a GPU several runs at the same time.

    Settings are the run's, with what its recipe changes under [finetuning]; --set comes on top.
    """
    from torch_pru.lm import training
    from torch_pru.lm.recipe import finetuning_settings
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training.start import second_stage_folder

    changes = parse_settings(settings)
    check_runs(runs, partial(opened_to_finetune, overrides=changes))
    sources = [RunFolder.open(run) for run in runs]
    tasks = [
        Task(
            second_stage_folder(source.path),
            finetuning_settings(source.config, changes),
            partial(training.finetune, source.path, overrides=changes),
            f"finetuning {source.path}",
        )
        for source in sources
    ]
    together = partial(training.finetune_together, [source.path for source in sources], changes)
    carry_out(tasks, together, "finetuning")


def watched(work: Callable[..., Result], title: str, folders: Sequence[Path] = ()) -> Result:
    """Let ``work(progress=...)`` run under a live bar, or one for each of several run folders."""
    from torch_pru.cli.training_view import TrainingView
    from torch_pru.lm.training import Interrupted

    console = messages()
    console.print(title, soft_wrap=True)
    try:
        with TrainingView(console, folders) as view:
            return work(progress=view)
    except Interrupted as stop:
        console.print(str(stop), soft_wrap=True)
        raise


def ending(run: RunFolder) -> None:
    """What a finished run has come to, and what to do with it."""
    from torch_pru.cli.quickstart import show_quickstart
    from torch_pru.lm.evaluation.static import format_perplexity, perplexity
    from torch_pru.lm.run import pru_command

    if rank() != 0:
        return
    if run.config.data.corpus == "king-james":
        show_quickstart(run)
        return
    console = output()
    if epochs := run.epochs():  # none where metrics.jsonl is lost
        lowest = epochs[-1]["best_valid_loss"]
        best = f"at epoch {epoch}" if (epoch := run.best_epoch()) else "before the first"
        console.print(
            f"{run.path}: best validation perplexity {format_perplexity(perplexity(lowest))} {best} "
            f"of {len(epochs)} (at batch {run.config.training.valid_batch}, which only steers)",
            soft_wrap=True,
        )
    console.print(f"next: {pru_command('evaluate', run.path)}", soft_wrap=True)


@contextmanager
def new_folders(out: Path, names: Sequence[str]) -> Iterator[list[Path]]:
    """For each name the first of ``name-1``, ``name-2``, ... that is free, made at once: another command that
    starts now takes the next. Those that no run was begun in are removed at the end.

    Under ``torchrun`` all processes must find the same ones free, so that none is made before they have met.
    """
    alone = processes() == 1
    folders: list[Path] = []
    for name in names:
        number = 1
        while (folder := out / f"{name}-{number}") in folders or not (take if alone else is_free)(folder):
            number += 1
        folders.append(folder)
    try:
        yield folders
    finally:
        for folder in folders if alone else ():
            with suppress(OSError):  # a run's is not empty
                folder.rmdir()


def is_free(folder: Path) -> bool:
    """Whether there is nothing of that name."""
    return not folder.exists()


def take(folder: Path) -> bool:
    """Make the folder; False where there is something of that name."""
    from torch_pru.lm.data.storage import make_folder, writing

    make_folder(folder.parent)
    with writing(folder):
        try:
            folder.mkdir()
        except FileExistsError:
            return False
    return True
