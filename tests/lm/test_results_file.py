"""RESULTS.md is what the results folders say."""

from __future__ import annotations

import re
from pathlib import Path

from torch_pru.lm.report import report

ROOT = Path(__file__).parents[2]


def test_the_results_file_is_made_from_the_results() -> None:
    command = "pru report results > RESULTS.md"
    content = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert command in content
    assert report([ROOT / "results"]) == content


def test_the_results_hold_no_weights() -> None:
    for path in (ROOT / "results").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 1_000_000, path


def test_the_readme_shows_what_the_results_file_says() -> None:
    """Static numbers of a row stand in the same row there, the others under dynamic evaluation."""
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    penn, wikitext = (
        results.split(f"\n## {name}\n")[1].split("\n#")[0] for name in ("Penn Treebank", "WikiText-2")
    )
    dynamic = results.split("\n## Dynamic evaluation")[1].split("\n## ")[0]
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("## Results")[1].split("## ")[0]
    for source, part, at_least in zip((penn, wikitext), table.split("On WikiText-2"), (5, 2), strict=True):
        rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= at_least
        for model, *static, paper, here in ((row + [""] * 6)[:6] for row in rows):
            assert_numbers_in(" ".join(static), row_of(model, source))
            assert_numbers_in(f"{paper} {here}", dynamic)


def row_of(model: str, table: str) -> str:
    [row] = [line for line in table.splitlines() if line.startswith(f"| {model} |")]
    return row


def assert_numbers_in(text: str, source: str) -> None:
    for number in re.findall(r"\d+\.\d+", text):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", source), (number, source)
