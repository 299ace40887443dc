"""A small run on the Penn Treebank, held to what it reached when it was measured."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training import train

LINES = {"train": 4000, "valid": 1000, "test": 100}
SETTINGS = {
    "embedding": "64",
    "hidden": "[96, 64]",
    "groups": "2",
    "input_dropout": "0.1",
    "hidden_dropout": "0.1",
    "output_dropout": "0.1",
    "embedding_dropout": "0.02",
    "weight_drop": "0.2",
    "batch": "10",
    "window": "35",
    "learning_rate": "20",
    "epochs": "3",
    "device": "cpu",
}

# Measured: 371.70, 384.86 and 367.11 after the third epoch with seeds 1, 2 and 3 (426.07, 431.13 and 420.44
# after the second): the worst plus 3%, out of reach for one epoch less.
BOUND = 1.03 * 384.86


def ptb_excerpt(data_folder: Path, folder: Path) -> Path:
    """The first lines of each split."""
    for split, lines in LINES.items():
        with open(data_folder / "penn" / f"{split}.txt") as text:
            (folder / f"{split}.txt").write_text("".join(islice(text, lines)))
    return folder


@pytest.mark.slow
def test_a_small_run_on_ptb_learns_as_it_did(data_folder: Path, tmp_path: Path) -> None:
    corpus = ptb_excerpt(data_folder, tmp_path)
    config = load_recipe("ptb-awd-pru-g2", SETTINGS | {"corpus": str(corpus)})
    run = train(config, tmp_path / "run")
    found = [line["valid_perplexity"] for line in run.metrics() if line["kind"] == "epoch"]
    assert found[-1] < BOUND
