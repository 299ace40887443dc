"""Recipes and run folders of earlier versions, converted on reading."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torch_pru.migrate import migrate_names


def migrate_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a recipe or a run's config.toml with the current names of sections and settings.

    Before 0.1 ``[regularization]`` had its British spelling, ``epochs`` was the number after which training
    stopped early, and ``extend_to`` the largest number.

    Args:
        content: of the file, with sections.

    Example:
        >>> migrate_settings({"regularisation": {}, "training": {"epochs": 200, "extend_to": 500}})
        {'regularization': {}, 'training': {'epochs': 500, 'early_stop_from': 200}}
    """
    if "regularization" not in content:
        content = {OLD_SECTIONS.get(section, section): settings for section, settings in content.items()}
    training = content.get("training")
    if not isinstance(training, dict) or "extend_to" not in training:
        return content
    epochs, most = training.get("epochs"), training["extend_to"]
    current = {key: value for key, value in training.items() if key != "extend_to"}
    if isinstance(epochs, int) and isinstance(most, int) and most > epochs:
        current |= {"epochs": most, "early_stop_from": epochs}
    return content | {"training": current}


OLD_SECTIONS = {"regularisation": "regularization"}


def migrate_state(state: dict[str, Any]) -> dict[str, Any]:
    """The trainer's state in the layout of ``Trainer.state_dict``.

    Before 0.1 the state was one flat dictionary with other names.

    Args:
        state: from a checkpoint, in the old or the current layout.
    """
    if "averages" not in state:  # the optimizer's since
        return state
    scale = state["loss_scale"]
    return {
        "schedule": state["schedule"],
        "optimizer": {"averages": state["averages"], "averaged_steps": state["averaged_steps"]},
        "masks": {"device": state["device"], "generator": state["masks"]},
        "loss_scale": {"scale": scale[0], "good_steps": scale[1]} if scale else {},
        "recurrent_state": state["hidden"],
        "log_loss": state["interval"],
        "epoch_loss": state["epoch"],
        "global_step": state["steps"],
        "step_in_epoch": state["window"],
        "finished": state["finished"],
        "metrics_bytes": state["metrics_bytes"],
        "seconds": state["seconds"],
    }


def migrate_weights(
    weights: dict[str, Tensor], best: dict[str, Tensor], state: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """The contents of a checkpoint with the current names and shapes of all parameters.

    Weight drop draws its masks in the layout of the weights: the state of their generator is dropped.

    Args:
        state: in the current layout, from :func:`migrate_state`.
    """
    migrated = migrate_names(weights)
    if migrated.keys() == weights.keys():
        return weights, best, state
    optimizer = state["optimizer"] | {"averages": migrate_names(state["optimizer"]["averages"])}
    masks = state["masks"] | {"generator": None}
    return migrated, migrate_names(best), state | {"optimizer": optimizer, "masks": masks}
