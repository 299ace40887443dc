"""RESULTS.md is what the results folders say."""

from __future__ import annotations

import re
from pathlib import Path

from torch_pru.lm.report import report

ROOT = Path(__file__).parents[2]


def test_the_results_file_is_made_from_the_results() -> None:
    folders = sorted(path.parent for path in (ROOT / "results").glob("*/run.json"))
    assert folders
    assert report(folders) == (ROOT / "RESULTS.md").read_text(encoding="utf-8")


def test_the_results_hold_no_weights() -> None:
    for path in (ROOT / "results").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 1_000_000, path


def test_the_readme_shows_what_the_results_file_says() -> None:
    """Static numbers of a row stand in the same row there, the others under dynamic evaluation."""
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    penn, rest = results.split("## Penn Treebank")[1].split("## WikiText-2")
    dynamic = rest.split("## Dynamic evaluation")[1].split("## ")[0]
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Results")[1].split("## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 5
    for model, *static, paper, here in ((row + [""] * 6)[:6] for row in rows):
        [row] = [line for line in penn.splitlines() if line.startswith(f"| {model} |")]
        for numbers, source in ((" ".join(static), row), (f"{paper} {here}", dynamic)):
            for number in re.findall(r"\d+\.\d+", numbers):
                assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", source), (model, number)
