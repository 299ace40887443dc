"""Runs and weights that were saved before parameters were flat on the layer are converted on reading.

``tests/old_format`` was written by that version: a run that was interrupted in training, with the scores of
its weights, and the weights and outputs of a few layers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from torch_pru import PRU, PRUCell
from torch_pru.lm.checkpoint import load_newest
from torch_pru.lm.evaluation import DynamicSettings, gradient_statistics, score, score_dynamic
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import resume

OLD = Path(__file__).parents[1] / "old_format"
LAYERS: dict[str, dict[str, Any]] = json.loads((OLD / "layers.json").read_text())


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A copy of the run, with its text."""
    shutil.copytree(OLD / "run", tmp_path / "run")
    shutil.copytree(OLD / "text", tmp_path / "text")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace('"text"', json.dumps(str(tmp_path / "text"))))
    return tmp_path / "run"


@pytest.mark.parametrize("which", ["best", "last"])
def test_static_and_dynamic_scores(old_run: Path, which: str) -> None:
    recorded = json.loads((OLD / "scores.json").read_text())
    run = RunFolder.open(old_run)
    model, corpus = run.model(which), run.corpus()
    assert score(model, corpus.valid).perplexity == pytest.approx(recorded[which]["static"], abs=1e-4)
    statistics = gradient_statistics(model, corpus.train, batch=recorded["batch"])
    settings = DynamicSettings(**recorded["settings"])
    found = score_dynamic(model, corpus.valid, statistics, settings).perplexity
    assert found == pytest.approx(recorded[which]["dynamic"], abs=1e-3)


def test_running_averages(old_run: Path) -> None:
    checkpoint = load_newest(old_run / "checkpoints")
    assert checkpoint is not None
    averages = checkpoint.state["optimizer"]["averages"]
    names = dict(RunFolder.open(old_run).model().named_parameters())
    assert averages.keys() == checkpoint.weights.keys() == checkpoint.best.keys() == names.keys()
    for name, parameter in names.items():
        assert averages[name].shape == checkpoint.weights[name].shape == parameter.shape
    # A step after they began, averages are near the weights: a wrong order would show.
    name = "layers.0.weight_hh_l0"
    correlation = torch.corrcoef(torch.stack([averages[name].flatten(), checkpoint.best[name].flatten()]))
    assert correlation[0, 1] > 0.9


def test_a_resumed_run_says_that_its_masks_are_drawn_anew(old_run: Path) -> None:
    with pytest.warns(UserWarning, match="earlier version.*dropout masks are drawn anew"):
        resume(old_run)
    run = RunFolder.open(old_run)
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    assert checkpoint.state["finished"]
    assert "layers.0.weight_hh_l0" in checkpoint.weights
    assert score(run.model(), run.corpus().valid).perplexity < 35.9  # it went on learning


@pytest.mark.parametrize(
    ("settings", "epochs", "early_stop_from"),
    [("epochs = 20\nextend_to = 50", 50, 20), ("epochs = 20\nextend_to = 0", 20, 0)],
)
def test_a_run_that_says_how_far_its_epochs_extend(
    old_run: Path, settings: str, epochs: int, early_stop_from: int
) -> None:
    config = old_run / "config.toml"
    text = config.read_text().replace("early_stop_from = 0\n", "").replace("epochs = 30", settings)
    config.write_text(text)
    training = RunFolder.open(old_run).config.training
    assert (training.epochs, training.early_stop_from) == (epochs, early_stop_from)


def old_layer(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of a layer, and the input and results beside it."""
    tensors = safetensors.torch.load_file(OLD / "layers.safetensors")
    mine = {
        key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")
    }
    state = {key.removeprefix("state/"): value for key, value in mine.items() if key.startswith("state/")}
    return state, {key: value for key, value in mine.items() if not key.startswith("state/")}


@pytest.mark.parametrize("name", LAYERS)
def test_states_of_layers(name: str) -> None:
    state, arrays = old_layer(name)
    pru = PRU(*LAYERS[name]["arguments"], **LAYERS[name]["options"])
    pru.load_state_dict(state)
    y, (_, c) = pru(arrays["x"])
    torch.testing.assert_close(y, arrays["y"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(c, arrays["c"], rtol=1e-5, atol=1e-6)
    inside = torch.nn.Sequential(pru)
    for parameter in pru.parameters():
        torch.nn.init.zeros_(parameter)
    inside.load_state_dict({f"0.{key}": value for key, value in state.items()})
    torch.testing.assert_close(inside(arrays["x"])[0], arrays["y"], rtol=1e-5, atol=1e-6)


def test_the_state_of_a_cell() -> None:
    state, arrays = old_layer("convolution")
    arguments = LAYERS["convolution"]
    cell = PRUCell(*arguments["arguments"], **arguments["options"])
    cell.load_state_dict({key.removeprefix("cells.0."): value for key, value in state.items()})
    h, _ = cell(arrays["x"][0])
    torch.testing.assert_close(h, arrays["y"][0], rtol=1e-5, atol=1e-6)
