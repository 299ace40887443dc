"""The table of ``pru report``: names and sizes of runs."""

from __future__ import annotations

from pathlib import Path

from test_report import write_run

from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.records import read_folder
from torch_pru.lm.summary import summary


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name / "g1-seed1", load_recipe("ptb-pru-g4"), results={"static": {"valid": 60}})
    write_run(tmp_path / "a" / "g2-seed1", load_recipe("ptb-pru-g4"))
    found = summary([tmp_path / "a", tmp_path / "b"])
    both = [str(tmp_path / name / "g1-seed1") for name in ("a", "b")]
    assert [row[0] for row in found.rows] == [*both, "g2-seed1"]
    assert found.note.startswith("No validation score: g2-seed1. ")


def test_parameters_are_counted_without_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", load_recipe("ptb-pru-g4"))
    assert read_folder(run).parameters("total") is None  # there is no vocabulary
    (run / "vocabulary.txt").write_text("".join(f"w{number}\n" for number in range(10_000)))
    assert read_folder(run).parameters("total") == 18_895_600
    assert "18,895,600" in summary([run]).markdown()
