"""The single step in ONNX beside PyTorch, for every kind of unit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

for package in ("onnx", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra torch-pru[onnx]")

import onnxruntime

from torch_pru import PRU
from torch_pru.cell import context_gates, input_gates
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.model import LanguageModel
from torch_pru.page.step import step_model
from torch_pru.pooling import pyramid

WORDS = 50
CONFIGS = {
    "quickstart": ModelConfig(embedding=32, hidden=(32,), levels=2, groups=4),
    "three layers": ModelConfig(embedding=16, hidden=(32, 32, 16), levels=3, groups=2, input_groups=2),
    "max": ModelConfig(embedding=16, hidden=(24, 16), levels=3, pooling="max", pool_window=(3, 5)),
    "skip": ModelConfig(embedding=16, hidden=(16,), levels=2, pooling="skip", residual=False),
    "convolution": ModelConfig(embedding=16, hidden=(16,), levels=3, pooling="convolution"),
    "pyramidal context": ModelConfig(
        embedding=16, hidden=(16,), levels=2, context_transform="pyramidal", pooling="max"
    ),
    "linear": ModelConfig(
        embedding=16, hidden=(20, 16), input_transform="linear", context_transform="linear"
    ),
    "uneven groups": ModelConfig(embedding=16, hidden=(16,), levels=2, groups=2, input_groups=3),
    "equal levels": ModelConfig(embedding=24, hidden=(12, 24), levels=3, level_split="equal", groups=2),
    "nn.LSTM": ModelConfig(unit="lstm", embedding=16, hidden=(24, 16)),
    "fused LSTM": ModelConfig(unit="fused-lstm", embedding=16, hidden=(24, 16)),
    "mixture": ModelConfig(embedding=16, hidden=(24,), experts=3),
}


def language_model(name: str, std: float = 0.2) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(CONFIGS[name], RegularizationConfig(), WORDS).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return model


class Steps:
    """An ONNX step model, and its states between steps."""

    def __init__(self, model: LanguageModel, *, int8: bool = False) -> None:
        content = step_model(model, int8=int8).SerializeToString()
        self.bytes = len(content)
        self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.names = [each.name for each in self.session.get_outputs()]
        sizes = {each.name: each.shape for each in self.session.get_inputs()[1:]}
        self.state = {name: np.zeros(shape, np.float32) for name, shape in sizes.items()}

    def __call__(self, token: int) -> dict[str, np.ndarray]:
        feeds = {"token": np.array([token]), **self.state}
        found = dict(zip(self.names, self.session.run(None, feeds), strict=True))
        self.state = {name: found[f"next_{name}"] for name in self.state}
        return found


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_step_is_that_of_the_model(name: str):
    model = language_model(name)
    wide = language_model(name).double()
    steps, state = Steps(model), wide.initial_state(1)
    for token in (3, 7, 7, 0, 49, 12):
        hidden = wide.hidden(torch.tensor([[token]]), state)
        found, state = steps(token), hidden.state
        expected = wide.log_probabilities(hidden.raw)[0, 0]
        assert np.abs(found["log_probabilities"] - expected.numpy()).max() <= 1e-5
        assert np.abs(found["hidden"] - hidden.raw[0].numpy()).max() <= 1e-5
        for number, pair in enumerate(state, start=1):
            for kind, value in zip("hc", pair, strict=True):
                assert np.abs(found[f"next_{kind}_{number}"] - value[0].numpy()).max() <= 1e-5


@pytest.mark.parametrize("name", ["quickstart", "max", "convolution", "equal levels"])
@torch.no_grad()
def test_gates_and_levels_are_those_of_the_equations(name: str):
    model = language_model(name)
    layer = model.layers[0]
    assert isinstance(layer, PRU)
    spec, weights = layer.specs[0], layer.weights(0)
    steps = Steps(model)
    for token in (3, 7, 0):
        h, x = torch.from_numpy(steps.state["h_1"]), model.embedding.weight[token : token + 1]
        found = steps(token)
        sums = input_gates(x, weights, spec)[0] + context_gates(h, weights, spec)[0]
        expected = torch.stack([sums[0].sigmoid(), sums[1].sigmoid(), sums[2].tanh(), sums[3].sigmoid()])
        assert np.abs(found["gates_1"] - expected.numpy()).max() <= 1e-5
        views = pyramid(x, spec.input.pooling, spec.input.windows, weights.input_kernels)
        assert len(views) == CONFIGS[name].levels
        for level, view in enumerate(views):
            assert np.abs(found[f"level_1_{level}"] - view.numpy()).max() <= 1e-6


@torch.no_grad()
def test_eight_bits_are_a_quarter_of_the_size_and_nearly_the_same():
    torch.manual_seed(0)
    config = ModelConfig(embedding=64, hidden=(128, 64), levels=2, groups=4)
    model = LanguageModel(config, RegularizationConfig(), 2000).eval()
    plain, small = Steps(model), Steps(model, int8=True)
    assert small.bytes < 0.3 * plain.bytes
    for token in (3, 7, 7, 0, 49, 12):
        exact, found = (steps(token)["log_probabilities"] for steps in (plain, small))
        assert 1e-6 < np.abs(found - exact).max() < 0.02


def test_the_embedding_is_stored_once():
    torch.manual_seed(0)
    model = LanguageModel(ModelConfig(embedding=64, hidden=(64,)), RegularizationConfig(), 20_000)
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    assert Steps(model).bytes < 1.02 * weights
