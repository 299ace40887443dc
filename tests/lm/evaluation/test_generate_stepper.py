"""The stepper computes what the model computes, from weights that were folded once."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from itertools import islice

import pytest
import torch
from small_models import UNITS, WORDS, small_model

from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import generate
from torch_pru.lm.evaluation import stepper as stepper_module
from torch_pru.lm.evaluation.stepper import CHUNK, Stepper
from torch_pru.lm.model import LanguageModel
from torch_pru.ops import gates

TOKENS = torch.tensor([0, 5, 7, 3])
PRU = UNITS["pru"]
CONFIGS = UNITS | {
    "residual": dataclasses.replace(PRU, hidden=(16, 16)),
    "max": dataclasses.replace(PRU, pooling="max"),
    "skip": dataclasses.replace(PRU, pooling="skip", pool_window=3),
    "convolution": dataclasses.replace(PRU, pooling="convolution"),
    "grouped input": dataclasses.replace(PRU, input_groups=2),
    "pyramidal context": dataclasses.replace(PRU, context_transform="pyramidal"),
    "max context": dataclasses.replace(PRU, context_transform="pyramidal", pooling="max"),
    "linear": dataclasses.replace(PRU, input_transform="linear", context_transform="linear"),
    "fused-lstm": ModelConfig(unit="fused-lstm", embedding=16, hidden=(24, 16)),
}


def lively(config: ModelConfig) -> LanguageModel:
    """A model whose weights are large: what comes next depends on all that came before."""
    torch.manual_seed(0)
    model = LanguageModel(config, RegularizationConfig(), WORDS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.4)
    return model


def expected_scores(model: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        hidden = model.hidden(tokens[:, None], model.initial_state(1))
        return model.log_probabilities(hidden.raw[-1, 0])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.3)])
def test_scores_are_the_models(config: ModelConfig, dtype: torch.dtype, tolerance: float) -> None:
    model = lively(config)
    stepper = Stepper(model, dtype=dtype)
    stepper.read(TOKENS[:2])  # some at once, then one by one
    for end in (3, 4):
        scores = stepper.read(TOKENS[end - 1 : end]).log_softmax(0)
        torch.testing.assert_close(scores, expected_scores(model, TOKENS[:end]), atol=tolerance, rtol=0)


def test_a_barred_word_has_no_probability() -> None:
    for unit in UNITS:
        scores = Stepper(small_model(unit), barred=4).read(TOKENS)
        assert torch.isneginf(scores).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("unit", UNITS)
def test_the_likeliest_words_go_on_over_chunks(unit: str, vocabulary: Vocabulary) -> None:
    model, count = lively(UNITS[unit]), 2 * CHUNK + 5
    ids = islice(Stepper(model, vocabulary.unknown).likeliest(torch.tensor([0])), count)
    expected = list(islice(generate(model, vocabulary, temperature=0), count))
    assert [vocabulary.word(number) for number in ids] == expected


def test_the_model_and_the_random_numbers_are_left_alone() -> None:
    model = small_model().train()
    model.layers[0].generator = torch.Generator().manual_seed(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    text, state = str(model), torch.get_rng_state()
    Stepper(model, dtype=torch.bfloat16).read(TOKENS)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert str(model) == text
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_folding_is_exact_under_autocast() -> None:
    model = lively(PRU)
    with torch.autocast("cpu", torch.bfloat16):
        stepper = Stepper(model, dtype=torch.float32)
        scores = stepper.read(TOKENS).log_softmax(0)
    torch.testing.assert_close(scores, expected_scores(model, TOKENS), atol=1e-5, rtol=0)


def test_nothing_outlives_a_stepper() -> None:
    stepper = Stepper(small_model())
    stepper.read(TOKENS)
    weight = weakref.ref(stepper.model.embedding.weight)
    gc.disable()
    try:
        del stepper
        assert weight() is None
    finally:
        gc.enable()


def test_autocast_says_what_to_compute_in() -> None:
    model = small_model()
    assert Stepper(model).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        stepper = Stepper(model)
        assert stepper.dtype == torch.bfloat16
        assert stepper.read(TOKENS).dtype == torch.float32
    assert [c.dtype for _, c in stepper.state] == [torch.float32, torch.float32]


def test_folded_weights_lie_as_products_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 16-bit products on a GPU read them: with the gates of a unit side by side."""
    model = lively(PRU)
    plain = Stepper(model, dtype=torch.bfloat16).read(TOKENS).clone()
    for module in (stepper_module, gates):
        monkeypatch.setattr(module, "is_unit_major", lambda x: x.dtype == torch.bfloat16)
    stepper = Stepper(model, dtype=torch.bfloat16)
    for layer in stepper.model.layers:
        weight = layer.input
        assert weight.shape[:2] == (1, 4)
        assert weight[0].transpose(0, 1).is_contiguous()
    torch.testing.assert_close(stepper.read(TOKENS), plain, atol=0.1, rtol=0)
