"""What a checkpoint must hold: every value is checked before anything uses it.

A checkpoint may come from a stranger with checksums that match, or belong to settings that were edited since.
Every mismatch is one line that names the file and the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import SLACK, Checkpoint
from torch_pru.lm.config import Config
from torch_pru.lm.model import skeleton

STAGES = ("train", "finetune")
LARGEST = 2**53
"""Counts are below this: they stay exact as floats."""

GENERATOR_BYTES = 1 << 16
"""Most bytes of the state of a random generator; PyTorch's have about 5,000."""


class Misfit(ValueError):  # noqa: N818 (it says what is wrong)
    """A field that is not as it should be. The message names the field."""


class Expected(NamedTuple):
    """What a checkpoint must fit: the shapes of the weights by name, and the settings."""

    shapes: Mapping[str, torch.Size]
    config: Config


Check = Callable[[str, object, Expected], None]
"""Called with the name of a field and its value; raises a `Misfit`."""


def byte_limit(config: Config, words: int) -> int:
    """The most bytes that a file of a checkpoint can have: float64 weights, states, and room for the rest."""
    model = skeleton(config.model, config.regularization, words)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    states = 2 * config.training.batch * sum(config.model.hidden)
    return 8 * (numbers + states) + SLACK


def check_weights(checkpoint: Checkpoint, config: Config, words: int) -> None:
    """Raise unless the weights are those of a run with these settings and so many words."""
    model = skeleton(config.model, config.regularization, words)
    expected = Expected({name: value.shape for name, value in model.state_dict().items()}, config)
    with naming(checkpoint):
        check_named("weights", checkpoint.weights, expected)
        if checkpoint.best:
            check_named("best", checkpoint.best, expected)


def check_state(checkpoint: Checkpoint, config: Config) -> None:
    """Raise unless the state has exactly the known fields; the weights must have been checked."""
    expected = Expected({name: value.shape for name, value in checkpoint.weights.items()}, config)
    state = checkpoint.state
    with naming(checkpoint):
        check_fields("state", state, STATE, expected)
        schedule, masks = state["schedule"], state["masks"]
        if schedule["best_epoch"] > schedule["epoch"]:
            raise Misfit(f"schedule.best_epoch={schedule['best_epoch']} is after epoch={schedule['epoch']}")
        if state["finished"] and not checkpoint.best:
            raise Misfit("best is empty, but the run is finished")
        if masks["device"] == "cpu" and masks["generator"] is not None:
            try:
                torch.Generator().set_state(masks["generator"])
            except (RuntimeError, TypeError) as error:
                raise Misfit("masks.generator is not the state of a random generator") from error


@contextmanager
def naming(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn a misfit into an error that names the checkpoint."""
    try:
        yield
    except Misfit as error:
        problem = f"the checkpoint {checkpoint.path} does not fit the run's config.toml and vocabulary.txt"
        raise PRUError(f"{problem}: {error}") from None


def check_fields(field: str, value: object, fields: Mapping[str, Any], expected: Expected) -> None:
    """A dictionary with exactly these keys; beside each is a `Check` of its value, or the keys of that."""
    found = as_dict(field, value)
    if found.keys() != fields.keys():
        wrong = sorted(map(str, found.keys() ^ fields.keys()))
        raise Misfit(f"{field} must have {', '.join(fields)}; it differs in {wrong[0]:.100}{and_more(wrong)}")
    for name, check in fields.items():
        inner = f"{field}.{name}"
        if isinstance(check, Mapping):
            check_fields(inner, found[name], check, expected)
        else:
            check(inner, found[name], expected)


def plain(kind: type, wanted: str, fits: Callable[[Any], bool]) -> Check:
    """A value of exactly this type that fits."""

    def check(field: str, value: object, expected: Expected) -> None:
        if type(value) is not kind or not fits(value):
            raise Misfit(f"{field} is {short(value)}; expected {wanted}")

    return check


def check_named(field: str, weights: object, expected: Expected) -> None:
    """Weights must have the names and shapes of the model, and be finite."""
    found = as_dict(field, weights)
    if missing := sorted(expected.shapes.keys() - found.keys()):
        raise Misfit(f"{field} lacks {missing[0]!r}{and_more(missing)}")
    if unknown := sorted(found.keys() - expected.shapes.keys()):
        raise Misfit(f"{field} has {unknown[0]!r:.100}{and_more(unknown)}, which the model has not")
    precision = expected.config.training.precision
    for name, shape in expected.shapes.items():
        value = as_tensor(f"{field}.{name}", found[name], shape)
        if (value.dtype == torch.float64) != (precision == "float64"):
            raise Misfit(f"{field}.{name} has dtype {value.dtype}, which training in {precision} has not")


def check_averages(field: str, value: object, expected: Expected) -> None:
    """The running average of the weights; empty where there is none."""
    if as_dict(field, value):
        check_named(field, value, expected)


def check_generator(field: str, value: object, expected: Expected) -> None:
    """The state of a random generator; None in checkpoints whose masks cannot be continued."""
    if value is None:
        return
    generator = as_tensor(field, value, None)
    if generator.dtype != torch.uint8 or generator.dim() != 1 or len(generator) > GENERATOR_BYTES:
        raise Misfit(f"{field} is not the state of a random generator")


def check_loss_scale(field: str, value: object, expected: Expected) -> None:
    """Only training in float16 has a loss scale."""
    found, precision = as_dict(field, value), expected.config.training.precision
    if bool(found) != (precision == "float16"):
        raise Misfit(f"{field} is {'there' if found else 'missing'}, but precision={precision!r}")
    if found:
        check_fields(field, found, {"scale": check_scale, "good_steps": check_scale}, expected)


def check_recurrent_state(field: str, value: object, expected: Expected) -> None:
    """A pair (1, B, M) for each layer."""
    hidden, batch = expected.config.model.hidden, expected.config.training.batch
    if not isinstance(value, list) or len(value) != len(hidden):
        raise Misfit(f"{field} must have a pair for each of {len(hidden)} layers")
    for layer, (size, pair) in enumerate(zip(hidden, value, strict=True)):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Misfit(f"{field}[{layer}] must be a pair of tensors")
        for name, tensor in zip("hc", pair, strict=True):
            place = f"{field}[{layer}].{name} (batch={batch})"
            as_tensor(place, tensor, torch.Size([1, batch, size]))


def check_total(field: str, value: object, expected: Expected) -> None:
    """A sum of losses."""
    as_tensor(field, value, torch.Size())


def check_scale(field: str, value: object, expected: Expected) -> None:
    """A number that is not negative."""
    if as_tensor(field, value, torch.Size()) < 0:
        raise Misfit(f"{field} is negative")


COUNT = plain(int, "an integer of at least 0", lambda count: 0 <= count < LARGEST)
FLAG = plain(bool, "True or False", lambda flag: True)
SECONDS = plain(float, "a number of seconds", lambda seconds: 0 <= seconds < LARGEST)
LOSS = plain(float, "a number", lambda loss: not math.isnan(loss))
LOSSES = plain(
    list,
    "a list of finite losses",
    lambda losses: all(type(loss) is float and math.isfinite(loss) for loss in losses),
)
STATE = {
    "optimizer": {"averages": check_averages, "averaged_steps": COUNT},
    "schedule": {
        "stage": plain(str, " or ".join(STAGES), lambda stage: stage in STAGES),
        "epoch": COUNT,
        "best": LOSS,
        "best_epoch": COUNT,
        "round": COUNT,
        "best_before_round": LOSS,
        "averaging": FLAG,
        "history": LOSSES,
    },
    "masks": {
        "device": plain(str, "'cpu' or 'cuda'", lambda name: name in ("cpu", "cuda", "mps", "xpu")),
        "generator": check_generator,
    },
    "loss_scale": check_loss_scale,
    "recurrent_state": check_recurrent_state,
    "log_loss": {"total": check_total, "tokens": COUNT},
    "epoch_loss": {"total": check_total, "tokens": COUNT},
    "global_step": COUNT,
    "step_in_epoch": COUNT,
    "finished": FLAG,
    "metrics_bytes": COUNT,
    "seconds": SECONDS,
}
"""The fields of a trainer's state, see `Trainer.state_dict`."""


def as_dict(field: str, value: object) -> dict[str, Any]:
    """``value``, which must be a dictionary."""
    if not isinstance(value, dict):
        raise Misfit(f"{field} is {short(value)}; expected a dictionary")
    return value


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
