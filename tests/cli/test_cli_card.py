"""The model card says what the run folder says."""

from __future__ import annotations

import shutil
from pathlib import Path

from command import pru

from torch_pru.lm.card import model_card
from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.run import RunFolder


def test_the_card_of_a_run(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    folder = RunFolder.open(copy)
    assert "No scores are recorded" in model_card(folder)
    pru("evaluate", copy, "--split", "test", "--cache")
    card = model_card(folder)
    scores = load_scores(copy)
    assert scores is not None
    for method in ("static", "cache"):
        found = scores.results[method]["test"]
        assert f"| {method} | test | {found['perplexity']:.2f} | {found['tokens']:,} | float32 |" in card
    assert scores.weights in card
    assert f"{scores.parameters['total']:,} parameters" in card
    assert f"a vocabulary of {len(folder.vocabulary):,} words" in card
    assert "`tiny`, trained, seed 7, best epoch " in card
    assert "| text | not published |" in card  # a path of the user's says nothing to others
    assert str(folder.config.data.corpus) not in card
    assert card.startswith("---\nlibrary_name: torch-pru\n")
