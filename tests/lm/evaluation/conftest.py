"""Texts and models that the evaluation tests share."""

from __future__ import annotations

import pytest
import torch
from small_models import UNITS, WORDS, speak, taught
from torch import Tensor

from torch_pru.lm.data import Vocabulary
from torch_pru.lm.model import LanguageModel


@pytest.fixture(scope="session")
def train_text() -> Tensor:
    return speak(2000, seed=1)


@pytest.fixture(scope="session")
def text() -> Tensor:
    return speak(303, seed=2)


@pytest.fixture(scope="session")
def repeating() -> Tensor:
    """The same thirty words over and over, in an order the models have not learned."""
    torch.manual_seed(3)
    return torch.randint(0, WORDS, (30,)).repeat(10)


@pytest.fixture(scope="session", params=list(UNITS))
def model(request: pytest.FixtureRequest, train_text: Tensor) -> LanguageModel:
    return taught(request.param, train_text)


@pytest.fixture(scope="session")
def pru(train_text: Tensor) -> LanguageModel:
    return taught("pru", train_text)


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(["<eos>", "<unk>", *(f"word{number}" for number in range(2, WORDS))])
