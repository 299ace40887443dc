"""Checks of all runs of a command before the first one starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from torch_pru.cli.console import processes, rank
from torch_pru.errors import PRUError, SharedError

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.data.corpus import Corpus
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training.api import FinetuningRun, InterruptedRun
    from torch_pru.lm.training.driver import RunStart


def check_recipes(configs: Sequence[Config], *, texts: bool) -> None:
    """Raise for settings that do not go together; with ``texts``, also for a missing or too short text.

    An error begins with the name of the configuration if there are several.
    """
    from torch_pru.lm.data.corpus import load_corpus

    read, several = cache(load_corpus), len({config.name for config in configs}) > 1
    for config in configs:
        with named(config.name) if several else nullcontext():
            check_settings(config)
            if texts:
                check_text(config, read(config.data.corpus, config.data.tokenizer))


def check_runs(runs: Sequence[Path], start_of: Callable[[Path], RunStart]) -> None:
    """Check runs before the first one starts.

    Args:
        start_of: opens a run, see `opened_to_resume` and `opened_to_finetune`. What it has read is freed
            before the next one is opened.
    """
    from torch_pru.lm.data.corpus import load_corpus

    if len(runs) == 1:
        start_of(runs[0])  # the rest fails at once
        return
    read, seen = cache(load_corpus), set()
    for run in runs:
        with named(str(run)):
            if run.resolve() in seen:
                raise PRUError("the run is given twice; give each run once")
            seen.add(run.resolve())
            start = start_of(run)
            check_settings(start.config)
            corpus = read(start.config.data.corpus, start.tokenizer)
            start.check_corpus(corpus)
            check_text(start.config, corpus)


def is_finished(run: RunFolder) -> bool:
    """Whether training has reached its end."""
    checkpoint = run.checkpoint()
    return checkpoint is not None and bool(checkpoint.state["finished"])


def opened_to_resume(run: Path) -> InterruptedRun:
    """A run that can be resumed: no other process uses it, and it has an intact checkpoint."""
    from torch_pru.lm.files import locked
    from torch_pru.lm.training.api import InterruptedRun

    start = InterruptedRun(run)
    start.source.checkpoint()
    if rank() == 0:
        with locked(start.path):
            pass
    return start


def opened_to_finetune(run: Path, overrides: dict[str, str]) -> FinetuningRun:
    """A run that can be finetuned with these settings, into a writable folder."""
    from torch_pru.lm.training.api import FinetuningRun

    start = FinetuningRun(run, overrides=overrides)
    check_writable(start.path)
    return start


def check_settings(config: Config) -> None:
    """Refuse settings that do not go together, with each other or with the machine."""
    from torch_pru.lm.device import check_precision, choose_device
    from torch_pru.lm.model import skeleton
    from torch_pru.lm.training.distributed import World

    model = skeleton(config.model, config.regularization)
    device = choose_device(config.training.device)
    check_precision(config.training.precision, device, model)
    World(device, size=processes()).batch_slice(config.training.batch)


def check_text(config: Config, corpus: Corpus) -> None:
    """Refuse a text that is too short for the settings."""
    from torch_pru.lm.training.windows import check_length

    check_length(corpus, config.training)


def check_writable(folder: Path) -> None:
    """Raise if a folder cannot be created or written; nothing is created.

    Example:
        >>> check_writable(Path("runs/quickstart-1"))
    """
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise PRUError(f"cannot write {folder}: {place} is not a folder")
    if not os.access(place, os.W_OK):
        raise PRUError(f"cannot write {folder}: {place} is read-only")


RUNTIME = frozenset({"device", "precision", "minutes", "log_steps", "checkpoint_minutes", "checkpoint_steps"})
"""Settings in which a run that is found again may differ."""


def check_same(run: RunFolder, config: Config, advice: str) -> None:
    """Refuse to resume a run that was started with other settings."""
    from torch_pru.lm.config import flat_settings
    from torch_pru.lm.data.corpus import located

    found, wanted = flat_settings(run.config), flat_settings(config)
    ignored = RUNTIME | {"corpus", "tokenizer"}  # resolved when a run starts
    corpus = located(config.data).corpus
    if corpus != run.config.data.corpus:
        raise PRUError(f"{run.path} was trained on {run.config.data.corpus!r}, not {corpus!r}; {advice}")
    for key in wanted:
        if key not in ignored and found[key] != wanted[key]:
            raise PRUError(f"{run.path} was trained with {key}={found[key]!r}, not {wanted[key]!r}; {advice}")


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors raised inside begin with this name, to tell which of several runs failed."""
    try:
        yield
    except PRUError as error:
        kind = SharedError if isinstance(error, SharedError) else PRUError
        raise kind(f"{name}: {error}") from error
