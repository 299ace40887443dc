"""A live bar for each of several runs, on terminals of several widths."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from torch_pru.cli import training_view
from torch_pru.cli.training_view import TrainingView, label
from torch_pru.lm.training import TrainingProgress

STEP = TrainingProgress("train", 1, 3, 500, 50, 686, 4.5, 9123.4, 7380.0, None, None, False)
FOLDERS = [Path("runs/ptb-awd-pru-g4-1"), Path("runs/ptb-awd-pru-g4-2"), Path("runs/a-[b]-1")]


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short, an epoch has a line."""
    monkeypatch.setattr(training_view, "SHORT_EPOCH", 0.0)


def shown(width: int) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, _environ={"TERM": "xterm"})
    with TrainingView(console, FOLDERS) as view:
        for number, folder in enumerate(FOLDERS):
            view(replace(STEP, loss=4.5 + number, run_folder=folder))
        view.bars.refresh()
        ended = replace(STEP, step=686, valid_loss=4.6, best_valid_loss=4.6, ended=True)
        view(replace(ended, run_folder=FOLDERS[1]))
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()))


@pytest.mark.parametrize("width", [35, 40, 50, 68, 79, 80, 97, 98, 100, 200])
def test_the_bars_fit_the_terminal(width: int) -> None:
    lines = shown(width)
    for folder in FOLDERS:
        bars = [line for line in lines if "epoch 3/500" in line and folder.name[-5:] + " " in line]
        assert bars
        for line in bars:
            assert len(line.rstrip()) <= width
            assert "2 h 3 min left" in line
            assert line.startswith(("…", folder.name))
            assert "…" not in line[1:]
            assert width < 45 or line.startswith(folder.name)
            assert "━" in line
            if width >= 108:
                assert "━━━" in line
                assert "9,123 tokens/s loss" in line
    line = "epoch 3 of 500: perplexity 90.02 in training, 99.48 in validation, the best so far"
    assert f"ptb-awd-pru-g4-2: {line}" in " ".join(" ".join(lines).split())


def test_bars_are_told_apart() -> None:
    for folder, perplexity in zip(FOLDERS, ("90.02", "244.69", "665.14"), strict=True):
        (line,) = {line for line in shown(120) if line.startswith(folder.name) and "tokens/s" in line}
        assert f"perplexity {perplexity}" in line


def test_a_name_that_is_too_long_keeps_its_end() -> None:
    assert label("ptb-awd-pru-g4-12", 18) == "ptb-awd-pru-g4-12 "
    assert label("ptb-awd-pru-g4-12", 17) == "…b-awd-pru-g4-12 "
    assert label("ptb-awd-pru-g4-12", -5) == "…4-12 "
