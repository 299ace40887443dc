"""``pru compare`` shows and writes what two groups of runs have recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import pru, refusal

RESULTS = Path(__file__).parents[2] / "results"


def recorded(recipe: str, *seeds: int) -> list[Path]:
    return [RESULTS / f"{recipe}-{seed}" for seed in seeds]


def test_recorded_runs_are_compared() -> None:
    shown = pru("compare", *recorded("ptb-pru-g4", 1, 2), "--against", *recorded("ptb-lstm-1000", 1, 2, 3))
    assert "perplexity of the test text, static" in shown
    assert "18,895,600" in shown
    assert "95% interval over seeds (Welch, " in shown
    assert "verdict: " in shown
    lines = shown.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["runs", "seeds"], ["RUN", "2"], ["--against", "3"]]
    assert lines[4] == "perplexity: mean over runs ± standard deviation"
    assert lines[5].startswith("difference (RUN minus --against): -")


def test_a_line_has_one_colon_and_single_runs_no_deviation() -> None:
    shown = pru("compare", *recorded("ptb-pru-g4", 1), "--against", *recorded("ptb-lstm-1000", 1))
    assert "±" not in shown
    [verdict] = [line for line in shown.splitlines() if line.startswith("verdict")]
    assert verdict.count(":") == 1


def test_a_warning_names_mixed_runs() -> None:
    mixed = [*recorded("ptb-pru-g4", 1), *recorded("ptb-pru-g2", 1)]
    shown = pru("compare", *mixed, "--against", *recorded("ptb-lstm-1000", 1))
    assert "note: ptb-pru-g4-1, ptb-pru-g2-1 were trained with different settings (hidden, groups)\n" in shown
    assert "note: ptb-pru-g4-1, ptb-pru-g2-1 have the same seed (1)\n" in shown


def test_options_and_several_runs_in_any_order() -> None:
    first, second = recorded("ptb-pru-g4", 1, 2), recorded("ptb-lstm-1000", 1, 2)
    ways = [
        [*first, "--against", *second, "--json", "--split", "valid"],
        ["--split", "valid", *first, "--json", "--against", *second],
        [*first, "--json", "--against", second[0], "--against", second[1], "--split", "valid"],
    ]
    found = [json.loads(pru("compare", *way)) for way in ways]
    assert found[0] == found[1] == found[2]
    assert [one["seed"] for one in found[0]["against"]] == [1, 2]
    assert found[0]["split"] == "valid"


def test_trained_runs_with_a_figure(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pru("train", recipe, "--seeds", 2, "--set", "epochs=1", "--out", tmp_path / "a")
    pru(
        "train",
        recipe,
        "--seeds",
        2,
        "--set",
        "epochs=1",
        "--set",
        "hidden_dropout=0.5",
        "--out",
        tmp_path / "b",
    )
    sides = [sorted((tmp_path / name).iterdir()) for name in "ab"]
    assert "has no static score of the test text" in refusal("compare", *sides[0], "--against", *sides[1])
    for run in (*sides[0], *sides[1]):
        pru("evaluate", run, "--split", "test")
    shown = pru("compare", *sides[0], "--against", *sides[1], "--out", tmp_path / "out")
    assert "95% interval over seeds and tokens (bootstrap)" in shown
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    low, high = found["bootstrap"]
    assert low <= found["difference"] <= high
    assert sum(part["contribution"] for part in found["by_position"]) == pytest.approx(
        found["loss_difference"]
    )
    assert found["verdict"]
    assert (tmp_path / "out" / "comparison.svg").read_text().startswith("<?xml")
    assert (tmp_path / "out" / "comparison.png").stat().st_size > 1000


def test_the_interval_of_a_short_text_with_one_run_on_each_side(recipe: Path, tmp_path: Path) -> None:
    """Its blocks are short, so that there are some to draw from; there is only one seed."""
    for name, rate in (("a", "5.0"), ("b", "0.5")):
        settings = ("--set", "epochs=1", "--set", f"learning_rate={rate}")
        pru("train", recipe, *settings, "--out", tmp_path / name)
    first, second = (next((tmp_path / name).iterdir()) for name in "ab")
    for run in (first, second):
        pru("evaluate", run, "--split", "test")
    shown = pru("compare", first, "--against", second, "--out", tmp_path / "out")
    assert "95% interval over tokens (bootstrap)" in shown
    found = json.loads((tmp_path / "out" / "comparison.json").read_text())
    low, high = found["bootstrap"]
    assert low < found["difference"] < high


def test_the_other_side_is_required() -> None:
    assert "--against" in refusal("compare", *recorded("ptb-pru-g4", 1))
