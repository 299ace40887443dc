"""Tables at several widths: nothing is cut, and the columns that are left out are named."""

from __future__ import annotations

import re

import pytest
from command import invoke

from torch_pru.cli import compare, evaluate, report, sweep
from torch_pru.lm.compare import RunComparison, ScoredRun
from torch_pru.lm.summary import Summary
from torch_pru.lm.sweep import SweepRow

WIDTHS = (40, 60, 79, 80, 120)

NO_ROOM = "left out for lack of room: "


def show_recipes() -> None:
    print(invoke("recipes", "ptb-a")[1])


def show_report() -> None:
    heading = ["run", "differs in", "parameters", "validation", "test", "epochs", "minutes", "ended"]
    rows = [
        ["tiny-1", "groups=1, temporal=1.0", "19,000,000", "60.62", "58.33", "500", "1234.5", "early"],
        ["tiny-2", "groups=4, temporal=2.5", "18,895,600", "61.72", "59.54", "500", "987.6", "finished"],
    ]
    report.show(Summary(heading, rows, ""))


def show_sweep() -> None:
    rows = [
        SweepRow("K1-g1-hidden1400x1400x400", 18_895_600, [60.62, 61.0], [58.33, 58.5], 123_456.7, 1234.5),
        SweepRow("K2-g4-hidden1400x1400x400", 19_000_000, [59.62, 60.0], [57.33, 57.5], None, 12.5),
    ]
    sweep.show_table(rows)


def show_evaluation() -> None:
    scores = {"perplexity": 60.62, "nll": 4.1, "tokens": 82_430, "seconds": 12.3}
    found = {"static": scores | {"word_perplexity": 93.21, "byte_perplexity": 2.345}}
    text = "texts/a-long-name-without-a-blank.txt"
    evaluate.show(text, found, set(), None, whole_words=False, as_json=False)


def show_comparison() -> None:
    sides = [
        [ScoredRun(f"tiny-{seed}", seed, 60.0 + seed, 100, 18_895_600, "float32") for seed in range(first, 7)]
        for first in (1, 2)
    ]
    compare.show(RunComparison("test", "static", 0.5, *sides, difference=-0.5))


LEFT_OUT = {
    show_recipes: {40: "model, epochs, paper test", 60: "epochs"},
    show_report: {40: "parameters, epochs, minutes, ended", 60: "parameters, epochs, minutes"},
    show_sweep: {40: "parameters, tokens/s, minutes", 60: "tokens/s, minutes"},
    show_comparison: {40: "parameters"},
    show_evaluation: {40: "nats/token, seconds, per word, per byte", 60: "nats/token, seconds"},
}


@pytest.mark.parametrize("show", LEFT_OUT)
@pytest.mark.parametrize("width", WIDTHS)
def test_columns_without_room_are_named_under_the_table(
    show: object, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(show)
    monkeypatch.setenv("COLUMNS", str(width))
    show()
    shown = capsys.readouterr().out
    assert "…" not in shown
    named = [line for line in shown.splitlines() if line.startswith(NO_ROOM)]
    expected = LEFT_OUT[show].get(width)
    assert named == ([NO_ROOM + expected] if expected else [])
    table = re.split(f"{NO_ROOM}|paper valid,|perplexity: mean", shown)[0]
    assert max(map(len, table.splitlines())) <= width


@pytest.mark.parametrize("width", [*WIDTHS, 30, 12])
def test_no_figure_is_lost_at_any_width(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_report()
    table = capsys.readouterr().out.partition(NO_ROOM)[0]
    for digits in ("60.62", "58.33", "61.72", "59.54"):
        assert digits in table if width >= 30 else set(digits) <= set(table)
    assert max(map(len, table.splitlines())) <= width
