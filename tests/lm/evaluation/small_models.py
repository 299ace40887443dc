"""Small models trained on a made-up language, in a second."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import columns
from torch_pru.lm.model import LanguageModel

WORDS = 30
UNITS = {
    "pru": ModelConfig(unit="pru", embedding=16, hidden=(24, 16), levels=2, groups=2),
    "lstm": ModelConfig(unit="lstm", embedding=16, hidden=(24, 16)),
    "mixture": ModelConfig(unit="lstm", embedding=16, hidden=(24,), experts=3),
}


def speak(length: int, seed: int) -> Tensor:
    """A text in which each word has three likely followers."""
    table = torch.distributions.Dirichlet(torch.full((WORDS,), 0.1))
    torch.manual_seed(0)
    followers = table.sample((WORDS,))
    generator = torch.Generator().manual_seed(seed)
    ids = [0]
    while len(ids) < length:
        ids.append(int(torch.multinomial(followers[ids[-1]], 1, generator=generator)))
    return torch.tensor(ids)


def small_model(unit: str = "pru", seed: int = 0) -> LanguageModel:
    torch.manual_seed(seed)
    # With every dropout on: evaluation must switch them all off.
    return LanguageModel(UNITS[unit], RegularizationConfig(), WORDS).eval()


def taught(unit: str, text: Tensor) -> LanguageModel:
    """A model after six passes of plain Adam, without dropout."""
    model = small_model(unit)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    rows = columns(text, 20)
    for _ in range(6):
        state = model.initial_state(20)
        for start in range(0, len(rows) - 20, 20):
            hidden = model.hidden(rows[start : start + 20], state)
            state = [(h.detach(), c.detach()) for h, c in hidden.state]
            loss = model.nll(hidden.raw, rows[start + 1 : start + 21]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    optimizer.zero_grad()
    return model
