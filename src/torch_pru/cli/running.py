"""Runs that a command starts: their folders, their order, their bars, and what is said at the end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torch_pru.cli.console import messages, output, processes, rank, say
from torch_pru.errors import PRUError

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training import Interrupted

HEADER_INDENT = 8
"""Characters before the words of a header, where its lines go on."""

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
    tasks: list[Task], together: Callable[..., list[RunFolder]], verb: str, *, sweep: bool = False
) -> list[RunFolder]:
    """Train all runs: on a GPU up to 16 at the same time, else one after the other.

    A run that fails does not stop the others. Those that finish are summarised even if others failed.

    Args:
        tasks: the runs.
        together: trains a list of tasks at the same time.
        verb: what is being done, for the header.
        sweep: whether the caller shows one table of all runs, and says how to continue after Ctrl-C.
    """
    from torch_pru.lm.training import Failures, Interrupted, RunsFailedError

    groups = groups_of(tasks) if share_a_gpu([task.config for task in tasks]) else [[task] for task in tasks]
    failures, finished = Failures(), []
    for number, group in enumerate(groups, start=1):
        try:
            runs = train_group(group, together, verb)
        except Interrupted as stop:
            if not sweep:
                say_how_to_continue(stop, [task for later in groups[number:] for task in later])
            raise
        except RunsFailedError as failed:
            failures.errors |= failed.errors
            runs = failed.finished
        except Exception as error:
            if processes() > 1 or len(group) > 1:  # other processes may be in the middle of it
                raise
            failures.add(group[0].folder, error)
            if group is not groups[-1]:
                messages().print(f"failed: {failures.lines()[-1]}", soft_wrap=True)
            continue
        for run in [] if sweep else runs:
            ending(run)
        finished += runs
    if not sweep:
        show_all(finished)
    failures.raise_any(finished)
    return finished


def say_how_to_continue(stop: Interrupted, left: Sequence[Task]) -> None:
    """After Ctrl-C: which runs were saved, and which had not started."""
    messages().print(str(stop), soft_wrap=True)
    if names := [f"{task.folder} (seed {task.config.training.seed})" for task in left]:
        messages().print(f"not started: {', '.join(names)}", soft_wrap=True)


def show_all(runs: Sequence[RunFolder]) -> None:
    """One table of several runs that ended with scores."""
    from torch_pru.cli.ending import show_scores

    scored = [run for run in runs if ends_with_scores(run.config)]
    if len(scored) > 1 and rank() == 0:
        show_scores(scored)


def share_a_gpu(configs: list[Config]) -> bool:
    """Whether runs train at the same time. On a CPU that gains nothing: they would share the cores."""
    from torch_pru.lm.device import choose_device

    if len(configs) == 1 or processes() > 1:
        return False
    devices = {choose_device(config.training.device) for config in configs}
    return len(devices) == 1 and devices.pop().type == "cuda"


def groups_of(tasks: list[Task]) -> list[list[Task]]:
    """As few groups as possible, about equally large, that can be trained at the same time."""
    from torch_pru.lm.training.driver import MAX_RUNS

    count = math.ceil(len(tasks) / MAX_RUNS)
    ends = [round(number * len(tasks) / count) for number in range(count + 1)]
    return [tasks[first:last] for first, last in pairwise(ends)]


def train_group(group: list[Task], together: Callable[..., list[RunFolder]], verb: str) -> list[RunFolder]:
    """Train one run, or several at the same time."""
    if len(group) == 1:
        return [watched(group[0].work, group[0].header)]
    folders = [task.folder for task in group]
    names = ", ".join(f"{task.folder.name} (seed {task.config.training.seed})" for task in group)
    title = f"{verb} {len(folders)} runs in {folders[0].parent}: {names}"
    return watched(partial(together, group), [title], folders)


def watched(work: Callable[..., Result], header: Sequence[str], folders: Sequence[Path] = ()) -> Result:
    """Call ``work(progress=...)`` under a live bar, or under one for each of several run folders."""
    from torch_pru.cli.training_view import TrainingView

    console = messages()
    for line in header:
        say(console, line, indent=HEADER_INDENT)
    with TrainingView(console, folders) as view:
        return work(progress=view)


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
    from torch_pru.lm.files import Folder
    from torch_pru.lm.metrics import has_finished
    from torch_pru.lm.run import pru_command

    if not (take if alone else is_free)(folder):
        text = f"{folder} exists already; choose another --name"
        if (folder / "run.json").is_file() and not has_finished(Folder(folder)):
            text += f", or continue the run with: {pru_command('resume', folder)}"
        raise PRUError(text)
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
