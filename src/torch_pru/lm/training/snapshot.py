"""Everything that the rest of a run depends on, as a checkpoint, and back."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch_pru.lm.checkpoint import Checkpoint

if TYPE_CHECKING:
    from torch_pru.lm.training.trainer import Trainer


def snapshot(trainer: Trainer, metrics_bytes: int = 0, seconds: float = 0.0) -> Checkpoint:
    """The checkpoint of a trainer between two steps. All processes take part.

    Args:
        metrics_bytes: of metrics.jsonl, as far as it belongs to the steps that are done.
        seconds: at work so far.
    """
    optimizer, scale = trainer.optimizer, trainer.step.loss_scale
    names = [name for name, _ in trainer.model.named_parameters()]
    averages = {} if optimizer.averages is None else dict(zip(names, optimizer.averages, strict=True))
    state: dict[str, Any] = {
        "schedule": trainer.schedule.state(),
        "window": trainer.window,
        "steps": trainer.steps_done,
        "finished": trainer.finished,
        "averages": averages,
        "averaged_steps": optimizer.averaged_steps,
        "hidden": trainer.world.gather_columns(trainer.state),
        "masks": trainer.step.masks.generator.get_state(),
        "device": trainer.world.device.type,
        "interval": trainer.interval.state(),
        "epoch": trainer.epoch.state(),
        "loss_scale": [] if scale is None else [scale.factor, scale.streak],
        "metrics_bytes": metrics_bytes,
        "seconds": seconds,
    }
    return Checkpoint(dict(trainer.model.named_parameters()), trainer.best, state)


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Put a new trainer where ``snapshot`` found the old one; the number of processes may be another."""
    state, device = checkpoint.state, trainer.world.device
    trainer.set_weights(checkpoint.weights)
    trainer.best = {name: value.to(device) for name, value in checkpoint.best.items()}
    trainer.schedule.load(state["schedule"])
    trainer.window, trainer.steps_done = state["window"], state["steps"]
    trainer.finished, trainer.seconds = state["finished"], state["seconds"]
    trainer.metrics_bytes = state["metrics_bytes"]
    restore_averages(trainer, state)
    own = trainer.world.columns(trainer.config.training.batch)
    trainer.state = [
        (h[:, own].contiguous().to(device), c[:, own].contiguous().to(device)) for h, c in state["hidden"]
    ]
    trainer.interval.load(state["interval"])
    trainer.epoch.load(state["epoch"])
    trainer.step.steps.fill_(trainer.steps_done)
    scale = trainer.step.loss_scale
    if scale is not None:
        scale.factor.copy_(state["loss_scale"][0])
        scale.streak.copy_(state["loss_scale"][1])
    restore_masks(trainer, state)


def restore_averages(trainer: Trainer, state: dict[str, Any]) -> None:
    """The running average of the weights, where one had begun."""
    if state["averages"]:
        names = [name for name, _ in trainer.model.named_parameters()]
        trainer.optimizer.averages = [state["averages"][name].to(trainer.world.device) for name in names]
        trainer.optimizer.averaged_steps = state["averaged_steps"]


def restore_masks(trainer: Trainer, state: dict[str, Any]) -> None:
    """The random state of the masks, which fits devices of one kind only."""
    device = trainer.world.device.type
    if state["device"] == device:
        trainer.step.masks.generator.set_state(state["masks"])
    else:
        warnings.warn(
            f"the run was on {state['device']} and goes on on {device}, whose random numbers are others: the "
            f"masks begin anew",
            stacklevel=3,
        )
