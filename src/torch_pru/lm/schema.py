"""What a checkpoint must hold: every value is checked before anything uses it.

A checkpoint may come from a stranger with checksums that match, or belong to settings that were edited since.
Every mismatch is one line that names the file and the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import SLACK, Checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.model import skeleton

Shapes = Mapping[str, torch.Size]
LARGEST = 2**53
"""Counts are below this: they stay exact as floats."""

GENERATOR_BYTES = 1 << 16
"""Most bytes of the state of a random generator; PyTorch's have about 5,000."""


class Misfit(ValueError):  # noqa: N818 (it says what is wrong)
    """A field that is not as it should be. The message names the field."""


def byte_limit(config: Config, words: int) -> int:
    """The most bytes that a file of a checkpoint can have: float64 weights, states, and room for the rest."""
    model = skeleton(config.model, config.regularization, words)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    states = 2 * config.training.batch * sum(config.model.hidden)
    return 8 * (numbers + states) + SLACK


def check_weights(checkpoint: Checkpoint, config: Config, words: int) -> None:
    """Raise unless the weights are those of a run with these settings and so many words."""
    model = skeleton(config.model, config.regularization, words)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    with naming(checkpoint):
        check_named("weights", checkpoint.weights, shapes, config)
        if checkpoint.best:
            check_named("best", checkpoint.best, shapes, config)


def check_state(checkpoint: Checkpoint, config: Config) -> None:
    """Raise unless the state has exactly the known fields; the weights must have been checked."""
    shapes = {name: value.shape for name, value in checkpoint.weights.items()}
    with naming(checkpoint):
        found = as_dict("state", checkpoint.state)
        if found.keys() != STATE.keys():
            wrong = sorted(map(str, found.keys() ^ STATE.keys()))
            raise Misfit(
                f"state must have {', '.join(STATE)}; it differs in {wrong[0]:.100}{and_more(wrong)}"
            )
        for name, check in STATE.items():
            check(name, found[name], shapes, config)
        if found["finished"] and not checkpoint.best:
            raise Misfit("best is empty, but the run is finished")


@contextmanager
def naming(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn a misfit into an error that names the checkpoint."""
    try:
        yield
    except Misfit as error:
        problem = f"the checkpoint {checkpoint.path} does not fit the run's config.toml and vocabulary.txt"
        raise PRUError(f"{problem}: {error}") from None


def check_named(field: str, weights: object, shapes: Shapes, config: Config) -> None:
    """Weights must have the names and shapes of the model, and be finite."""
    found = as_dict(field, weights)
    if missing := sorted(shapes.keys() - found.keys()):
        raise Misfit(f"{field} lacks {missing[0]!r}{and_more(missing)}")
    if unknown := sorted(found.keys() - shapes.keys()):
        raise Misfit(f"{field} has {unknown[0]!r:.100}{and_more(unknown)}, which the model has not")
    wide = config.training.precision == "float64"
    for name, shape in shapes.items():
        value = as_tensor(f"{field}.{name}", found[name], shape)
        if (value.dtype == torch.float64) != wide:
            precision = config.training.precision
            raise Misfit(f"{field}.{name} has dtype {value.dtype}, which training in {precision} has not")


def check_optimizer(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """The running average of the weights, where there is one, and its number of steps."""
    found = with_keys(field, value, {"averages", "averaged_steps"})
    if as_dict(f"{field}.averages", found["averages"]):
        check_named(f"{field}.averages", found["averages"], shapes, config)
    check_count(f"{field}.averaged_steps", found["averaged_steps"], shapes, config)


def check_schedule(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """Numbers of epochs and losses; `Schedule.load_state_dict` checks the types of all fields."""
    found = as_dict(field, value)
    for name in ("epoch", "best_epoch", "round"):
        check_count(f"{field}.{name}", found.get(name), shapes, config)
    for name in ("best", "best_before_round"):
        if type(found.get(name)) is not float or math.isnan(found[name]):
            raise Misfit(f"{field}.{name} is {found.get(name)!r:.100}; expected a number")
    if found["best_epoch"] > found["epoch"]:
        raise Misfit(f"{field}.best_epoch={found['best_epoch']} is after epoch={found['epoch']}")
    history = found.get("history")
    if not isinstance(history, list) or not all(
        type(loss) is float and math.isfinite(loss) for loss in history
    ):
        raise Misfit(f"{field}.history must be a list of finite losses")


def check_masks(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """The state of the random generator; None in checkpoints whose masks cannot be continued."""
    found = with_keys(field, value, {"device", "generator"})
    if found["device"] not in ("cpu", "cuda", "mps", "xpu"):
        raise Misfit(f"{field}.device is {found['device']!r:.100}; expected 'cpu' or 'cuda'")
    if found["generator"] is None:
        return
    generator = as_tensor(f"{field}.generator", found["generator"], None)
    if generator.dtype != torch.uint8 or generator.dim() != 1 or len(generator) > GENERATOR_BYTES:
        raise Misfit(f"{field}.generator is not the state of a random generator")
    if found["device"] == "cpu":
        try:
            torch.Generator().set_state(generator)
        except (RuntimeError, TypeError) as error:
            raise Misfit(f"{field}.generator is not the state of a random generator") from error


def check_loss_scale(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """Only training in float16 has a loss scale."""
    found = as_dict(field, value)
    if bool(found) != (config.training.precision == "float16"):
        raise Misfit(
            f"{field} is {'there' if found else 'missing'}, but precision={config.training.precision!r}"
        )
    if found:
        for name, number in with_keys(field, found, {"scale", "good_steps"}).items():
            if as_tensor(f"{field}.{name}", number, torch.Size()) < 0:
                raise Misfit(f"{field}.{name} is negative")


def check_recurrent_state(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """A pair (1, B, M) for each layer."""
    hidden, batch = config.model.hidden, config.training.batch
    if not isinstance(value, list) or len(value) != len(hidden):
        raise Misfit(f"{field} must have a pair for each of {len(hidden)} layers")
    for layer, (size, pair) in enumerate(zip(hidden, value, strict=True)):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Misfit(f"{field}[{layer}] must be a pair of tensors")
        for name, tensor in zip("hc", pair, strict=True):
            place = f"{field}[{layer}].{name} (batch={batch})"
            as_tensor(place, tensor, torch.Size([1, batch, size]))


def check_loss_sum(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """A sum of losses and its number of tokens."""
    found = with_keys(field, value, {"total", "tokens"})
    as_tensor(f"{field}.total", found["total"], torch.Size())
    check_count(f"{field}.tokens", found["tokens"], shapes, config)


def check_count(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """A number of things."""
    if type(value) is not int or not 0 <= value < LARGEST:
        raise Misfit(f"{field} is {short(value)}; expected an integer of at least 0")


def check_flag(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """True or False."""
    if type(value) is not bool:
        raise Misfit(f"{field} is {short(value)}; expected True or False")


def check_seconds(field: str, value: object, shapes: Shapes, config: Config) -> None:
    """A time."""
    if type(value) is not float or not 0 <= value < LARGEST:
        raise Misfit(f"{field} is {short(value)}; expected a number of seconds")


STATE: dict[str, Callable[[str, object, Shapes, Config], None]] = {
    "optimizer": check_optimizer,
    "schedule": check_schedule,
    "masks": check_masks,
    "loss_scale": check_loss_scale,
    "recurrent_state": check_recurrent_state,
    "log_loss": check_loss_sum,
    "epoch_loss": check_loss_sum,
    "global_step": check_count,
    "step_in_epoch": check_count,
    "finished": check_flag,
    "metrics_bytes": check_count,
    "seconds": check_seconds,
}
"""The fields of a trainer's state (see `Trainer.state_dict`) and what checks each."""


def as_dict(field: str, value: object) -> dict[str, Any]:
    """``value``, which must be a dictionary."""
    if not isinstance(value, dict):
        raise Misfit(f"{field} is {short(value)}; expected a dictionary")
    return value


def with_keys(field: str, value: object, keys: set[str]) -> dict[str, Any]:
    """``value``, which must be a dictionary with exactly these keys."""
    found = as_dict(field, value)
    if found.keys() != keys:
        raise Misfit(f"{field} must have exactly {', '.join(sorted(keys))}")
    return found


def as_tensor(field: str, value: object, shape: torch.Size | None) -> Tensor:
    """``value``, which must be a dense tensor of this shape; floating-point numbers must be finite."""
    if (
        not isinstance(value, Tensor)
        or value.layout != torch.strided
        or value.is_complex()
        or value.is_quantized
    ):
        raise Misfit(f"{field} is {short(value)}; expected a tensor")
    if shape is None:
        return value
    if value.shape != shape:
        raise Misfit(f"{field} has shape {tuple(value.shape)}; expected {tuple(shape)}")
    if not value.is_floating_point() or not bool(value.isfinite().all()):
        raise Misfit(f"{field} has numbers that are not finite floating-point numbers")
    return value


def and_more(names: list[str]) -> str:
    """How many more there are than the first."""
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def short(value: object) -> str:
    """A value in a few words, however large it is."""
    if isinstance(value, int | float | bool | None) and not (type(value) is int and abs(value) > LARGEST):
        return repr(value)
    return f"{value!r:.60}" if isinstance(value, str) else f"a {type(value).__name__}"
