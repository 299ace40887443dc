"""The live bar on terminals of several widths, and the lines in its place."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from torch_pru.cli import progress as progress_module
from torch_pru.cli import training_view
from torch_pru.cli.console import say, show_warning
from torch_pru.cli.training_view import TrainingView
from torch_pru.lm.training import TrainingProgress

STEP = TrainingProgress("train", 1, 3, 500, 50, 686, 4.5, 9123.4, 7380.0, None, None, False)
EPOCH = TrainingProgress("train", 1, 3, 500, 686, 686, 4.5, 9123.4, 7380.0, 4.6, 4.6, True, ended=True)


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short, an epoch has a line."""
    monkeypatch.setattr(training_view, "SHORT_EPOCH", 0.0)


def shown(width: int, *, terminal: bool, dumb: bool = False) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=terminal, _environ={"TERM": "dumb" if dumb else "xterm"}
    )
    with TrainingView(console) as view:
        view(STEP)
        view.bars.refresh()
        view(EPOCH)
        view(replace(STEP, epoch=4, valid_loss=4.6))
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())


@pytest.mark.parametrize("width", [40, 50, 79, 80, 100, 200])
def test_the_bar_fits_the_terminal(width: int) -> None:
    text = shown(width, terminal=True)
    bars = [line for line in re.split(r"[\r\n]", text) if "epoch 3/500" in line]
    assert bars
    for line in bars:
        assert len(line.rstrip()) <= width
        assert "…" not in line
        assert "2 h 3 min left" in line
    assert all("━━" in line for line in bars)
    if width >= 90:
        assert all("━━━" in line and "9,123 tokens/s loss 4.50 perplexity 90.02" in line for line in bars)


def test_the_bar_fits_after_the_terminal_was_made_narrower() -> None:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, _environ={"TERM": "xterm"})
    with TrainingView(console) as view:
        view(STEP)
        view.bars.refresh()
        console.width = 50
        file.truncate(0)
        view.bars.refresh()
        bar = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).strip("\r\n\0 ")
    assert len(bar) <= 50
    assert "━━" in bar
    assert bar.startswith("epoch 3/500")
    assert bar.endswith("2 h 3 min left")


@pytest.mark.parametrize("width", [25, 50, 80, 200])
def test_an_evaluation_has_a_bar_at_any_width(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, _environ={"TERM": "xterm"})
    with progress_module.FittingBars(progress_module._columns, console) as bars:
        bars.update(bars.add_task("scoring the test text", total=100), completed=20)
        bars.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    lines = [line for line in re.split(r"[\r\n]", text) if "20%" in line]
    assert lines
    for line in lines:
        assert len(line) <= width
        assert "━━" in line
        assert "…" not in line


@pytest.mark.parametrize("dumb", [False, True])
def test_lines_where_there_is_no_terminal(dumb: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "LINE_SECONDS", 0.0)
    text = shown(200 if dumb else 30, terminal=dumb, dumb=dumb)
    assert text.splitlines() == [
        "epoch 3/500: 9,123 tokens/s, loss 4.50, perplexity 90.02, 2 h 3 min left",
        "epoch 3 of 500: perplexity 90.02 in training, 99.48 in validation, the best so far",
        "improvement in validation has slowed; after epoch 3 the weights are averaged",
        "epoch 4/500: 9,123 tokens/s, loss 4.50, perplexity 90.02, 2 h 3 min left",
    ]


def test_of_many_short_epochs_every_tenth_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_view, "SHORT_EPOCH", 2.0)
    file = io.StringIO()
    with TrainingView(Console(file=file, width=200)) as view:
        for epoch in range(1, 51):
            view(replace(EPOCH, epoch=epoch, epochs=50, stop_reason="all epochs done" if epoch == 50 else ""))
        view(replace(EPOCH, epoch=21, epochs=50, step=343, stop_reason="time is up"))
        view(replace(EPOCH, epoch=1, step=1, steps=686, stop_reason="time is up"))
        view(replace(EPOCH, epoch=2, step=686, steps=686, stop_reason="time is up"))
    lines = file.getvalue().splitlines()
    ends = [line for line in lines[2:] if not line.startswith("epoch")]
    numbers = [int(line.split()[1]) for line in lines[2:] if line not in ends]
    assert lines.pop(0).startswith("epoch 1 of 50: ")  # it may be shorter because it was resumed
    assert lines[0] == "of epochs that take a second or less, only every tenth is shown"
    assert sum("only every tenth" in line for line in lines) == 1
    assert numbers == [10, 20, 30, 40, 50, 2]
    assert ends[0] == "training ends after epoch 50: all epochs done"
    assert ends[1].startswith("50% of epoch 21: perplexity ")
    assert ends[3].startswith("less than 1% of epoch 1: perplexity ")
    assert ends[4].startswith("time is up after less than 1% of epoch 1. ")
    assert ends[5].startswith("time is up after epoch 2. ")
    assert ends[2] == (
        "time is up after 50% of epoch 21. This run is complete; to train longer, start a new one with a "
        "larger --minutes"
    )


def test_a_warning_has_a_line_of_its_own_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with TrainingView(
        Console(stderr=True, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    ) as view:
        view(STEP)
        view.bars.refresh()
        show_warning("failed: runs/a [1]; the others go on", UserWarning, "", 0)
    before, after = file.getvalue().split("pru: warning: failed: runs/a [1]; the others go on")
    assert before.endswith("\r\x1b[2K")  # at the start of a line that was cleared
    assert after.startswith("\n")


def test_the_lines_of_a_header_go_on_below_its_words() -> None:
    file = io.StringIO()
    console = Console(file=file, width=30, force_terminal=True, highlight=False, _environ={"TERM": "xterm"})
    say(console, "run:    runs/a (seed 1); Ctrl-C stops and saves it", indent=8)
    first, *others = file.getvalue().splitlines()
    assert first.startswith("run:    runs/a")
    assert others
    assert all(line.startswith(" " * 8) and len(line) <= 30 for line in others)
    assert " ".join(file.getvalue().split()) == "run: runs/a (seed 1); Ctrl-C stops and saves it"


def test_a_quiet_process_shows_nothing() -> None:
    file = io.StringIO()
    with TrainingView(Console(file=file, force_terminal=True, quiet=True)) as view:
        view(STEP)
        view(EPOCH)
    assert file.getvalue() == ""


def test_lines_of_an_evaluation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    with progress_module.bar("scoring") as advance:
        advance(250, 1000)
        advance(500, None)
    assert capsys.readouterr().err.splitlines() == ["scoring: 25%", "scoring: 500"]
