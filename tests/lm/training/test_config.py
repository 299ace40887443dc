"""Settings: what is refused, and how it is said."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from torch_pru import PRUError
from torch_pru.lm.config import (
    SECTIONS,
    Config,
    ModelConfig,
    build_config,
    flat_settings,
    second_stage,
    section_of,
)
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training import api


def test_names_are_unique_over_all_sections_and_every_setting_has_help() -> None:
    fields = [item for kind in SECTIONS.values() for item in dataclasses.fields(kind)]
    assert len({item.name for item in fields}) == len(fields) == len(section_of())
    assert all(item.metadata["help"] for item in fields)


def test_settings_survive_a_round_trip() -> None:
    config = build_config("mine", {"epochs": 3, "hidden": [5, 7, 400], "pool_window": [5, 3]})
    assert build_config("mine", flat_settings(config)) == config
    assert config.model.hidden == (5, 7, 400)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epoch": 3}, "'epoch' is not a setting; did you mean 'epochs'?"),
        ({"epochs": 0}, "epochs=0 must be a positive integer"),
        ({"epochs": 2.5}, "epochs=2.5 must be an integer"),
        ({"epochs": True}, "epochs=True must be an integer"),
        ({"weight_drop": 1.0}, "weight_drop=1.0 must be a number in [0, 1)"),
        ({"variational": 1}, "variational=1 must be true or false"),
        ({"precision": "bf16"}, "precision='bf16' is not known; use 'float32', 'bfloat16'"),
        (
            {"unit": "lst"},
            "unit='lst' is not known; use 'pru', 'lstm' or 'fused-lstm'; did you mean 'lstm'?",
        ),
        ({"learning_rate": 0}, "learning_rate=0.0 must be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be greater than 0"),
        ({"weight_decay": -1e-6}, "weight_decay=-1e-06 must be 0 or greater"),
        ({"window": 4}, "window=4 must be at least 5"),
        ({"hidden": []}, "hidden=[] has no layer"),
        ({"hidden": [1150, 1150]}, "ends in 1150, but the decoder is tied to embedding=400"),
        ({"hidden": "1150"}, "hidden='1150' must be a list"),
        (
            {"unit": "lstm", "groups": 4},
            "groups=4: for a PRU only; leave it out, or set unit to 'pru'",
        ),
        ({"latent_dropout": 0.2}, "latent_dropout=0.2 belongs to a mixture of softmaxes"),
        ({"corpus": ""}, "corpus='' is not a text"),
        ({"corpus": os.fsdecode(b"caf\xe9")}, "corpus='caf\\udce9' is not UTF-8"),
    ],
)
def test_bad_values_are_refused_with_what_would_be_right(settings: dict[str, object], said: str) -> None:
    with pytest.raises(PRUError) as error:
        build_config("mine", settings)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["../escape", "/tmp/escape", "a\\b", "..", ".", "", os.fsdecode(b"caf\xe9")])
def test_a_name_is_that_of_a_folder(name: str) -> None:
    with pytest.raises(PRUError, match=r"^name="):
        build_config(name, {})


def test_finetuning_changes_what_its_section_says_and_nothing_else() -> None:
    config = build_config("mine", {"hidden_dropout": 0.1, "epochs": 7}, {"hidden_dropout": 0.3, "seed": 4})
    assert config.regularization.hidden_dropout == 0.1
    later = second_stage(config)
    assert later == build_config("mine", {"hidden_dropout": 0.3, "epochs": 7, "seed": 4})
    assert second_stage(later) == later
    assert second_stage(config, {"hidden_dropout": 0.5}).regularization.hidden_dropout == 0.5


@pytest.mark.parametrize(
    ("finetuning", "said"),
    [
        ({"hidden_dropot": 0.3}, "[finetuning] 'hidden_dropot' is not a setting; did you mean"),
        ({"hidden_dropout": 1.5}, "[finetuning] hidden_dropout=1.5 must be a number in [0, 1)"),
        ({"embedding": 200}, "[finetuning] embedding cannot be changed in finetuning"),
        ({"corpus": "ptb"}, "[finetuning] corpus cannot be changed in finetuning"),
    ],
)
def test_bad_finetuning_is_refused_before_training(finetuning: dict[str, object], said: str) -> None:
    with pytest.raises(PRUError) as error:
        build_config("mine", {}, finetuning)
    assert said in str(error.value)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().name = "other"  # type: ignore[misc]


def test_with_experts_the_last_layer_is_free() -> None:
    assert ModelConfig(unit="lstm", embedding=280, hidden=(960, 960, 620), experts=15).hidden[-1] == 620


@pytest.mark.parametrize(
    ("device", "capability", "expected"),
    [("cpu", (9, 0), "float32"), ("cuda", (9, 0), "bfloat16"), ("cuda", (7, 5), "float32")],
)
def test_auto_precision_is_what_the_device_has(
    device: str,
    capability: tuple[int, int],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "choose_device", lambda name: torch.device(device))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    run = api.NewRun(load_recipe("ptb-awd-pru-g4"), tmp_path / "run")
    assert run.config.training.precision == expected
    chosen = api.NewRun(load_recipe("ptb-awd-pru-g4", {"precision": "float16"}), tmp_path / "run")
    assert chosen.config.training.precision == "float16"
