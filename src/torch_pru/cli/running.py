"""Runs that a command starts: their folders, their order, their bars, and what is said at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch_pru.cli.console import messages, output, processes, rank, say
from torch_pru.errors import PRUError

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.run import RunFolder

Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """One run of a command.

    Attributes:
        folder: of the run.
        config: its settings.
        work: trains it; called with ``progress=``.
        header: lines to print before it starts.
    """

    folder: Path
    config: Config
    work: Callable[..., RunFolder]
    header: Sequence[str]


def carry_out(
    tasks: list[Task], together: Callable[..., list[RunFolder]], verb: str, *, endings: bool = True
) -> list[RunFolder]:
    """Train all runs: at the same time on a GPU, else one after the other.

    Args:
        tasks: the runs.
        together: trains all of them at the same time.
        verb: what is being done, for the header.
        endings: whether each run ends with a summary.
    """
    say = ending if endings else _silent
    if share_a_gpu([task.config for task in tasks]):
        return at_once(tasks, together, verb, say)
    return in_sequence(tasks, say)


def share_a_gpu(configs: list[Config]) -> bool:
    """Whether runs train at the same time. On a CPU that gains nothing: they would share the cores."""
    from torch_pru.lm.device import choose_device

    if len(configs) == 1 or processes() > 1:
        return False
    devices = {choose_device(config.training.device) for config in configs}
    return len(devices) == 1 and devices.pop().type == "cuda"


def at_once(
    tasks: list[Task],
    together: Callable[..., list[RunFolder]],
    verb: str,
    say: Callable[[RunFolder], None],
) -> list[RunFolder]:
    """Train all at the same time. Those that finish are summarised even if others failed."""
    from torch_pru.lm.training import RunsFailedError

    folders = [task.folder for task in tasks]
    names = ", ".join(f"{task.folder.name} (seed {task.config.training.seed})" for task in tasks)
    title = f"{verb} {len(folders)} runs in {folders[0].parent}: {names}"
    try:
        runs = watched(together, [title], folders)
    except RunsFailedError as failed:
        for run in failed.finished:
            say(run)
        raise
    for run in runs:
        say(run)
    return runs


def in_sequence(tasks: list[Task], say: Callable[[RunFolder], None]) -> list[RunFolder]:
    """Train one after the other. A run that fails does not stop the next one."""
    from torch_pru.lm.training import Failures, Interrupted

    failures, finished = Failures(), []
    for number, task in enumerate(tasks, start=1):
        try:
            run = watched(task.work, task.header)
        except Interrupted:
            if left := [f"{one.folder} (seed {one.config.training.seed})" for one in tasks[number:]]:
                messages().print(f"not started: {', '.join(left)}", soft_wrap=True)
            raise
        except Exception as error:
            if processes() > 1:  # the others may be in the middle of it
                raise
            failures.add(task.folder, error)
            if task is not tasks[-1]:
                messages().print(f"failed: {failures.lines()[-1]}", soft_wrap=True)
        else:
            finished.append(run)
            say(run)
    failures.raise_any(finished)
    return finished


def watched(work: Callable[..., Result], header: Sequence[str], folders: Sequence[Path] = ()) -> Result:
    """Call ``work(progress=...)`` under a live bar, or under one for each of several run folders."""
    from torch_pru.cli.training_view import TrainingView
    from torch_pru.lm.training import Interrupted

    console = messages()
    for line in header:
        say(console, line)
    try:
        with TrainingView(console, folders) as view:
            return work(progress=view)
    except Interrupted as stop:
        console.print(str(stop), soft_wrap=True)
        raise


def ending(run: RunFolder) -> None:
    """The result of a finished run, and what to do with it."""
    from torch_pru.cli.ending import show_ending
    from torch_pru.lm.evaluation.static import format_perplexity, perplexity
    from torch_pru.lm.run import pru_command

    if rank() != 0:
        return
    if ends_with_scores(run.config):
        show_ending(run)
        return
    console = output()
    if epochs := run.epochs():  # there are none if metrics.jsonl was lost
        lowest = epochs[-1]["best_valid_loss"]
        best = f"epoch {epoch} of {len(epochs)}" if (epoch := run.best_epoch()) else "before the first epoch"
        console.print(
            f"{run.path}: best validation perplexity {format_perplexity(perplexity(lowest))} ({best})",
            soft_wrap=True,
        )
    console.print(f"next: {pru_command('evaluate', run.path)}", soft_wrap=True)


def ends_with_scores(config: Config) -> bool:
    """Whether a run ends with scores and a sample: on the built-in text, or on the user's own.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> ends_with_scores(load_recipe("quickstart")), ends_with_scores(load_recipe("ptb-awd-pru-g4"))
        (True, False)
    """
    from torch_pru.lm.data.corpus import prepared_folder

    corpus = config.data.corpus
    return corpus == "king-james" or prepared_folder(corpus) is not None


def _silent(run: RunFolder) -> None:
    """Say nothing: many runs end in one table."""


@contextmanager
def new_folders(out: Path, names: Sequence[str], *, exact: bool = False) -> Iterator[list[Path]]:
    """Create a folder for each name: the first of ``name-1``, ``name-2``, ... that does not exist.

    Folders are created at once, so that another command that starts now takes the next number. Those that
    stay empty are removed at the end. Under ``torchrun`` all processes must find the same folders, so none is
    created before the processes have joined.

    Args:
        out: the parent folder.
        names: of the runs.
        exact: use the names as they are, and refuse those that are taken.
    """
    alone = processes() == 1
    folders: list[Path] = []
    for name in names:
        if exact:
            folders.append(exact_folder(out / name, alone=alone))
            continue
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


def exact_folder(folder: Path, *, alone: bool) -> Path:
    """A folder by the name that the user chose, if it does not exist yet."""
    if not (take if alone else is_free)(folder):
        raise PRUError(f"{folder} exists already; choose another --name")
    return folder


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
