"""A run as it is watched: a live bar on a terminal, plain lines where the output is piped."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn
from rich.progress import Progress as Bars

from torch_pru.cli.console import messages
from torch_pru.cli.progress import LINE_SECONDS, is_live

if TYPE_CHECKING:
    from torch_pru.lm.training import Progress

FIELDS = ("speed", "loss", "perplexity", "left")


class TrainingView:
    """Shows what it is called with: tokens a second, loss, perplexity, time left; a line for each epoch.

    Example:
        >>> from torch_pru.lm.training import train                         # doctest: +SKIP
        >>> with TrainingView() as view:                                    # doctest: +SKIP
        ...     train(config, "runs/first", progress=view)
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or messages()
        self.live = is_live(self.console)
        self.bars = Bars(
            *columns(self.console.width),
            console=self.console,
            transient=True,
            expand=True,
            disable=not self.live,
        )
        self.task = self.bars.add_task("starting", total=None, speed="", loss="", perplexity="", left="")
        self.valid_loss: float | None = None
        self.started = self.last_line = time.monotonic()

    def __enter__(self) -> TrainingView:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def __call__(self, progress: Progress) -> None:
        """Take in a report of the trainer."""
        if progress.valid_loss != self.valid_loss:  # the first report after a validation ends an epoch
            self.valid_loss = progress.valid_loss
            self.console.print(epoch_line(progress, time.monotonic() - self.started), soft_wrap=True)
            return
        fields = {
            "speed": f"{progress.tokens_per_second:,.0f} tokens/s",
            "loss": f"loss {progress.loss:.2f}",
            "perplexity": f"perplexity {short(progress.perplexity)}",
            "left": f"{duration(progress.seconds_left)} left",
        }
        title = f"epoch {progress.epoch}/{progress.epochs}"
        if self.live:
            done = (progress.epoch - 1) * progress.steps + progress.step
            total = progress.epochs * progress.steps
            self.bars.update(self.task, description=title, completed=done, total=total)
            self.bars.tasks[0].fields.update(fields)
        elif time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"{title}: {', '.join(fields.values())}", soft_wrap=True)


def columns(width: int) -> list[ProgressColumn]:
    """What fits into a terminal of this width; the bar takes what the texts leave."""
    title = TextColumn("{task.description}")
    speed, loss, perplexity, left = (TextColumn(f"{{task.fields[{name}]}}") for name in FIELDS)
    if width < 50:
        return [title, left]
    if width < 80:
        return [title, perplexity, left]
    return [title, BarColumn(bar_width=None), speed, loss, perplexity, left]


def epoch_line(progress: Progress, seconds: float) -> str:
    """An epoch in a line."""
    valid = math.exp(progress.valid_loss) if progress.valid_loss is not None else math.nan
    best = " (best)" if progress.valid_loss == progress.best_valid_loss else ""
    averaged = ", averaged" if progress.averaging else ""
    stage = f"round {progress.round}, " if progress.stage == "finetune" else ""
    return (
        f"{stage}epoch {progress.epoch}: train {short(progress.perplexity)}, "
        f"valid {short(valid)}{best}{averaged}, {duration(seconds)}"
    )


def short(value: float) -> str:
    """A perplexity with as many digits as say something.

    Example:
        >>> short(61.234), short(1234.5)
        ('61.23', '1,234')
    """
    return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours.

    Example:
        >>> duration(42), duration(150), duration(7380)
        ('42 s', '2:30 min', '2:03 h')
    """
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 100:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h"
