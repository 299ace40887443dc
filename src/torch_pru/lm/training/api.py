"""Train, resume, finetune: each builds a trainer and lets it work on a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from torch_pru.lm.config import Config
from torch_pru.lm.run import RunFolder, locked
from torch_pru.lm.training.distributed import joined_world
from torch_pru.lm.training.progress import Listener, Teller
from torch_pru.lm.training.signals import Interrupted, StopRequest
from torch_pru.lm.training.start import InterruptedRun, NewRun, SecondStage, Start, shared_corpus
from torch_pru.lm.training.trainer import Trainer


def train(config: Config, run_folder: str | Path, *, progress: Listener | None = None) -> RunFolder:
    """Train a model into a new run folder, to the last epoch.

    Ctrl-C, SIGTERM and SIGHUP save and raise ``Interrupted``, a SystemExit of status 130, 143 or 129.

    Args:
        config: from ``load_recipe``.
        run_folder: must not hold a run yet.
        progress: called with a ``Progress`` every ``log_steps`` steps and after each epoch. If it raises, the
            run saves first.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> run = train(load_recipe("quickstart"), "runs/first", progress=print)        # doctest: +SKIP
        >>> model = run.model("best")                                                   # doctest: +SKIP
    """
    return work_on(NewRun(config, run_folder), progress)


def resume(run: str | Path, *, progress: Listener | None = None) -> RunFolder:
    """Go on with an interrupted run from its last checkpoint, or from the start where there was none yet.

    On a CPU the run ends with the weights and metrics that it would have had without the interruption, to the
    last bit. A finished run is left as it is.

    Example:
        >>> run = resume("runs/first", progress=print)                                  # doctest: +SKIP
    """
    return work_on(InterruptedRun(run), progress)


def finetune(
    run: str | Path,
    run_folder: str | Path | None = None,
    overrides: Mapping[str, str] | None = None,
    *,
    progress: Listener | None = None,
) -> RunFolder:
    """The paper's second stage: averaged SGD from the best weights of a finished run, into a new run folder.

    A round ends when the trigger fires again; there is another as long as the last one lowered the validation
    loss, up to ``epochs`` epochs in all. The rounds are in the metrics.

    Args:
        run: the finished run; it is left as it is.
        run_folder: where to; ``<run>-finetuned`` unless said.
        overrides: settings to change, on top of what the recipe says of finetuning; as in ``load_recipe``.

    Example:
        >>> finetuned = finetune("runs/first")                                          # doctest: +SKIP
        >>> finetuned.path.name, finetuned.stage                                        # doctest: +SKIP
        ('first-finetuned', 'finetune')
    """
    return work_on(SecondStage(run, run_folder, overrides), progress)


def work_on(start: Start, progress: Listener | None) -> RunFolder:
    """Bring one run to its end, with all the processes there are."""
    with joined_world(start.config.training.device) as world:
        corpus = shared_corpus(start.config.data.corpus, world)
        start.check(corpus)
        trainer = Trainer(start.config, corpus, world)
        alone = locked(start.path) if world.main else nullcontext()
        with alone, StopRequest() as stop, Teller(progress, stop) as tell:
            start.begin(trainer, corpus)
            run = opened(trainer, start.path)
            for report in trainer.fit(run, stop):
                if report is not None and world.main:
                    tell(report)
            if number := int(world.largest([stop.number])[0]):  # too late for this run, not for the next
                raise Interrupted(number, str(run.path), finished=True)
            return run


def opened(trainer: Trainer, path: Path) -> RunFolder:
    """The run folder of a trainer that is about to work, with a note of where it works."""
    world = trainer.world
    world.barrier()  # the folder is there
    run = RunFolder.open(path)
    if world.main and not trainer.finished:
        run.write_environment(world.device, world.size)
    return run
