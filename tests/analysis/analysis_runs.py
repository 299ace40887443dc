"""Small runs on a small English text: real folders with real models, never trained."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torch_pru.lm.checkpoint import Checkpoint, save_checkpoint
from torch_pru.lm.config import Config, build_config
from torch_pru.lm.data import Corpus, load_corpus
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.trainer import Trainer

NOUNS = ["dog", "cat", "house", "man", "river", "price", "year", "bank"]
VERBS = ["sees", "likes", "builds", "sells", "finds"]
MODELS: dict[str, dict[str, Any]] = {
    "pru": {"unit": "pru", "levels": 2, "groups": 2},
    "deep": {"unit": "pru", "levels": 3, "groups": 1},
    "flat": {"unit": "pru", "levels": 1, "groups": 1},
    "lstm": {"unit": "lstm"},
    "mixture": {"unit": "lstm", "experts": 3},
}


def write_corpus(folder: Path, lines: int = 40, extra: str = "") -> Path:
    draw = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        text = []
        for _ in range(lines):
            a, b = draw.choice(NOUNS), draw.choice(NOUNS)
            text.append(
                f"the old {a} quickly {draw.choice(VERBS)} the <unk> {b} and he {draw.choice(VERBS)} it"
            )
        (folder / f"{split}.txt").write_text("\n".join([*text, extra or "the end"]) + "\n")
    return folder


def config_of(kind: str, corpus: Path) -> Config:
    return build_config(kind, {"corpus": str(corpus), "embedding": 8, "hidden": [12, 8], **MODELS[kind]})


def model_of(kind: str, words: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A model whose weights are large enough that it has opinions."""
    config = config_of(kind, Path("nowhere"))
    torch.manual_seed(seed)
    model = LanguageModel(config.model, config.regularization, words).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def write_run(
    folder: Path, kind: str, corpus: Path, *, weights: bool = True, epochs: int = 3, seed: int = 0
) -> Path:
    config = config_of(kind, corpus)
    loaded = load_corpus(str(corpus))
    run = RunFolder.create(folder, config, loaded)
    lines = [
        {"kind": "epoch", "epoch": epoch, "train_loss": 5 - epoch / 10, "valid_loss": 4.5 + 1 / epoch}
        | {"best_valid_loss": 4.5 + 1 / epoch, "decision": "continue", "clock": {"seconds": 60.0 * epoch}}
        for epoch in range(1, epochs + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if weights:
        weights_of_run = model_of(kind, len(loaded.vocabulary), seed).state_dict()
        state = trainer_state(config, loaded)
        save_checkpoint(run.checkpoints, Checkpoint(weights_of_run, weights_of_run, state))
    return folder


def trainer_state(config: Config, corpus: Corpus) -> dict[str, Any]:
    """The state of a trainer before its first step; the text is repeated, because it may be too short."""
    text = corpus.train.repeat(1 + 5000 // len(corpus.train))
    longer = replace(corpus, train=text, valid=text)
    return dict(Trainer(config, longer, World(torch.device("cpu"))).checkpoint().state)


def literal_log_softmax(logits: list[float]) -> list[float]:
    largest = max(logits)
    total = math.log(sum(math.exp(value - largest) for value in logits)) + largest
    return [value - total for value in logits]
