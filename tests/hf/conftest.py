"""Small models of the toolkit, and the same in Transformers."""

from __future__ import annotations

import pytest
import torch

from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.model import LanguageModel

WORDS = 40
CONFIGS = {
    "pru": ModelConfig(unit="pru", embedding=16, hidden=(24, 16), levels=2, groups=2),
    "max": ModelConfig(unit="pru", embedding=16, hidden=(24, 16), levels=3, pooling="max", groups=4),
    "lstm": ModelConfig(unit="lstm", embedding=16, hidden=(24, 16)),
    "mixture": ModelConfig(unit="lstm", embedding=16, hidden=(24,), experts=3),
}


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(["<eos>", "<unk>", *(f"word{number}" for number in range(2, WORDS))])


@pytest.fixture(scope="session", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return language_model(request.param)


@pytest.fixture(scope="session")
def pru() -> LanguageModel:
    return language_model("pru")


def language_model(name: str) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(CONFIGS[name], RegularizationConfig(), WORDS).eval()
    for parameter in model.parameters():  # so that the words differ in probability, and the state matters
        torch.nn.init.normal_(parameter, std=0.3)
    return model
