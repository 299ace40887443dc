"""The table of trials that ``pru sweep --ray`` shows. It needs no Ray."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from torch_pru.cli import sweep_ray
from torch_pru.cli.sweep_ray import TrialTable


def screen(monkeypatch: pytest.MonkeyPatch, height: int) -> Console:
    """A terminal of this height."""
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=height, _environ={})
    monkeypatch.setattr(sweep_ray, "messages", lambda: console)
    return console


def lines_of(trials: TrialTable, console: Console) -> list[str]:
    with console.capture() as shown:
        console.print(trials.table())
    return Text.from_ansi(shown.get()).plain.splitlines()


def test_trials_at_work_are_on_the_screen_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = screen(monkeypatch, 12)
    trials = TrialTable(tmp_path)
    for number in range(100):
        report = {"epoch": 3, "valid_loss": math.log(200 - number)}
        trials.watch(tmp_path / f"run{number}", "running", {"epoch": 1})
        if number < 97:
            trials.watch(tmp_path / f"run{number}", "stopped" if number % 2 else "finished", report)
    trials.watch(tmp_path / "run98", "retried", {})
    heading, *rows, counts = (line.split() for line in lines_of(trials, console))
    assert heading == ["run", "state", "epoch", "validation"]
    assert [row[:2] for row in rows[:3]] == [["run97", "running"], ["run99", "running"], ["run98", "retried"]]
    best = [["run95", "stopped", "3", "105.00"], ["run93", "stopped", "3", "107.00"]]
    assert rows[3:5] == best
    assert len(rows) == console.height - 3
    assert " ".join(counts) == "2 running, 1 retried, 48 stopped, 49 finished"


def test_the_live_table_fits_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = screen(monkeypatch, 8)
    with TrialTable(tmp_path) as trials, console.capture() as shown:
        for number in range(50):
            trials.watch(tmp_path / f"run{number}", "running", {})
    assert "50 running" in shown.get()
    assert "..." not in shown.get()  # what Rich shows instead of rows that do not fit


def test_without_a_terminal_there_is_a_line_for_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    monkeypatch.setattr(sweep_ray, "messages", lambda: console)
    with TrialTable(tmp_path) as trials, console.capture() as shown:
        for epoch in range(3):
            trials.watch(tmp_path / "one", "running", {"epoch": epoch})
        trials.watch(tmp_path / "one", "retried", {})
        trials.watch(tmp_path / "one", "finished", {"epoch": 3, "valid_loss": math.log(50)})
    assert shown.get().splitlines() == ["one running 0 ", "one retried 2 ", "one finished 3 50.00"]
