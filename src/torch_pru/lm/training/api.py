"""``train``, ``resume`` and ``finetune``, for one run or for several on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

import torch

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import save_checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.data.corpus import Corpus, located
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.device import choose_device
from torch_pru.lm.recipe import finetuning_settings
from torch_pru.lm.run import RunFolder, pru_command, refuse_existing_run
from torch_pru.lm.training.driver import RunStart, run_all
from torch_pru.lm.training.progress import ProgressListener
from torch_pru.lm.training.trainer import Trainer

RunPath = str | Path


@overload
def train(config: Config, run_folder: RunPath, *, progress: ProgressListener | None = None) -> RunFolder: ...


@overload
def train(
    config: Sequence[Config], run_folder: Sequence[RunPath], *, progress: ProgressListener | None = None
) -> list[RunFolder]: ...


def train(
    config: Config | Sequence[Config],
    run_folder: RunPath | Sequence[RunPath],
    *,
    progress: ProgressListener | None = None,
) -> RunFolder | list[RunFolder]:
    """Train a model into a new run folder, until the last epoch.

    Given lists, it trains several models at the same time on one device, at most 16. On a CPU each of them
    ends with the weights that it would have had alone, bit for bit, but nothing is gained. A run that fails
    warns and does not stop the others.

    Ctrl-C, SIGTERM and SIGHUP save all runs and raise ``Interrupted``, a ``SystemExit`` with status 130, 143
    or 129.

    Args:
        config: from ``load_recipe``; a list must have one device.
        run_folder: must not contain a run. A list has one folder per configuration.
        progress: called with a ``TrainingProgress`` every ``log_steps`` steps and after each epoch. If it
            raises, the runs are saved first.

    Returns:
        The run; the runs, in the order of ``config``, if it is a list.

    Raises:
        RunsFailedError: when all runs have ended, if some of several failed.

    Example::

        from torch_pru.lm import load_recipe, train

        run = train(load_recipe("quickstart"), "runs/first", progress=print)
        model = run.model("best")
    """
    if isinstance(config, Config):
        return run_all([NewRun(config, one_path(run_folder))], progress)[0]
    folders = [run_folder] if isinstance(run_folder, RunPath) else run_folder
    if len(config) != len(folders):
        raise PRUError(f"each run needs a folder of its own: {len(config)} runs, {len(folders)} folders")
    return run_all([NewRun(*pair) for pair in zip(config, folders, strict=True)], progress)


@overload
def resume(  # type: ignore[overload-overlap]  # a string is also a sequence of strings
    run: RunPath, *, progress: ProgressListener | None = None
) -> RunFolder: ...


@overload
def resume(run: Sequence[RunPath], *, progress: ProgressListener | None = None) -> list[RunFolder]: ...


def resume(
    run: RunPath | Sequence[RunPath], *, progress: ProgressListener | None = None
) -> RunFolder | list[RunFolder]:
    """Continue an interrupted run from its last checkpoint, or from the start if there is none.

    On a CPU the run ends with the weights and metrics that it would have had without the interruption, bit
    for bit. A finished run is left unchanged.

    Args:
        run: the run folder; a list continues several runs at the same time, see `train`.
        progress: as for `train`.
    """
    if isinstance(run, RunPath):
        return run_all([InterruptedRun(run)], progress)[0]
    return run_all([InterruptedRun(one) for one in run], progress)


@overload
def finetune(  # type: ignore[overload-overlap]  # a string is also a sequence of strings
    run: RunPath,
    run_folder: RunPath | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    progress: ProgressListener | None = None,
) -> RunFolder: ...


@overload
def finetune(
    run: Sequence[RunPath],
    run_folder: Sequence[RunPath] | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    progress: ProgressListener | None = None,
) -> list[RunFolder]: ...


def finetune(
    run: RunPath | Sequence[RunPath],
    run_folder: RunPath | Sequence[RunPath] | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    progress: ProgressListener | None = None,
) -> RunFolder | list[RunFolder]:
    """The paper's second stage: averaged SGD from the best weights of a finished run, into a new run folder.

    A round ends when the non-monotonic trigger fires again. Another round follows as long as the last one
    lowered the validation loss, for at most ``epochs`` epochs in all.

    Args:
        run: the finished run, which is left unchanged; a list finetunes several runs, see `train`.
        run_folder: the new run folder, by default ``<run>-finetuned``.
        overrides: settings to change, in addition to those that the recipe changes for finetuning; as in
            ``load_recipe``.
        progress: as for `train`.
    """
    if isinstance(run, RunPath):
        folder = None if run_folder is None else one_path(run_folder)
        return run_all([FinetuningRun(run, folder, overrides)], progress)[0]
    folders = [None] * len(run) if run_folder is None or isinstance(run_folder, RunPath) else run_folder
    pairs = zip(run, folders, strict=True)
    return run_all([FinetuningRun(source, folder, overrides) for source, folder in pairs], progress)


def one_path(path: RunPath | Sequence[RunPath]) -> RunPath:
    """The folder of a single run."""
    if not isinstance(path, RunPath):
        raise PRUError(f"run_folder={path!r} must be one path for one run")
    return path


class NewRun(RunStart):
    """A run from its initial weights, in a new folder."""

    def __init__(self, config: Config, path: RunPath) -> None:
        self.path = Path(path)
        refuse_existing_run(self.path)
        self.config = with_precision(dataclasses.replace(config, data=located(config.data)))
        self.tokenizer: str | Subwords = self.config.data.tokenizer

    def start(self, trainer: Trainer, corpus: Corpus) -> None:
        """Create the run folder."""
        if trainer.world.main:
            RunFolder.create(self.path, self.config, corpus)


class InterruptedRun(RunStart):
    """A run from its last checkpoint, or from its initial weights if there is none."""

    def __init__(self, path: RunPath) -> None:
        self.source: RunFolder = RunFolder.open(path)
        self.source.refuse_moved_text()
        self.path, self.config = self.source.path, self.source.config
        self.tokenizer = self.source.corpus_tokenizer

    def start(self, trainer: Trainer, corpus: Corpus) -> None:
        """Load the last checkpoint."""
        checkpoint = self.source.checkpoint()
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
            if trainer.schedule.stage != self.source.stage:
                raise PRUError(
                    f"the checkpoint in {self.source.checkpoints} has stage {trainer.schedule.stage!r}, but "
                    f"run.json has {self.source.stage!r}"
                )


class FinetuningRun(RunStart):
    """Finetuning of a finished run, in a new folder."""

    def __init__(
        self, source: RunPath, path: RunPath | None = None, overrides: Mapping[str, str] | None = None
    ) -> None:
        self.source: RunFolder = RunFolder.open(source)
        refuse_finetuned_run(self.source)
        self.source.refuse_moved_text()
        self.tokenizer = self.source.corpus_tokenizer
        self.path = Path(path) if path else finetuned_folder(self.source.path)
        refuse_existing_run(self.path)
        checkpoint = self.source.checkpoint()
        if checkpoint is None or not checkpoint.state["finished"]:
            where = self.source.path
            raise PRUError(
                f"the run in {where} is not finished; finish it first: {pru_command('resume', where)}"
            )
        self.checkpoint = checkpoint
        self.config = with_precision(finetuning_settings(self.source.config, overrides))

    def start(self, trainer: Trainer, corpus: Corpus) -> None:
        """Load the best weights of the source, and create the run folder."""
        refuse_existing_run(self.path)  # again: another process may have created it
        trainer.start_finetuning(self.checkpoint)
        checkpoint = trainer.checkpoint()
        if trainer.world.main:  # the checkpoint first, so that every folder with a run.json can be resumed
            save_checkpoint(self.path / "checkpoints", checkpoint)
            RunFolder.create(self.path, self.config, corpus, "finetune")


def refuse_finetuned_run(source: RunFolder) -> None:
    """Raise if a run has already been finetuned: its rounds continued as long as they helped."""
    if source.stage == "finetune":
        raise PRUError(
            f"the run in {source.path} has already been finetuned; if it was interrupted, continue it "
            f"({pru_command('resume', source.path)}); for other settings, finetune the run that it came from"
        )


def finetuned_folder(source: Path) -> Path:
    """The default folder for the finetuning of a run: next to it."""
    return source.with_name(source.name + "-finetuned")


def with_precision(config: Config) -> Config:
    """Replace ``precision="auto"`` by the precision for the run's device, so that the folder records it."""
    if config.training.precision != "auto":
        return config
    device = choose_device(config.training.device)
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    training = dataclasses.replace(config.training, precision="bfloat16" if capable else "float32")
    return dataclasses.replace(config, training=training)
