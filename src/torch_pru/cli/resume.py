"""``pru resume`` and ``pru finetune``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_pru.cli.checks import check_runs, is_finished, opened_to_finetune, opened_to_resume
from torch_pru.cli.console import output, say
from torch_pru.cli.running import Task, carry_out
from torch_pru.cli.settings import SET_HELP, parse_settings

if TYPE_CHECKING:
    from torch_pru.lm.run import RunFolder


def resume(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of interrupted runs.")],
) -> None:
    """Continue interrupted runs.

    Each run continues from its last checkpoint; on a GPU several train at the same time. Finished runs are
    left unchanged.
    """
    from torch_pru.lm import training
    from torch_pru.lm.run import RunFolder

    check_runs(runs, opened_to_resume)
    opened = []
    for run in map(RunFolder.open, runs):
        if is_finished(run):
            say(output(), already_finished(run))
        else:
            opened.append(run)
    if not opened:
        return
    tasks = [
        Task(run.path, run.config, partial(training.resume, run.path), [f"resuming {run.path}"])
        for run in opened
    ]
    carry_out(tasks, resume_together, "resuming")


def resume_together(tasks: list[Task], **options: Any) -> list[RunFolder]:
    """Continue several runs at the same time."""
    from torch_pru.lm import training

    return training.resume([task.folder for task in tasks], **options)


def already_finished(run: RunFolder) -> str:
    """What to say of a run that needs no resume."""
    from torch_pru.lm.metrics import UNFINISHED

    reason = run.stop_reason()  # "not finished" if metrics.jsonl was lost
    why = "" if reason == UNFINISHED else f" ({reason})"
    more = "; to train longer, start a new run with a larger --minutes" if reason == "time is up" else ""
    return f"{run.path} is already finished{why}; nothing to resume{more}"


def finetune(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of finished runs.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help=SET_HELP),
    ] = None,
) -> None:
    """Finetune finished runs.

    The paper's second stage: training continues with averaged weights, in rounds, as long as validation
    improves. The result of each RUN goes to RUN-finetuned. On a GPU several train at the same time.

    The settings are those of the run, with the changes in its recipe's [finetuning] section and in --set.
    """
    from torch_pru.lm import training
    from torch_pru.lm.recipe import finetuning_settings
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training.api import finetuned_folder

    changes = parse_settings(settings)
    check_runs(runs, partial(opened_to_finetune, overrides=changes))
    sources = [RunFolder.open(run) for run in runs]
    tasks = [
        Task(
            finetuned_folder(source.path),
            finetuning_settings(source.config, changes),
            partial(training.finetune, source.path, overrides=changes),
            [f"finetuning {source.path} into {finetuned_folder(source.path)}"],
        )
        for source in sources
    ]
    source_of = {task.folder: source.path for task, source in zip(tasks, sources, strict=True)}

    def together(group: list[Task], **options: Any) -> list[RunFolder]:
        return training.finetune([source_of[task.folder] for task in group], overrides=changes, **options)

    carry_out(tasks, together, "finetuning")
