"""How a run begins: anew, where it was interrupted, or as the second stage of another run.

Each kind knows its folder and settings before anything is built, so that mistakes are found first, and puts a
new trainer where it has to be (``begin``) once nobody else can touch the folder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import save_checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.data.corpus import Corpus, load_corpus, located
from torch_pru.lm.device import choose_device
from torch_pru.lm.recipe import finetuning_settings
from torch_pru.lm.run import RunFolder, pru_command, refuse_existing_run
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.trainer import Trainer


class NewRun:
    """A run from its first weights, into a folder that must not hold a run yet."""

    def __init__(self, config: Config, path: str | Path) -> None:
        self.path = Path(path)
        refuse_existing_run(self.path)
        self.config = with_precision(dataclasses.replace(config, data=located(config.data)))

    def check(self, corpus: Corpus) -> None:
        """Any text will do."""

    def begin(self, trainer: Trainer, corpus: Corpus) -> None:
        if trainer.world.main:
            RunFolder.create(self.path, self.config, corpus)


class InterruptedRun:
    """A run from its last checkpoint, or from its first weights where there has not been one."""

    def __init__(self, path: str | Path) -> None:
        self.run = RunFolder.open(path)
        self.run.refuse_moved_text()
        self.path, self.config = self.run.path, self.run.config

    def check(self, corpus: Corpus) -> None:
        self.run.refuse_other_text(corpus)

    def begin(self, trainer: Trainer, corpus: Corpus) -> None:
        checkpoint = self.run.checkpoint()
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
            if trainer.schedule.stage != self.run.stage:
                raise PRUError(
                    f"the checkpoint in {self.run.checkpoints} has stage {trainer.schedule.stage!r}, and "
                    f"run.json has {self.run.stage!r}"
                )


class SecondStage:
    """Finetuning of a finished run, which is left as it is, into a new folder."""

    def __init__(
        self,
        source: str | Path,
        path: str | Path | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self.source = RunFolder.open(source)
        refuse_second_stage(self.source)
        self.source.refuse_moved_text()
        self.path = Path(path) if path else second_stage_folder(self.source.path)
        refuse_existing_run(self.path)
        checkpoint = self.source.checkpoint()
        if checkpoint is None or not checkpoint.state["finished"]:
            where = self.source.path
            raise PRUError(
                f"the run in {where} is not finished; finish it first: {pru_command('resume', where)}"
            )
        self.checkpoint = checkpoint
        self.config = with_precision(finetuning_settings(self.source.config, overrides))

    def check(self, corpus: Corpus) -> None:
        self.source.refuse_other_text(corpus)

    def begin(self, trainer: Trainer, corpus: Corpus) -> None:
        refuse_existing_run(self.path)  # again: another may have come first
        trainer.start_finetuning(self.checkpoint)
        start = trainer.checkpoint()
        if trainer.world.main:  # the start comes first, so that a folder with a run.json can be resumed
            save_checkpoint(self.path / "checkpoints", start)
            RunFolder.create(self.path, self.config, corpus, "finetune")


def refuse_second_stage(source: RunFolder) -> None:
    """Finetuning is done once: its rounds go on as long as they gain, and a report counts runs as seeds."""
    if source.stage == "finetune":
        raise PRUError(
            f"the run in {source.path} is finetuned already; where it was interrupted, go on with it "
            f"({pru_command('resume', source.path)}); for other settings, finetune the run that it came from"
        )


def second_stage_folder(source: Path) -> Path:
    """Where a run is finetuned to unless said: beside it."""
    return source.with_name(source.name + "-finetuned")


Start = NewRun | InterruptedRun | SecondStage


def shared_corpus(name: str, world: World) -> Corpus:
    """Load a corpus, the main process first, so that the others find it tokenised."""
    if not world.main:
        world.barrier()
    corpus = load_corpus(name)
    if world.main:
        world.barrier()
    return corpus


def with_precision(config: Config) -> Config:
    """What ``precision="auto"`` means on the run's device, so that the folder says what was done."""
    if config.training.precision != "auto":
        return config
    device = choose_device(config.training.device)
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    training = dataclasses.replace(config.training, precision="bfloat16" if capable else "float32")
    return dataclasses.replace(config, training=training)
