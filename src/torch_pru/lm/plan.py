"""Sensible settings for a text, a machine and the time there is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_pru.lm.config import PRU_SETTINGS, Config, ModelConfig, RegularizationConfig, build_config
from torch_pru.lm.data import load_corpus
from torch_pru.lm.data.prepare import title_of
from torch_pru.lm.device import choose_device
from torch_pru.lm.model import LanguageModel
from torch_pru.ops import torch_private as private

SIZES = ((64,), (128,), (256,), (400, 256), (650, 400), (1150, 1150, 400))
"""Units of each layer; the last is also the size of the embedding."""

FEWEST_STEPS = 3_000  # of a short text, which is read more often for that
MOST_EPOCHS = 40, 300  # of a usual text, and of a very short one


@dataclass(frozen=True)
class Plan:
    """Settings that were chosen, and what they are expected to take.

    Attributes:
        settings: by name, for `build_config`.
        tokens_per_second: measured with the chosen model.
        seconds: of training, about.
        passes: how often the time given would suffice to read the training text.
    """

    settings: dict[str, Any]
    tokens_per_second: float
    seconds: float
    passes: float


def plan_config(corpus: str, *, minutes: float = 10.0, changes: Mapping[str, Any] | None = None) -> Config:
    """A configuration that suits a text, this machine and the time there is.

    Args:
        corpus: name of a corpus, such as ``prepare_text(["book.txt"]).name``, or a folder.
        minutes: that the choice, training and scoring may take.
        changes: settings to use instead of those that are chosen.
    """
    changes, started = dict(changes or {}), time.monotonic()
    loaded = load_corpus(corpus, str(changes.get("tokenizer", "auto")))
    plan = plan_training(
        corpus,
        tokens=len(loaded.train),
        held_out=len(loaded.valid),
        vocabulary_size=len(loaded.vocabulary),
        seconds=60 * minutes - (time.monotonic() - started),
        device=str(changes.get("device", "auto")),
    )
    settings = plan.settings
    if changes.get("unit", "pru") != "pru":
        settings = {key: value for key, value in settings.items() if key not in PRU_SETTINGS}
    return build_config(title_of(corpus), settings | changes)


def plan_training(
    corpus: str,
    *,
    tokens: int,
    held_out: int,
    vocabulary_size: int,
    seconds: float,
    device: str = "auto",
) -> Plan:
    """Choose size, dropout and epochs of a PRU for a text.

    The largest model is taken that can read the text often enough in the time given: measured here and now,
    with a few steps. The more often a text is read, the more dropout there is.

    Args:
        corpus: name of the text.
        tokens: of its training part.
        held_out: of the validation part, about as many as of the test part.
        vocabulary_size: its different tokens.
        seconds: that there are, to measure, to train and to score both parts once.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...

    Example:
        >>> plan = plan_training("mine", tokens=4_000, held_out=200, vocabulary_size=500, seconds=600)
        >>> plan.settings["hidden"], plan.settings["epochs"]
        ((64,), 300)
    """
    started = time.monotonic()
    on_gpu = choose_device(device).type == "cuda"
    largest = sum(tokens >= limit for limit in (20_000, 100_000, 2_000_000, 10_000_000)) + on_gpu
    if not on_gpu:
        largest = min(largest, 2)
    enough = 10 if tokens < 2_000_000 else 2  # passes over the text
    smallest = min(largest, 1)
    for size in range(largest, smallest - 1, -1):
        settings = settings_for(corpus, SIZES[size], tokens, held_out) | {"device": device}
        speed = training_speed(build_config("plan", settings), vocabulary_size)
        left = max(1.0, seconds - (time.monotonic() - started))  # the first step may compile the kernels
        available = time_for_training(left, held_out, speed)
        passes = speed * available / tokens
        if passes >= enough:
            break
    usual, most = MOST_EPOCHS
    steps = max(1, tokens // (settings["batch"] * settings["window"]))
    epochs = max(1, min(round(passes), max(usual, FEWEST_STEPS // steps), most))
    settings |= dropout_for(epochs) | {
        "epochs": epochs,
        "minutes": round(available / 60, 2),
    }
    return Plan(settings, speed, min(available, epochs * tokens / speed), passes)


def settings_for(corpus: str, hidden: tuple[int, ...], tokens: int, held_out: int) -> dict[str, Any]:
    """Settings that depend on the text and the size alone."""
    return {
        "corpus": corpus,
        "unit": "pru",
        "embedding": hidden[-1],
        "hidden": hidden,
        "levels": 2,
        "groups": 4 if hidden[0] >= 128 else 2,
        "init": "lstm",
        "batch": min(20, max(1, tokens // 100)),
        "valid_batch": min(10, max(1, held_out // 20)),
        "window": 35,
        "learning_rate": 20.0,
        "cooldown": 0.5,
        "log_steps": 10,
    }


def dropout_for(epochs: int) -> dict[str, float]:
    """The more often a text is read, the more of the model is dropped, so that it is not learned by heart."""
    if epochs <= 2:
        rates = {"input": 0.05, "hidden": 0.05, "output": 0.05, "embedding": 0.0}
    elif epochs <= 8:
        rates = {"input": 0.2, "hidden": 0.2, "output": 0.2, "embedding": 0.05}
    else:
        rates = {"input": 0.4, "hidden": 0.25, "output": 0.4, "embedding": 0.1}
    penalties = {"activation": 0.0, "temporal": 0.0} if epochs <= 8 else {"activation": 1.0, "temporal": 0.5}
    drops = {f"{place}_dropout": rate for place, rate in rates.items()}
    return drops | penalties | {"weight_drop": 0.0 if epochs <= 8 else 0.3}


def time_for_training(seconds: float, held_out: int, speed: float, *, scored: bool = True) -> float:
    """How much of some time is left for training if the end of the run must fit into it, too.

    Args:
        seconds: that there are.
        held_out: tokens of the validation part, about as many as of the test part.
        speed: of training, in tokens per second.
        scored: whether the end is one validation and one score of both parts, instead of one validation.

    Example:
        >>> time_for_training(100.0, held_out=1_000, speed=100.0), time_for_training(10.0, 1_000, 100.0)
        (80.0, 4.0)
    """
    passes = 2 if scored else 1  # reading takes less than half as long as training
    return max(0.4 * seconds, seconds - passes * held_out / speed)


def training_speed(config: Config, vocabulary_size: int, seconds: float = 1.0) -> float:
    """Tokens per second of training with these settings on this machine, from a few steps without dropout.

    Each model is measured once in a process.
    """
    settings = config.training
    device = choose_device(settings.device)
    return _measured_speed(config.model, settings.window, settings.batch, device, vocabulary_size, seconds)


@cache
def _measured_speed(
    config: ModelConfig, window: int, batch: int, device: torch.device, vocabulary_size: int, seconds: float
) -> float:
    model = LanguageModel(config, RegularizationConfig(), vocabulary_size).to(device).eval()
    parameters: list[Tensor] = [weight for weight in model.parameters() if weight.requires_grad]
    text = torch.randint(vocabulary_size, (window + 1, batch), device=device)
    state = model.initial_state(batch)

    def step() -> None:
        hidden = model.hidden(text[:-1], state)
        loss = model.nll(hidden.raw, text[1:]).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            private.foreach_add_(parameters, gradients, alpha=-1e-3)
        loss.item()  # waits for a GPU

    step()
    start, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - start) < seconds or not steps:
        step()
        steps += 1
    return steps * window * batch / passed
