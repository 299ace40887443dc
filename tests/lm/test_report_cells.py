"""Which recipe a run belongs to."""

from __future__ import annotations

from dataclasses import replace

from torch_pru.lm.data.corpus import located
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.report_cells import nearest_recipe


def test_the_recipe_of_the_same_name_is_the_nearest() -> None:
    changes = {"hidden": "[1000, 1000, 400]", "groups": "2"}
    config = load_recipe("ptb-awd-pru-g4", changes)
    name, found = nearest_recipe(config, "finetune")
    assert (name, found["hidden"], found["groups"]) == ("ptb-awd-pru-g4", (1000, 1000, 400), 2)


def test_a_recipe_with_equal_settings_is_nearer_than_one_of_the_same_name() -> None:
    config = replace(load_recipe("ptb-awd-pru-g4-published"), name="ptb-awd-pru-g4")
    assert nearest_recipe(config) == ("ptb-awd-pru-g4-published", {})


def test_a_run_of_today_belongs_to_its_row() -> None:
    """A run names the tokenizer that its recipe leaves open."""
    config = load_recipe("ptb-pru-g4")
    trained = replace(config, data=located(config.data))
    assert trained.data.tokenizer == "spaces"
    assert nearest_recipe(trained) == ("ptb-pru-g4", {})
    other = replace(config, data=replace(config.data, tokenizer="characters"))
    assert nearest_recipe(other) == ("ptb-pru-g4", {"tokenizer": "characters"})


def test_a_recipe_of_ones_own_is_nearest_to_the_one_with_the_fewest_other_settings() -> None:
    config = replace(load_recipe("ptb-pru-g2", {"epochs": "3"}), name="mine")
    assert nearest_recipe(config) == ("ptb-pru-g2", {"epochs": 3})


def test_a_run_on_a_text_without_a_recipe_comes_from_none() -> None:
    config = load_recipe("ptb-pru-g2", {"corpus": "my-text"})
    assert nearest_recipe(replace(config, name="mine")) == ("–", {})
    assert nearest_recipe(config) == ("ptb-pru-g2", {"corpus": "my-text"})
