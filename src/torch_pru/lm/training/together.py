"""Several runs on one device, taking turns step by step; on a GPU each has a stream of its own.

One process can do what several cannot: kernels of different streams run side by side, those of different
processes one after the other. A single PRU leaves most of a large GPU idle.
"""

from __future__ import annotations

import gc
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config
from torch_pru.lm.data.corpus import Corpus
from torch_pru.lm.device import choose_device
from torch_pru.lm.run import RunFolder, locked
from torch_pru.lm.training.api import opened
from torch_pru.lm.training.distributed import World, joined_world
from torch_pru.lm.training.progress import Progress, Teller
from torch_pru.lm.training.signals import Interrupted, StopRequest
from torch_pru.lm.training.start import InterruptedRun, NewRun, SecondStage, Start, shared_corpus
from torch_pru.lm.training.trainer import Trainer
from torch_pru.lm.training.windows import epoch_windows
from torch_pru.ops import cuda

SharedListener = Callable[[Progress, Path], None]
"""Called with where a run stands and with its folder."""

# PyTorch has 32 streams a GPU and then hands them out again. A run needs two, its own and one to capture
# graphs on: runs with the same stream would also share cuBLAS's workspace, which captured steps write to.
MOST_RUNS = 16

# Turns that the device may be behind: what a run has to do while the host waits for another, which takes as
# long as some twenty steps where that one validates. A stop has to wait for them, too.
QUEUED = 16

PAUSE = 1e-4  # seconds between looks at the device, a small part of a step


def train_together(
    configs: Sequence[Config],
    run_folders: Sequence[str | Path],
    *,
    progress: SharedListener | None = None,
) -> list[RunFolder]:
    """Train several models on one device at the same time, each into a new run folder.

    On a CPU each run ends as it would have ended alone, to the last bit, but nothing is gained. A run that
    fails warns at once and does not stop the others. Ctrl-C, SIGTERM and SIGHUP save all runs and raise one
    ``Interrupted``.

    Args:
        configs: from ``load_recipe``, all for the same device; 16 at most.
        run_folders: one for each; none may hold a run yet.
        progress: called with a ``Progress`` and the folder of its run, as often as ``train`` calls its own.

    Returns:
        The runs, in the order of ``configs``.

    Raises:
        RunsFailed: once all are at their end, if some failed.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> configs = [load_recipe("ptb-awd-pru-g4", {"seed": seed}) for seed in "1234"]
        >>> runs = train_together(configs, [f"runs/seed-{seed}" for seed in "1234"])    # doctest: +SKIP
    """
    if len(configs) != len(run_folders):
        raise PRUError(f"{len(configs)} runs need as many different folders; got {len(run_folders)}")
    pairs = zip(configs, run_folders, strict=True)
    return work_together([NewRun(config, folder) for config, folder in pairs], progress)


def resume_together(runs: Sequence[str | Path], *, progress: SharedListener | None = None) -> list[RunFolder]:
    """Go on with several interrupted runs at the same time: ``resume`` for many, see `train_together`.

    Example:
        >>> resume_together(["runs/ptb-pru-g4-1", "runs/ptb-pru-g4-2"])                 # doctest: +SKIP
    """
    return work_together([InterruptedRun(run) for run in runs], progress)


def finetune_together(
    runs: Sequence[str | Path],
    overrides: Mapping[str, str] | None = None,
    *,
    progress: SharedListener | None = None,
) -> list[RunFolder]:
    """Finetune several finished runs at the same time: ``finetune`` for many, see `train_together`.

    Example:
        >>> [run.path.name for run in finetune_together(["runs/seed-1", "runs/seed-2"])]    # doctest: +SKIP
        ['seed-1-finetuned', 'seed-2-finetuned']
    """
    return work_together([SecondStage(run, overrides=overrides) for run in runs], progress)


def work_together(starts: Sequence[Start], progress: SharedListener | None) -> list[RunFolder]:
    """Bring several runs to their ends on one device."""
    refuse_sharing(starts)
    failures = Failures()
    with joined_world(common_device(starts)) as world, sharing(world.device, len(starts)):
        refuse_processes(world)
        members = build_members(starts, world)
        with ExitStack() as locks, StopRequest() as stop, Teller(progress, stop) as tell:
            for start in starts:  # after all are built: a mistake in one leaves no folder behind
                locks.enter_context(locked(start.path))
            for member in members:
                member.begin(stop)
            stops = take_turns(members, tell, failures)
    done = [start.path for start in starts if start.path not in failures.errors]
    if stop.number and not stops:  # too late for these, not for what would come next
        stops = [Interrupted(stop.number, str(path), finished=True) for path in done]
    if stops:
        stops[0].message = "\n".join([*map(str, stops), *failures.lines()])
        raise stops[0]
    runs = [RunFolder.open(path) for path in done]
    failures.raise_any(runs)
    return runs


# ---------------------------------------------------------------------------------------------- before


def refuse_sharing(starts: Sequence[Start]) -> None:
    """Refuse a number of runs that cannot be meant, and two runs in one folder."""
    if not 1 <= len(starts) <= MOST_RUNS:
        raise PRUError(f"{len(starts)} runs cannot train together; it takes 1 to {MOST_RUNS}")
    if len({start.path.resolve() for start in starts}) != len(starts):
        paths = ", ".join(str(start.path) for start in starts)
        raise PRUError(f"{len(starts)} runs need as many different folders; got {paths}")


def common_device(starts: Sequence[Start]) -> str:
    """The device of all runs, by name."""
    devices = {str(choose_device(start.config.training.device)) for start in starts}
    if len(devices) > 1:
        raise PRUError(f"runs that train together need one device; these have {', '.join(sorted(devices))}")
    return devices.pop()


def refuse_processes(world: World) -> None:
    """Either several processes share a batch, or several runs a device."""
    if world.size > 1:
        raise PRUError(
            f"{world.size} processes train one run at a time; start runs that train together without torchrun"
        )


@contextmanager
def sharing(device: torch.device, runs: int) -> Iterator[None]:
    """Inside, the fused kernels leave room on the GPU for so many runs."""
    if device.type != "cuda":
        yield
        return
    cuda.share(runs)
    try:
        yield
    finally:
        cuda.share(1)


def build_members(starts: Sequence[Start], world: World) -> list[Member]:
    """A member for each run; a corpus of several runs is read once."""
    corpora: dict[str, Corpus] = {}
    members = []
    for start in starts:
        name = start.config.data.corpus
        corpora[name] = corpora.get(name) or shared_corpus(name, world)
        start.check(corpora[name])
        members.append(Member(start, corpora[name], world))
    return members


# ----------------------------------------------------------------------------------------------- turns


class Member:
    """A run among others: its trainer, its stream, and how far the device is behind the host.

    Everything of a run, from its first weight on, happens on its own stream, where PyTorch's allocator also
    keeps its memory apart. So no run ever waits for another, and none needs to tell the allocator of it.
    """

    def __init__(self, start: Start, corpus: Corpus, world: World) -> None:
        self.start, self.path, self.corpus = start, start.path, corpus
        self.stream = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None
        with self._on_stream():
            self.trainer = Trainer(start.config, corpus, world)
        self.turns = 0
        self.behind: deque[torch.cuda.Event] = deque()  # the end of each turn that the device may not be at
        self._windows = (-1, 0)  # an epoch and how many windows it has

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin(self, stop: StopRequest) -> None:
        """Make or open the folder; the first turn comes next."""
        with self._on_stream():
            self.start.begin(self.trainer, self.corpus)
        self.steps = self.trainer.fit(opened(self.trainer, self.path), stop)

    def take_turn(self) -> Progress | None:
        """A step, or the end of an epoch; raises StopIteration at the end of the run."""
        self.turns += 1
        with self._on_stream():
            report = next(self.steps)
            if self.stream is not None:
                self.behind.append(self.stream.record_event())
        return report

    def queued(self) -> int:
        """Turns that the device has not finished."""
        while self.behind and self.behind[0].query():
            self.behind.popleft()
        return len(self.behind)

    def ready(self) -> bool:
        """Whether this run may queue more; where the host will wait, only once nothing is left to do."""
        return self.queued() < (1 if self._will_wait() else QUEUED)

    def order(self) -> tuple[bool, int, int]:
        """The smallest comes next: a turn in which the host waits after all others, which then have something
        to do meanwhile; else the run that is nearest to having nothing to do."""
        return self._will_wait(), self.queued(), self.turns

    def _will_wait(self) -> bool:
        """Whether the host waits for the device in the next turn: at a report and at the end of an epoch."""
        if self.stream is None:
            return False
        trainer, settings = self.trainer, self.trainer.config.training
        epoch = trainer.schedule.epoch
        if self._windows[0] != epoch:
            windows = epoch_windows(len(trainer.text), settings.window, settings.seed, epoch)
            self._windows = (epoch, len(windows))
        return (trainer.global_step + 1) % settings.log_steps == 0 or trainer.step_in_epoch == self._windows[
            1
        ]

    def leave(self) -> None:
        """Give the memory back to those who go on."""
        self.behind.clear()
        del self.trainer, self.steps
        if self.stream is not None:
            gc.collect()  # now, not in the middle of another run's capture
            torch.cuda.empty_cache()  # which cannot take what another stream has left in the allocator


def take_turns(members: Sequence[Member], tell: Teller, failures: Failures) -> list[Interrupted]:
    """Let runs work until each is finished, has failed or was stopped; returns what the stopped ones say."""
    working, stops = list(members), []
    while working:
        member = next_member(working)
        try:
            report = member.take_turn()
        except StopIteration:
            pass
        except Interrupted as stop:
            stops.append(stop)
        except Exception as error:
            failures.add(member.path, error)
            if len(working) > 1:  # the others may go on for hours
                warnings.warn(f"failed: {failures.lines()[-1]}; the others go on", stacklevel=2)
        else:
            if report is not None:
                tell(report, member.path)
            continue
        working.remove(member)
        member.leave()
    return stops


def next_member(working: Sequence[Member]) -> Member:
    """Whose turn it is, once there is one that can be given more to do."""
    while not (ready := [member for member in working if member.ready()]):
        time.sleep(PAUSE)  # all have enough to do; whichever is through with some of it first comes next
    return min(ready, key=lambda member: member.order())


# ------------------------------------------------------------------------------------------------ ends


class RunsFailed(PRUError):  # noqa: N818 (it says what happened)
    """Some of several runs failed; the others went on to their end.

    Attributes:
        errors: what went wrong, by run folder.
        finished: the other runs.

    Example:
        >>> try:                                                            # doctest: +SKIP
        ...     train_together(configs, folders)
        ... except RunsFailed as failed:
        ...     print(list(failed.errors), [run.path for run in failed.finished])
    """

    def __init__(self, text: str, errors: dict[Path, Exception], finished: list[RunFolder]) -> None:
        super().__init__(text)
        self.errors = errors
        self.finished = finished


class Failures:
    """What went wrong with some of several runs, kept until the others are at their end.

    Example:
        >>> failures = Failures()
        >>> failures.add(Path("runs/a-1"), PRUError("the loss has run away"))
        >>> failures.lines()
        ['runs/a-1: the loss has run away']
    """

    def __init__(self) -> None:
        self.errors: dict[Path, Exception] = {}

    def add(self, path: Path, error: Exception) -> None:
        """Note the error of a run, and let go of what its traceback holds: a whole model."""
        traceback.clear_frames(error.__traceback__)
        self.errors[path] = error

    def lines(self) -> list[str]:
        """A line for each run."""
        return [f"{path}: {in_words(error)}" for path, error in self.errors.items()]

    def raise_any(self, finished: list[RunFolder]) -> None:
        """Raise what there is: the error itself where there was one run only, else all in one."""
        errors = list(self.errors.values())
        if not errors:
            return
        if len(errors) == 1 and not finished:
            raise errors[0]
        text = f"{len(errors)} of {len(errors) + len(finished)} runs failed: {'; '.join(self.lines())}"
        raise RunsFailed(text, self.errors, finished) from ExceptionGroup("runs", errors)


def in_words(error: Exception) -> str:
    """The text of an error that is meant for users; for another also its kind.

    Example:
        >>> in_words(KeyError("x"))
        "KeyError: 'x'"
    """
    return str(error) if isinstance(error, PRUError) else f"{type(error).__name__}: {error}"
