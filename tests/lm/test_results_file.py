"""RESULTS.md is what the results folders say."""

from __future__ import annotations

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
