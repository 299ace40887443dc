"""Train, resume, finetune: each builds a trainer and lets it work on a run folder."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import save_checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.data.corpus import Corpus, load_corpus
from torch_pru.lm.data.sources import CORPORA
from torch_pru.lm.run import RunFolder, locked, refuse_existing_run
from torch_pru.lm.training.distributed import World, joined_world
from torch_pru.lm.training.progress import Listener
from torch_pru.lm.training.signals import StopRequest
from torch_pru.lm.training.snapshot import restore, snapshot
from torch_pru.lm.training.trainer import Trainer


def train(config: Config, run_folder: str | Path, *, progress: Listener | None = None) -> RunFolder:
    """Train a model into a new run folder, to the last epoch.

    Ctrl-C and SIGTERM save and raise ``Interrupted``, a SystemExit of status 130 or 143.

    Args:
        config: from ``load_recipe``.
        run_folder: must not hold a run yet.
        progress: called with a ``Progress`` every ``log_steps`` steps and after each epoch.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> run = train(load_recipe("quickstart"), "runs/first", progress=print)        # doctest: +SKIP
        >>> model = run.model("best")                                                   # doctest: +SKIP
    """
    path = Path(run_folder)
    refuse_existing_run(path)
    config = with_absolute_corpus(config)
    with joined_world(config.training.device) as world:
        corpus = shared_corpus(config.data.corpus, world)
        trainer = Trainer(config, corpus, world)
        with locked(path) if world.main else nullcontext():
            if world.main:
                RunFolder.create(path, config, corpus.vocabulary)
            return work(trainer, path, progress)


def resume(run: str | Path, *, progress: Listener | None = None) -> RunFolder:
    """Go on with an interrupted run from its last checkpoint, or from the start where there is none.

    On a CPU the run ends with the weights and metrics that it would have had without the interruption, to the
    last bit. A finished run is left as it is.

    Example:
        >>> run = resume("runs/first", progress=print)                                  # doctest: +SKIP
    """
    path = Path(run)
    config = RunFolder.open(path).config
    with joined_world(config.training.device) as world:
        corpus = run_corpus(path, world)
        trainer = Trainer(config, corpus, world)
        with locked(path) if world.main else nullcontext():
            checkpoint = RunFolder.open(path).checkpoint()
            if checkpoint is not None:
                restore(trainer, checkpoint)
            if trainer.finished:
                return RunFolder.open(path)
            return work(trainer, path, progress)


def finetune(
    run: str | Path, run_folder: str | Path | None = None, *, progress: Listener | None = None
) -> RunFolder:
    """The paper's second stage: averaged SGD from the best weights of a finished run, into a new run folder.

    A round ends when the trigger fires again; there is another as long as the last one lowered the validation
    loss. The rounds are in the metrics.

    Args:
        run: the finished run; it is left as it is.
        run_folder: where to; ``<run>-finetuned`` unless said.

    Example:
        >>> finetuned = finetune("runs/first")                                          # doctest: +SKIP
        >>> finetuned.path.name, finetuned.stage                                        # doctest: +SKIP
        ('first-finetuned', 'finetune')
    """
    source = RunFolder.open(run)
    checkpoint = source.checkpoint()
    if checkpoint is None or not checkpoint.state["finished"]:
        raise PRUError(f"the run in {source.path} is not finished; finish it first: pru resume {source.path}")
    path = Path(run_folder) if run_folder else source.path.with_name(source.path.name + "-finetuned")
    refuse_existing_run(path)
    with joined_world(source.config.training.device) as world:
        corpus = run_corpus(source.path, world)
        trainer = Trainer(source.config, corpus, world)
        trainer.start_finetuning(checkpoint)
        with locked(path) if world.main else nullcontext():
            start = snapshot(trainer)
            if world.main:  # the start comes first, so that a folder with a run.json can always be resumed
                save_checkpoint(path / "checkpoints", start)
                RunFolder.create(path, source.config, corpus.vocabulary, "finetune")
            return work(trainer, path, progress)


def work(trainer: Trainer, path: Path, progress: Listener | None) -> RunFolder:
    """Let a trainer run to the end."""
    run = opened(trainer, path)
    with StopRequest() as stop:
        for report in trainer.steps(run, stop):
            if report is not None and progress is not None and trainer.world.main:
                progress(report)
    return run


def opened(trainer: Trainer, path: Path) -> RunFolder:
    """The run folder of a trainer that is about to work, with a note of where it works."""
    world = trainer.world
    world.barrier()  # the folder is there
    run = RunFolder.open(path)
    if world.main:
        run.write_environment(world.device, world.size)
    return run


def shared_corpus(name: str, world: World) -> Corpus:
    """Load a corpus, the main process first, so that the others find it tokenised."""
    if not world.main:
        world.barrier()
    corpus = load_corpus(name)
    if world.main:
        world.barrier()
    return corpus


def run_corpus(path: Path, world: World) -> Corpus:
    """The corpus of a run, which must still have the run's vocabulary."""
    run = RunFolder.open(path)
    corpus = shared_corpus(run.config.data.corpus, world)
    if corpus.vocabulary != run.vocabulary:
        raise PRUError(
            f"the text of corpus={run.config.data.corpus!r} has changed since the run in {path} began: its "
            f"vocabulary is another"
        )
    return corpus


def with_absolute_corpus(config: Config) -> Config:
    """A folder of text by its full path, so that the run can be resumed from anywhere."""
    folder = Path(config.data.corpus).expanduser()
    if config.data.corpus in (*CORPORA, "king-james") or not folder.is_dir():
        return config
    return dataclasses.replace(config, data=dataclasses.replace(config.data, corpus=str(folder.resolve())))
