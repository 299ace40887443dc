"""What a run is about, in a few lines before it starts, and a warning if it would take very long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torch_pru.cli.training_view import duration
from torch_pru.lm.visible import count

if TYPE_CHECKING:
    from pathlib import Path

    from torch_pru.lm.config import Config
    from torch_pru.lm.data import Corpus

LONG = 3 * 3600.0  # seconds; from here on a run on a CPU is warned about


def header(
    config: Config, corpus: Corpus, folder: Path, speed: float | None, *, sweep: bool = False
) -> list[str]:
    """The lines before a run.

    Args:
        config: of the run.
        corpus: its text.
        folder: where it goes.
        speed: tokens per second, or None where it was not measured.
        sweep: whether the run belongs to a sweep, which is continued as a whole.
    """
    from torch_pru.lm.data.prepare import title_of
    from torch_pru.lm.device import choose_device, device_name
    from torch_pru.lm.model import parameter_counts, skeleton

    title, size = title_of(config.data.corpus), len(corpus.vocabulary)
    counts = parameter_counts(skeleton(config.model, config.regularization, size))
    device = choose_device(config.training.device)
    where = (
        f"CPU, {count(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else device_name(device)
    )
    advice = "" if sweep else "; Ctrl-C stops and saves it, pru resume continues it"
    return [
        f"text:   {title}, {len(corpus.train):,} training tokens, vocabulary: {size:,}",
        f"model:  {model_in_words(config)}, {in_millions(counts.total)} parameters",
        f"device: {where}",
        f"plan:   {plan_in_words(config, len(corpus.train), speed)}",
        f"run:    {folder} (seed {config.training.seed}){advice}",
    ]


def plan_in_words(config: Config, tokens: int, speed: float | None) -> str:
    """How much is trained, and how long it takes on this machine.

    Args:
        config: of the run.
        tokens: of the training text.
        speed: tokens per second, or None if it was not measured.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> config = load_recipe("quickstart", {"epochs": "30", "minutes": "2"})
        >>> plan_in_words(config, tokens=100_000, speed=50_000.0)
        '30 epochs, about 1 min on this machine, limited to 2 min of training (plus starting and scoring)'
        >>> plan_in_words(config, tokens=100_000, speed=10_000.0)
        'up to 30 epochs, about 12 on this machine, limited to 2 min of training (plus starting and scoring)'
        >>> plan_in_words(config, tokens=10_000_000, speed=50_000.0)
        'limited to 2 min of training (plus starting and scoring), enough for about 60% of the text'
    """
    epochs, limit = config.training.epochs, 60 * config.training.minutes
    limited = f"limited to {duration(limit)} of training (plus starting and scoring)"
    if speed is None:
        return epochs_in_words(config) + (f", {limited}" if limit else "")
    seconds = epochs * tokens / speed
    if not limit or seconds <= limit:
        plan = f"{epochs_in_words(config)}, about {duration(max(1, seconds))} on this machine"
        return f"{plan}, {limited}" if limit else plan
    passes = limit * speed / tokens
    if passes < 1:
        return f"{limited}, enough for {share_in_words(passes)} of the text"
    return f"up to {count(epochs, 'epoch')}, about {round(passes):,} on this machine, {limited}"


def expected_seconds(config: Config, corpus: Corpus, speed: float | None) -> float | None:
    """How long a run takes at this speed, its limit of time considered."""
    if speed is None:
        return None
    settings = config.training
    seconds = settings.epochs * len(corpus.train) / speed
    return min(seconds, 60 * settings.minutes) if settings.minutes else seconds


def long_run_warning(config: Config, seconds: float | None) -> str | None:
    """What to say of a run that takes many hours, and what would be faster; None for others."""
    if seconds is None or seconds < LONG:
        return None
    return (
        f"this run would take about {duration(seconds)} on this machine. "
        f"An NVIDIA GPU is hundreds of times as fast. For a result today: --minutes 60 stops after an hour, "
        f"--epochs {max(1, round(config.training.epochs * 3600 / seconds))} trains less, and a smaller model "
        f"(--set hidden=[256,256] --set embedding=256) is faster"
    )


def model_in_words(config: Config) -> str:
    """The kind and size of a model.

    Example:
        >>> from torch_pru.lm.recipe import load_recipe
        >>> model_in_words(load_recipe("ptb-awd-pru-g4"))
        'PRU with 3 layers of 1400, 1400 and 400 units, 2 levels, 4 groups'
        >>> model_in_words(load_recipe("ptb-awd-lstm"))
        'LSTM with 3 layers of 1150, 1150 and 400 units'
    """
    model = config.model
    *first, last = map(str, model.hidden)
    sizes = f"{', '.join(first)} and {last}" if first else last
    words = f"{model.kind.upper()} with {count(model.layers, 'layer')} of {sizes} units"
    if model.kind == "pru":
        if model.input_transform == "pyramidal":
            words += f", {count(model.levels, 'level')}"
        if model.context_transform == "grouped":
            words += f", {count(model.groups, 'group')}"
    return words if model.experts == 1 else f"{words}, {model.experts} softmaxes"


def epochs_in_words(config: Config) -> str:
    """How many passes over the text there are."""
    epochs, early = config.training.epochs, config.training.early_stop_from
    return f"up to {count(epochs, 'epoch')}" if 0 < early < epochs else count(epochs, "epoch")


def share_in_words(share: float) -> str:
    """About what percentage.

    Example:
        >>> share_in_words(0.6), share_in_words(0.001)
        ('about 60%', 'less than 1%')
    """
    return "less than 1%" if share < 0.01 else f"about {share:.0%}"


def in_millions(number: int) -> str:
    """A number of parameters.

    Example:
        >>> in_millions(18_895_600), in_millions(41_000)
        ('18.9 million', '41,000')
    """
    return f"{number / 1e6:.1f} million" if number >= 100_000 else f"{number:,}"
