"""The recipes: one a row of the paper, with the paper's numbers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_pru import PRUError
from torch_pru.lm.config import Config
from torch_pru.lm.model import LanguageModel, ParameterCounts, parameter_counts
from torch_pru.lm.paper import Setup, sweep_cell
from torch_pru.lm.recipe import (
    config_text,
    finetuning_settings,
    list_recipes,
    load_recipe,
    settings_text,
)
from torch_pru.lm.report_cells import setup_settings

VOCABULARY = {"ptb": 10_000, "wikitext-2": 33_278}


def counts(config: Config) -> ParameterCounts:
    with torch.device("meta"):  # shapes without numbers
        model = LanguageModel(config.model, config.regularization, VOCABULARY[config.data.corpus])
    return parameter_counts(model)


# Millions, with two biases a gate and a biased, tied decoder: rounded, the counts of the paper's main table.
COUNTS = {
    "lstm-1000": (19.87, 29.20),
    "lstm-1200": (25.79, 35.13),
    "lstm-1400": (32.68, 42.01),
    "pru-g1": (18.97, 28.30),
    "pru-g2": (18.51, 27.85),
    "pru-g4": (18.90, 28.23),
    "awd-pru-g1": (18.97, 28.30),
    "awd-pru-g2": (18.51, 27.85),
    "awd-pru-g4": (18.90, 28.23),
    "awd-lstm": (24.22, 33.56),
}


@pytest.mark.parametrize("row", COUNTS)
def test_parameter_counts_of_the_main_table(row: str) -> None:
    for prefix, millions in zip(("ptb", "wt2"), COUNTS[row], strict=True):
        found = counts(load_recipe(f"{prefix}-{row}"))
        assert round(found.total / 1e6, 2) == millions
        assert found.total == found.embedding + found.recurrent + found.decoder


def test_parameter_counts_of_the_mixture_of_softmaxes() -> None:
    assert round(counts(load_recipe("ptb-mos-lstm")).total / 1e6) == 22
    assert round(counts(load_recipe("wt2-mos-lstm")).total / 1e6) == 35


@pytest.mark.parametrize("prefix", ["ptb", "wt2"])
def test_parameter_counts_of_the_ablations(prefix: str) -> None:
    # By hand: LT/LT is an LSTM of 600; GLT/GLT divides both products by 4; those with PT by differences.
    lstm = 4 * 600 * (600 + 600 + 2)
    assert counts(load_recipe(f"{prefix}-ablation-lt-lt")).recurrent == lstm
    grouped = 4 * 600 * (150 + 150 + 2)
    assert counts(load_recipe(f"{prefix}-ablation-glt-glt")).recurrent == grouped
    pt = counts(load_recipe(f"{prefix}-ablation-lt-pt")).recurrent
    assert counts(load_recipe(f"{prefix}-ablation-glt-pt")).recurrent == pt - 4 * 600 * (600 - 150)
    assert counts(load_recipe(f"{prefix}-ablation-lt-pt-no-residual")).recurrent == pt
    assert counts(load_recipe(f"{prefix}-pooling-average")).recurrent == pt
    sweep = {
        (levels, groups): load_recipe(f"{prefix}-sweep", {"levels": levels, "groups": groups})
        for levels, groups in (("4", "1"), ("1", "1"))
    }
    assert counts(sweep["4", "1"]).recurrent == pt
    assert counts(sweep["1", "1"]).recurrent == lstm
    assert counts(load_recipe(f"{prefix}-ablation-pt-pt")).recurrent == 2 * pt - lstm


@pytest.mark.parametrize("prefix", ["ptb", "wt2"])
def test_what_the_paper_reports_twice_is_one_run(prefix: str) -> None:
    def settings(row: str) -> dict[str, Any]:
        return setup_settings(Setup(f"{prefix}-{row}"))

    average = settings("ablation-lt-pt")
    assert average == settings("pooling-average") == setup_settings(sweep_cell(4, 1).setup(prefix))
    assert settings("ablation-glt-pt") == setup_settings(sweep_cell(4, 4).setup(prefix))
    assert settings("ablation-glt-pt-grouped") == setup_settings(sweep_cell(4, 4, 4).setup(prefix))
    assert average != settings("ablation-lt-pt-no-residual")


def test_parameter_counts_of_the_comparison() -> None:
    """Arms of equal parameters are within half a percent of one another."""
    for first, *others in (
        [
            "ptb-awd-pru-g4",
            "ptb-awd-pru-g4-tuned",
            "ptb-awd-lstm-964",
            "ptb-awd-pru-k1",
            "ptb-awd-pru-k1-no-residual",
            "ptb-awd-pru-g1",
        ],
        ["wt2-awd-pru-g4", "wt2-awd-lstm-964"],
    ):
        wanted = counts(load_recipe(first)).total
        for name in others:
            assert counts(load_recipe(name)).total == pytest.approx(wanted, rel=0.005), name
    for width in (1150, 1400):
        sizes = {"unit": "lstm", "hidden": f"[{width}, {width}, 400]"}
        lstm = counts(load_recipe("ptb-awd-lstm", sizes)).recurrent
        assert counts(load_recipe(f"ptb-awd-lstm-{width}")).recurrent == lstm


@pytest.mark.parametrize("file", ["results/PLAN.md", "RESULTS.md"])
def test_commands_in_the_documents_name_recipes_that_exist(file: str) -> None:
    text = (Path(__file__).parents[3] / file).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"pru train ((?:(?:ptb|wt2)-[\w-]+ *)+)", text)
    names = {name for line in lines for name in line.split()}
    assert len(names) > 15
    assert names <= set(list_recipes())


def test_every_row_is_there() -> None:
    rows = [*COUNTS, "mos-lstm", "sweep"]
    rows += [
        f"ablation-{row}" for row in ("lt-lt", "glt-glt", "glt-pt", "lt-pt", "pt-pt", "lt-pt-no-residual")
    ]
    rows += [f"pooling-{kind}" for kind in ("skip", "max", "average", "convolution")]
    wanted = {f"{prefix}-{row}" for prefix in ("ptb", "wt2") for row in rows} | {"quickstart"}
    assert wanted <= set(list_recipes())
    for name in list_recipes():
        assert load_recipe(name).name == name


@pytest.mark.parametrize(
    ("name", "drops", "batch", "epochs"),
    [
        ("ptb-awd-lstm-published", (0.4, 0.25, 0.4), 20, 500),
        ("wt2-awd-lstm-published", (0.4, 0.2, 0.65), 80, 750),
    ],
)
def test_awd_numbers(name: str, drops: tuple[float, ...], batch: int, epochs: int) -> None:
    config = load_recipe(name)
    rates, settings = config.regularization, config.training
    assert (rates.output_dropout, rates.hidden_dropout, rates.input_dropout) == drops
    assert (rates.embedding_dropout, rates.weight_drop, rates.weight_decay) == (0.1, 0.5, 1.2e-6)
    assert (rates.activation, rates.temporal, rates.variational) == (2.0, 1.0, True)
    assert (settings.learning_rate, settings.clip, settings.window) == (30.0, 0.25, 70)
    assert (settings.batch, settings.epochs, settings.early_stop_from) == (batch, epochs, 0)
    assert (settings.trigger_window, settings.valid_batch) == (5, 10)
    assert (config.model.embedding, config.model.hidden) == (400, (1150, 1150, 400))


def test_the_defaults_are_awd_lstms_for_ptb() -> None:
    ptb, model = load_recipe("_ptb-awd"), load_recipe("ptb-awd-lstm").model
    assert (Config().regularization, Config().training) == (ptb.regularization, ptb.training)
    assert (Config().model.embedding, Config().model.hidden) == (model.embedding, model.hidden)


@pytest.mark.parametrize(
    ("prefix", "sizes", "drops", "batch", "rate"),
    [
        ("ptb", (280, 960, 960, 620), (0.4, 0.225, 0.4, 0.29), 12, 20.0),
        ("wt2", (300, 1150, 1150, 650), (0.55, 0.2, 0.4, 0.29), 15, 15.0),
    ],
)
def test_mixture_of_softmaxes_numbers(
    prefix: str, sizes: tuple[int, ...], drops: tuple[float, ...], batch: int, rate: float
) -> None:
    config = load_recipe(f"{prefix}-mos-lstm")
    rates, settings = config.regularization, config.training
    assert (config.model.embedding, *config.model.hidden) == sizes
    assert config.model.experts == 15
    found = rates.input_dropout, rates.hidden_dropout, rates.output_dropout, rates.latent_dropout
    assert found == drops
    assert (settings.batch, settings.learning_rate) == (batch, rate)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_awd_pru_numbers(groups: int) -> None:
    for name, input_dropout, length in (
        (f"ptb-awd-pru-g{groups}", 0.4, (500, 20)),
        (f"ptb-awd-pru-g{groups}-published", 0.4, (500, 20)),
        (f"wt2-awd-pru-g{groups}", 0.65, (400, 20)),
        (f"wt2-awd-pru-g{groups}-published", 0.65, (500, 80)),
    ):
        config = load_recipe(name)
        assert (config.training.epochs, config.training.batch) == length
        assert config.regularization.input_dropout == input_dropout


@pytest.mark.parametrize(("name", "weight_drop"), [("ptb-awd-lstm", 0.5), ("ptb-awd-pru-g4", 0.3)])
def test_ptb_begins_to_average_late_with_either_unit(name: str, weight_drop: float) -> None:
    """Equal settings, so that PRU and LSTM can be compared; the weight drop fits the width of a group."""
    trained = load_recipe(name)
    finetuned = finetuning_settings(trained)
    rates = trained.regularization
    assert (rates.hidden_dropout, rates.embedding_dropout, rates.weight_drop) == (0.3, 0.15, weight_drop)
    assert (rates.activation, rates.temporal) == (3.0, 2.0)
    assert (trained.training.rotate_columns, trained.training.trigger_window) == (True, 100)
    assert (finetuned.training.epochs, finetuned.training.learning_rate) == (250, 20.0)
    rates = finetuned.regularization
    assert (rates.hidden_dropout, rates.embedding_dropout, rates.weight_drop) == (0.35, 0.25, weight_drop)


def test_wikitext_begins_to_average_late_and_ends_finetuning_soon() -> None:
    """A window of 5 fires on the noise of a small batch; in finetuning it is what ends a round."""
    trained = load_recipe("wt2-awd-pru-g4")
    finetuned = finetuning_settings(trained)
    assert (trained.training.epochs, trained.training.trigger_window) == (400, 150)
    assert (finetuned.training.epochs, finetuned.training.trigger_window) == (80, 5)
    assert (trained.training.learning_rate, finetuned.training.learning_rate) == (20.0, 10.0)
    assert finetuned.regularization == trained.regularization


@pytest.mark.parametrize("name", ["ptb-lstm-1000", "wt2-pru-g4", "ptb-ablation-lt-pt", "wt2-sweep"])
def test_standard_dropout_numbers(name: str) -> None:
    config = load_recipe(name)
    rates, settings = config.regularization, config.training
    assert (rates.input_dropout, rates.hidden_dropout, rates.output_dropout) == (0.5, 0.5, 0.5)
    assert (rates.embedding_dropout, rates.weight_drop, rates.variational) == (0.0, 0.0, False)
    assert (rates.activation, rates.temporal) == (2.0, 1.0)
    assert (settings.epochs, settings.early_stop_from) == (500, 200)


def test_overrides_and_a_saved_config_read_back(tmp_path: Path) -> None:
    config = load_recipe("ptb-awd-pru-g4", {"epochs": "3", "hidden": "[8, 400]", "corpus": "here"})
    assert (config.training.epochs, config.model.hidden, config.data.corpus) == (3, (8, 400), "here")
    (tmp_path / "config.toml").write_text(config_text(config))
    assert load_recipe(tmp_path / "config.toml") == config


def test_finetuning_is_built_upon_and_read_back(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text("[finetuning]\nhidden_dropout = 0.3\nactivation = 4\n")
    (tmp_path / "mine.toml").write_text('base = "first.toml"\n[finetuning]\nhidden_dropout = 0.4\n')
    config = load_recipe(tmp_path / "mine.toml", {"hidden_dropout": "0.2"})
    assert config.regularization.hidden_dropout == 0.2
    assert config.finetuning == {"hidden_dropout": 0.4, "activation": 4}
    (tmp_path / "config.toml").write_text(config_text(config))
    assert load_recipe(tmp_path / "config.toml") == config
    later = finetuning_settings(config, {"temporal": "3"}).regularization
    assert (later.hidden_dropout, later.activation, later.temporal) == (0.4, 4.0, 3.0)
    with pytest.raises(
        PRUError, match=r"^--set temporl=3: 'temporl' is not a setting; did you mean 'temporal'"
    ):
        finetuning_settings(config, {"temporl": "3"})


def refused(tmp_path: Path, text: str, overrides: dict[str, str] | None = None) -> str:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(PRUError) as error:
        load_recipe(tmp_path / "mine.toml", overrides)
    assert overrides or str(tmp_path / "mine.toml") in str(error.value)
    return str(error.value)


def test_the_british_spelling_of_earlier_recipes_is_read(tmp_path: Path) -> None:
    text = settings_text(load_recipe("ptb-awd-pru-g4"))
    for name, section in (("new", "regularization"), ("old", "regularisation")):
        (tmp_path / f"{name}.toml").write_text(text.replace("[regularization]", f"[{section}]"))
    (tmp_path / "built-upon.toml").write_text('base = "old.toml"\n[regularization]\nweight_drop = 0.2\n')
    new, old, built_upon = (load_recipe(tmp_path / f"{name}.toml") for name in ("new", "old", "built-upon"))
    assert "[regularization]" in text
    assert dataclasses.replace(old, name="new") == new
    assert built_upon.regularization == dataclasses.replace(new.regularization, weight_drop=0.2)
    (tmp_path / "both.toml").write_text("[regularization]\n[regularisation]\n")
    with pytest.raises(PRUError, match="'regularisation' is not a section; did you mean 'regularization'"):
        load_recipe(tmp_path / "both.toml")


def test_bad_recipes_are_refused_with_file_and_key(tmp_path: Path) -> None:
    said = refused(tmp_path, "[training]\nepoch = 3\n")
    assert "[training] 'epoch' is not a setting; did you mean 'epochs'?" in said
    assert "[model]" in refused(tmp_path, "[training]\ngroups = 3\n")
    assert "did you mean 'training'?" in refused(tmp_path, "[trainin]\nepochs = 3\n")
    assert "belongs under [training]" in refused(tmp_path, "epochs = 3\n")
    assert "epochs='3' must be an integer" in refused(tmp_path, '[training]\nepochs = "3"\n')
    said = refused(tmp_path, "[finetuning]\nhidden_dropot = 0.3\n")
    assert "[finetuning] 'hidden_dropot' is not a setting; did you mean 'hidden_dropout'?" in said
    assert "[finetuning] groups cannot be changed in finetuning" in refused(
        tmp_path, "[finetuning]\ngroups = 2\n"
    )
    assert "did you mean 'finetuning'?" in refused(tmp_path, "[finetunig]\nactivation = 4\n")
    assert "not a TOML file" in refused(tmp_path, "[training\n")
    assert "base: there is no recipe 'ptb-awd-prug4'; did you mean" in refused(
        tmp_path, 'base = "ptb-awd-prug4"'
    )
    assert "base leads back" in refused(tmp_path, 'base = "mine.toml"')
    assert "base leads back" in refused(tmp_path, f'base = "../{tmp_path.name}/mine.toml"')
    assert "--set epoch=3: 'epoch' is not a setting; did you mean 'epochs'?" in refused(
        tmp_path, "", {"epoch": "3"}
    )
    assert "did you mean 'epochs'?" in refused(tmp_path, "", {"training.epochs": "3"})
    assert "epochs='three' must be an integer" in refused(tmp_path, "", {"epochs": "three"})


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(PRUError, match="no recipe 'ptb-awd-pru4'; did you mean 'ptb-awd-pru-g4'"):
        load_recipe("ptb-awd-pru4")
    with pytest.raises(PRUError, match="no recipe file"):
        load_recipe("nowhere.toml")


def test_a_recipe_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[training]\nepochs = 3\n", encoding="utf-8-sig")
    assert load_recipe(tmp_path / "mine.toml").training.epochs == 3
