"""A small corpus and a small configuration that the tests of training share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_pru.lm.config import Config, build_config
from torch_pru.lm.data.corpus import Corpus
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel, Masks
from torch_pru.lm.training.optimizer import AveragedSGD

WORDS = 40
NO_DROPOUT = {
    "input_dropout": 0.0,
    "hidden_dropout": 0.0,
    "output_dropout": 0.0,
    "embedding_dropout": 0.0,
    "weight_drop": 0.0,
}


def write_corpus(folder: Path, lines: int = 56) -> Path:
    """Text with something to learn: each word makes one of four others likely."""
    numbers = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", lines), ("valid", lines // 4), ("test", lines // 4)):
        text, word = [], 0
        for _ in range(count):
            line = []
            for _ in range(numbers.randint(5, 11)):
                word = (3 * word + numbers.choice([1, 1, 1, 2, 5])) % WORDS
                line.append(f"w{word}")
            text.append(" ".join(line))
        (folder / f"{split}.txt").write_text("\n".join([*text, "<unk>"]) + "\n")
    return folder


def small_corpus(tokens: int = 400) -> Corpus:
    generator = torch.Generator().manual_seed(3)

    def text(length: int) -> torch.Tensor:
        return torch.randint(0, WORDS, (length,), generator=generator)

    vocabulary = Vocabulary([f"w{number}" for number in range(WORDS)])
    return Corpus(train=text(tokens), valid=text(100), test=text(100), vocabulary=vocabulary)


SMALL: dict[str, Any] = {
    "embedding": 8,
    "hidden": [12, 8],
    "batch": 4,
    "window": 10,
    "epochs": 4,
    "learning_rate": 3.0,
    "trigger_window": 1,
    "valid_batch": 2,
    "log_steps": 7,
    "checkpoint_minutes": 0.0,
    "device": "cpu",
}


def small_config(**settings: Any) -> Config:
    return build_config("small", SMALL | settings)


def small_model(seed: int = 0, words: int = WORDS, **settings: Any) -> LanguageModel:
    config = small_config(**settings)
    torch.manual_seed(seed)
    return LanguageModel(config.model, config.regularization, words)


def small_masks(seed: int = 5) -> Masks:
    return Masks(torch.Generator().manual_seed(seed))


def step_along(optimizer: AveragedSGD, gradients: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
    """An optimizer step with these gradients; returns their norm."""
    for parameter, gradient in zip(optimizer.params, gradients, strict=True):
        parameter.grad = gradient
    return optimizer.step(**options)
