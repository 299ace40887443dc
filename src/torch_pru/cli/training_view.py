"""The progress of runs: a live bar for each on a terminal, plain lines if the output is piped."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn

from torch_pru.cli.console import messages, say
from torch_pru.cli.progress import LINE_SECONDS, FittingBars

if TYPE_CHECKING:
    from torch_pru.lm.training import TrainingProgress

MANY_EPOCHS = 40  # of more, if they are short, every tenth has a line
SHORT_EPOCH = 1.5  # seconds, rounded to 1
FIELDS = ("speed", "loss", "perplexity", "left")
LEAST = 28  # characters for what a narrow terminal shows of a run beside its name


class TrainingView:
    """Shows the progress that it is called with: speed, loss, perplexity, time left, and a line per epoch.

    Args:
        console: where to; standard error by default.
        folders: of the runs, if there are several. Each has a bar, and its lines begin with its name.

    Example:
        >>> from torch_pru.lm.training import train                        # doctest: +SKIP
        >>> with TrainingView() as view:                                    # doctest: +SKIP
        ...     train(config, "runs/first", progress=view)
        >>> with TrainingView(folders=folders) as view:                     # doctest: +SKIP
        ...     train(configs, folders, progress=view)
    """

    def __init__(self, console: Console | None = None, folders: Sequence[Path] = ()) -> None:
        self.console = console or messages()
        runs: dict[Path | None, str] = {folder: folder.name for folder in folders}
        runs = runs or {None: ""}
        labels = {run: label(name, self.console.width - LEAST) for run, name in runs.items()}
        longest = max(map(len, labels.values()))
        self.bars = FittingBars(lambda width: columns(width - longest), self.console)
        self.runs = {run: RunView(self.bars, name, labels[run]) for run, name in runs.items()}

    def __enter__(self) -> TrainingView:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def __call__(self, progress: TrainingProgress) -> None:
        """Show the progress of a run."""
        self.runs[progress.run_folder if len(self.runs) > 1 else next(iter(self.runs))](progress)


class RunView:
    """One run's bar and lines.

    Args:
        bars: where its bar goes.
        name: what its lines begin with; empty where there is one run.
        label: what its bar begins with.
    """

    def __init__(self, bars: FittingBars, name: str, label: str) -> None:
        self.bars = bars
        self.prefix = f"{name}: " if name else ""
        self.label = label
        self.task = bars.add_task(f"{label}starting", total=None, speed="", loss="", perplexity="", left="")
        self.epoch_started = self.last_line = time.monotonic()
        self.said_many = False
        self.first_epoch = True  # after a resume, only a part of it is timed
        self.averaging = True  # until a report says that it has not started

    def __call__(self, progress: TrainingProgress) -> None:
        """Show a report of the trainer."""
        if progress.ended:
            self._show_epoch(progress)
        else:
            self._show_step(progress)
        self.averaging = progress.averaging

    def _show_epoch(self, progress: TrainingProgress) -> None:
        now = time.monotonic()
        seconds = now - self.epoch_started
        short = seconds < SHORT_EPOCH and not self.first_epoch
        many = progress.epochs > MANY_EPOCHS and short and not progress.stop_reason
        self.first_epoch = False
        if many and not self.said_many:
            self.said_many = True
            self._print("of epochs that take a second or less, only every tenth is shown")
        if not many or progress.epoch % 10 == 0:
            self._print(epoch_line(progress, seconds))
        if progress.averaging and not self.averaging:
            self._print(
                f"improvement in validation has slowed; after epoch {progress.epoch} the weights are averaged"
            )
        if progress.stop_reason:
            self._print(stop_line(progress))
        self.epoch_started = now

    def _show_step(self, progress: TrainingProgress) -> None:
        fields = {
            "speed": f"{progress.tokens_per_second:,.0f} tokens/s",
            "loss": f"loss {progress.loss:.2f}",
            "perplexity": f"perplexity {short(progress.perplexity)}",
            "left": f"{duration(progress.seconds_left)} left",
        }
        title = f"epoch {progress.epoch}/{progress.epochs}"
        if not self.bars.disable:
            done = (progress.epoch - 1) * progress.steps + progress.step
            total = progress.epochs * progress.steps
            self.bars.update(self.task, description=self.label + title, completed=done, total=total)
            self.bars.tasks[self.task].fields.update(fields)
        elif time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            self._print(f"{title}: {', '.join(fields.values())}")

    def _print(self, line: str) -> None:
        say(self.bars.console, self.prefix + line)


def label(name: str, room: int) -> str:
    """A name as the beginning of a bar; of one that is too long, the end, which tells runs apart.

    Example:
        >>> label("ptb-awd-pru-g4-12", 40), label("ptb-awd-pru-g4-12", 10), label("", 40)
        ('ptb-awd-pru-g4-12 ', '…ru-g4-12 ', '')
    """
    if not name:
        return ""
    room = max(room, 6)
    return f"{name} " if len(name) < room else f"…{name[2 - room :]} "


def columns(width: int) -> list[ProgressColumn]:
    """What fits into this width beside a run's name; the bar takes the room that the texts leave."""
    title = TextColumn("{task.description}", markup=False)
    speed, loss, perplexity, left = (TextColumn(f"{{task.fields[{name}]}}") for name in FIELDS)
    bar = BarColumn(bar_width=None)
    if width < 60:
        return [title, bar, left]
    if width < 90:
        return [title, bar, perplexity, left]
    return [title, bar, speed, loss, perplexity, left]


def epoch_line(progress: TrainingProgress, seconds: float) -> str:
    """What came of an epoch, in a line.

    Args:
        progress: the report at its end.
        seconds: that the epoch took.
    """
    from torch_pru.lm.evaluation.static import perplexity

    valid = perplexity(progress.valid_loss) if progress.valid_loss is not None else math.nan
    best = ", the best so far" if progress.valid_loss == progress.best_valid_loss else ""
    took = f" ({duration(seconds)})" if seconds >= 1 else ""
    stage = f"round {progress.round} of finetuning, " if progress.stage == "finetune" else ""
    if progress.step < progress.steps:
        epoch = f"{share_read(progress)} of epoch {progress.epoch}"
    else:
        epoch = f"epoch {progress.epoch} of {progress.epochs}"
    return (
        f"{stage}{epoch}: perplexity {short(progress.perplexity)} in "
        f"training, {short(valid)} in validation{best}{took}"
    )


def stop_line(progress: TrainingProgress) -> str:
    """Why a run ends, and how to train longer if the time was up.

    Args:
        progress: the report at the end of the run.
    """
    if progress.stop_reason != "time is up":
        return f"training ends after epoch {progress.epoch}: {progress.stop_reason}"
    part = "" if progress.step >= progress.steps else f"{share_read(progress)} of "
    return (
        f"time is up after {part}epoch {progress.epoch}. This run is complete; to train longer, start a new "
        f"one with a larger --minutes"
    )


def share_read(progress: TrainingProgress) -> str:
    """How much of an epoch was trained, as a percentage."""
    share = progress.step / max(1, progress.steps)
    return "less than 1%" if share < 0.01 else f"{share:.0%}"


def short(value: float) -> str:
    """A perplexity with as many digits as say something.

    Example:
        >>> short(61.234), short(1234.5), short(1e290)
        ('61.23', '1,234', '1e+290')
    """
    from torch_pru.lm.evaluation.static import format_perplexity

    return f"{value:,.0f}" if 1000 <= value < 1e6 else format_perplexity(value)


def duration(seconds: float) -> str:
    """Seconds, minutes and seconds, or hours and minutes.

    Example:
        >>> duration(42), duration(150), duration(120), duration(7380)
        ('42 s', '2 min 30 s', '2 min', '2 h 3 min')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    large, small, units = (seconds // 60, seconds % 60, ("min", "s"))
    if large >= 60:
        large, small, units = large // 60, large % 60, ("h", "min")
    return f"{large} {units[0]} {small} {units[1]}" if small else f"{large} {units[0]}"
