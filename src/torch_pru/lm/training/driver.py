"""Trains one run, or several on one device at the same time.

Several runs take turns, one step each; on a GPU each run has its own stream. Kernels of different streams run
in parallel, those of different processes one after the other, so one process with several runs can use a GPU
that a single PRU would leave mostly idle.
"""

from __future__ import annotations

import gc
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, is_subwords
from torch_pru.lm.data.corpus import Corpus, load_corpus
from torch_pru.lm.data.subwords import Subwords
from torch_pru.lm.device import choose_device
from torch_pru.lm.files import locked
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World, joined_world
from torch_pru.lm.training.progress import (
    Interrupted,
    ProgressListener,
    ProgressNotifier,
    StopRequest,
    TrainingProgress,
)
from torch_pru.lm.training.trainer import Trainer
from torch_pru.ops import cuda

MAX_RUNS = 16
"""PyTorch has 32 streams per GPU and reuses them. A run needs two, its own and one to capture graphs on. Runs
on the same stream would also share cuBLAS's workspace, which captured steps write to."""

MAX_QUEUED = 16
"""Turns that the device may be behind the host: enough work for a run while the host waits for another one,
which takes about twenty steps if that one validates. A stop has to wait for them, too."""

POLL_SECONDS = 1e-4
"""Time between two looks at the device, a small part of a step."""


class RunStart:
    """How a run starts. Mistakes in its arguments raise on construction, before anything is built.

    Attributes:
        path: the run folder.
        config: all settings.
        tokenizer: what `load_corpus` needs beside the name of the corpus.
        source: the run that this one continues, or None.
    """

    path: Path
    config: Config
    tokenizer: str | Subwords
    source: RunFolder | None = None

    def check_corpus(self, corpus: Corpus) -> None:
        """Raise if the text has changed since the source started."""
        if self.source is not None:
            self.source.refuse_other_text(corpus)

    def start(self, trainer: Trainer, corpus: Corpus) -> None:
        """Create or read the run folder, which is locked by now, and put the trainer in its initial state."""
        raise NotImplementedError


def run_all(starts: Sequence[RunStart], progress: ProgressListener | None) -> list[RunFolder]:
    """Train all runs to their ends and return them in the same order.

    A run that fails does not stop the others.

    Raises:
        Interrupted: after a signal, when all runs have been saved.
        RunsFailedError: at the end, if some of several runs failed. The error of a single run is not wrapped.
    """
    check_folders(starts)
    failures = Failures()
    with joined_world(common_device(starts)) as world, gpu_shared_by(len(starts), world.device):
        check_processes(world, len(starts))
        runs = build_runs(starts, world)
        listener = progress if world.main else None
        with ExitStack() as locks, StopRequest() as stop, ProgressNotifier(listener, stop) as notify:
            world.give_up_when(lambda: bool(stop.number))
            # After all trainers are built, so that a mistake in one leaves no folder behind.
            with world.errors_of_main():
                for start in starts if world.main else ():
                    locks.enter_context(locked(start.path))
            for run in runs:
                run.start(stop)
            interrupts = take_turns(runs, notify, failures)
            signal = int(world.largest([stop.number])[0])
    finished = [start.path for start in starts if start.path not in failures.errors]
    if signal and not interrupts:  # it came too late for these runs, but not for what would follow
        interrupts = [Interrupted(signal, str(path), finished=True) for path in finished]
    if interrupts:
        interrupts[0].message = "\n".join([*map(str, interrupts), *failures.lines()])
        raise interrupts[0]
    result = [RunFolder.open(path) for path in finished]
    failures.raise_any(result)
    return result


def check_folders(starts: Sequence[RunStart]) -> None:
    """Raise if there are too many runs, or two in one folder."""
    if not 1 <= len(starts) <= MAX_RUNS:
        raise PRUError(f"{len(starts)} runs cannot be trained at the same time; give 1 to {MAX_RUNS}")
    if len({start.path.resolve() for start in starts}) != len(starts):
        paths = ", ".join(str(start.path) for start in starts)
        raise PRUError(f"each run needs a folder of its own; got {paths}")


def common_device(starts: Sequence[RunStart]) -> str:
    """The name of the device that all runs use."""
    devices = {str(choose_device(start.config.training.device)) for start in starts}
    if len(devices) > 1:
        raise PRUError(
            f"runs that are trained at the same time need one device; these have {', '.join(sorted(devices))}"
        )
    return starts[0].config.training.device


def check_processes(world: World, runs: int) -> None:
    """Raise if several processes would train several runs."""
    if world.size > 1 and runs > 1:
        raise PRUError(
            f"{world.size} processes train one run at a time; to train several runs at the same time, start "
            f"without torchrun"
        )


@contextmanager
def gpu_shared_by(runs: int, device: torch.device) -> Iterator[None]:
    """Inside this context, the fused kernels leave room on the GPU for this number of runs."""
    if device.type != "cuda":
        yield
        return
    cuda.share(runs)
    try:
        yield
    finally:
        cuda.share(1)


def build_runs(starts: Sequence[RunStart], world: World) -> list[ActiveRun]:
    """Build the trainer of each run; a corpus of several runs is read once."""
    corpora: dict[object, Corpus] = {}
    runs = []
    for start in starts:
        name = start.config.data.corpus
        key = name, start.config.data.tokenizer if is_subwords(start.config.data.tokenizer) else ""
        corpora[key] = corpora.get(key) or load_shared_corpus(name, start.tokenizer, world)
        start.check_corpus(corpora[key])
        runs.append(ActiveRun(start, corpora[key], world, own_stream=len(starts) > 1))
    return runs


def load_shared_corpus(name: str, tokenizer: str | Subwords, world: World) -> Corpus:
    """Load a corpus in the main process first, so that the others find it prepared."""
    if not world.main:
        world.from_main(0.0)
    corpus = load_corpus(name, tokenizer)
    if world.main:
        world.from_main(0.0)
    return corpus


class ActiveRun:
    """A run that is being trained: its trainer, its stream, and how far the device is behind the host.

    With ``own_stream``, everything that belongs to the run happens on its own stream, where PyTorch's
    allocator also keeps its memory. So no run waits for another, and none has to tell the allocator about
    another stream.
    """

    def __init__(self, start: RunStart, corpus: Corpus, world: World, *, own_stream: bool) -> None:
        self.path, self.corpus, self.world = start.path, corpus, world
        self._start = start
        self.stream = torch.cuda.Stream(world.device) if own_stream and world.device.type == "cuda" else None
        with self._on_stream():
            self.trainer = Trainer(start.config, corpus, world)
        self.turns = 0
        self.unfinished: deque[torch.cuda.Event] = deque()  # ends of turns that the device may work on

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def start(self, stop: StopRequest) -> None:
        """Create or open the run folder, and prepare the first turn."""
        with self._on_stream():
            self._start.start(self.trainer, self.corpus)
        self.world.barrier()  # the main process has created the folder
        run = RunFolder.open(self.path)
        if self.world.main and not self.trainer.finished:
            run.write_environment(self.world.device, self.world.size)
        self.steps = self.trainer.fit(run, stop)

    def take_turn(self) -> TrainingProgress | None:
        """Take a step, or end an epoch. Raises StopIteration at the end of the run."""
        self.turns += 1
        with self._on_stream():
            progress = next(self.steps)
            if self.stream is not None:
                self.unfinished.append(self.stream.record_event())
        return progress

    def queued(self) -> int:
        """Turns that the device has not finished."""
        while self.unfinished and self.unfinished[0].query():
            self.unfinished.popleft()
        return len(self.unfinished)

    def ready(self) -> bool:
        """Whether this run may queue a turn; one in which the host waits, only when nothing is queued."""
        return self.queued() < (1 if self._will_wait() else MAX_QUEUED)

    def order(self) -> tuple[bool, int, int]:
        """Sort key of the next turn, lowest first.

        Turns in which the host waits come last, so that the device is busy with the others; then the run with
        the least queued work.
        """
        return self._will_wait(), self.queued(), self.turns

    def _will_wait(self) -> bool:
        """Whether the host waits for the device in the next turn."""
        return self.stream is not None and self.trainer.next_step_synchronizes()

    def release(self) -> None:
        """Free the memory for the other runs, and the graphs, even if an error keeps the trainer alive."""
        self.unfinished.clear()
        if self.trainer.graphed_step is not None:
            self.trainer.graphed_step.graphs.release()
        del self.trainer, self.steps
        if self.stream is not None:
            gc.collect()  # now, and not while another run captures a graph
            torch.cuda.empty_cache()  # memory that was allocated on another stream cannot be reused


def take_turns(runs: Sequence[ActiveRun], notify: ProgressNotifier, failures: Failures) -> list[Interrupted]:
    """Train until each run is finished, has failed or was interrupted; returns the interrupts."""
    working, interrupts = list(runs), []
    while working:
        run = next_run(working)
        try:
            progress = run.take_turn()
        except StopIteration:
            pass
        except Interrupted as interrupt:
            interrupts.append(interrupt)
        except Exception as error:
            if len(runs) == 1:
                run.release()
                raise
            failures.add(run.path, error)
            if len(working) > 1:  # which may take hours
                warnings.warn(f"failed: {failures.lines()[-1]}; the others continue", stacklevel=2)
        else:
            if progress is not None:
                notify(progress)
            continue
        working.remove(run)
        run.release()
    return interrupts


def next_run(working: Sequence[ActiveRun]) -> ActiveRun:
    """The run whose turn it is, when one of them may queue another turn."""
    while not (ready := [run for run in working if run.ready()]):
        time.sleep(POLL_SECONDS)
    return min(ready, key=lambda run: run.order())


class RunsFailedError(PRUError):
    """Some of several runs failed; the others have finished.

    Attributes:
        errors: the errors by run folder.
        finished: the other runs.
    """

    def __init__(self, message: str, errors: dict[Path, Exception], finished: list[RunFolder]) -> None:
        super().__init__(message)
        self.errors = errors
        self.finished = finished


class Failures:
    """The errors of some of several runs, kept until the others have finished.

    Example:
        >>> failures = Failures()
        >>> failures.add(Path("runs/a-1"), PRUError("the loss has exploded"))
        >>> failures.lines()
        ['runs/a-1: the loss has exploded']
    """

    def __init__(self) -> None:
        self.errors: dict[Path, Exception] = {}

    def add(self, path: Path, error: Exception) -> None:
        """Add the error of a run, and free what its traceback holds: a whole model."""
        traceback.clear_frames(error.__traceback__)
        self.errors[path] = error

    def lines(self) -> list[str]:
        """One line per run."""
        return [f"{path}: {describe(error)}" for path, error in self.errors.items()]

    def raise_any(self, finished: list[RunFolder]) -> None:
        """Raise, if there are errors: the error of a single run as it is, else a `RunsFailedError`."""
        errors = list(self.errors.values())
        if not errors:
            return
        if len(errors) == 1 and not finished:
            raise errors[0]
        message = f"{len(errors)} of {len(errors) + len(finished)} runs failed: {'; '.join(self.lines())}"
        raise RunsFailedError(message, self.errors, finished) from ExceptionGroup("runs", errors)


def describe(error: Exception) -> str:
    """The message of an error, preceded by its type unless it is a `PRUError`."""
    return str(error) if isinstance(error, PRUError) else f"{type(error).__name__}: {error}"
