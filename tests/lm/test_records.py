"""Compact records hold what run folders hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from test_report import write_run

from torch_pru import PRUError
from torch_pru.lm.config import second_stage
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.records import RunRecord, append_compact, keep, read_compact, read_folder, read_results
from torch_pru.lm.report import report

RESULTS = Path(__file__).parents[2] / "results"


def without_clock(record: RunRecord) -> list[dict[str, object]]:
    return [{key: value for key, value in line.items() if key != "clock"} for line in record.epochs]


@pytest.mark.parametrize(
    "name",
    ["ptb-awd-pru-g4-1", "ptb-awd-lstm-1-finetuned", "wt2-awd-pru-g4-2-finetuned", "ptb-pooling-max-1"],
)
def test_a_recorded_run_is_read_back_whole(name: str, tmp_path: Path) -> None:
    """Averaging, rounds that restart, and finetuning that never improves on its start are all among these."""
    other, record = read_folder(RESULTS / "ptb-lstm-1400-1"), read_folder(RESULTS / name)
    file = tmp_path / "tries.jsonl"
    append_compact(file, other)  # so that the run differs from the first line
    append_compact(file, record)
    _, back = read_compact(file)
    assert without_clock(back) == without_clock(record)
    for found, expected in zip(back.epochs, record.epochs, strict=True):
        assert found["clock"]["seconds"] == pytest.approx(expected["clock"]["seconds"], abs=6e-4)
    for field in ("name", "stage", "config", "environment", "scores", "text_digest"):
        assert getattr(back, field) == getattr(record, field), field
    assert file.stat().st_size < sum(
        path.stat().st_size for folder in (name, "ptb-lstm-1400-1") for path in (RESULTS / folder).iterdir()
    )


def test_a_report_reads_compact_files_like_folders(tmp_path: Path) -> None:
    config = load_recipe("ptb-awd-pru-g4")
    results = {"static": {"valid": 60.5, "test": 58.3}, "dynamic": {"test": 50.0}}
    first = write_run(tmp_path / "a", config, results=results)
    second = write_run(tmp_path / "b", second_stage(config), stage="finetune", losses=(4.0, 4.1))
    file = tmp_path / "kept" / "tries" / "ptb.jsonl"
    for run in (first, second):
        assert keep(run, file) == file
    tables = [report(paths).split("## Runs")[0] for paths in ([first, second], [file], [tmp_path / "kept"])]
    assert tables[0] == tables[1] == tables[2]
    assert "**60.50** / **58.30**" in tables[0]


def test_the_reason_of_the_end_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", load_recipe("ptb-pru-g4"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | {"stop_reason": "time is up"})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    keep(run, tmp_path / "tries.jsonl")
    (record,) = read_compact(tmp_path / "tries.jsonl")
    assert [line.get("stop_reason") for line in record.epochs] == [None, None, "time is up"]


def test_a_folder_of_runs_is_searched(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_run(tmp_path / "runs" / name / "run", load_recipe("ptb-pru-g4", {"seed": str(len(name))}))
    (tmp_path / "runs" / "notes.txt").write_text("not a run")
    assert [one.path.parent.name for one in read_results([tmp_path / "runs"])] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(PRUError, match=r"run\.json is missing"):
        read_results([tmp_path / "empty"])


def test_a_name_is_used_once(tmp_path: Path) -> None:
    run, file = write_run(tmp_path / "run", load_recipe("ptb-pru-g4")), tmp_path / "tries.jsonl"
    keep(run, file)
    content = file.read_text()
    with pytest.raises(PRUError, match=r"tries\.jsonl already has a run named 'run'"):
        keep(run, file)
    assert file.read_text() == content


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], lines[1][:50]],
        lambda lines: [lines[0], "3"],
        lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | {"settings": {"no_such_setting": 1}})],
        lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | {"epochs": {"valid_loss": [1.0]}})],
        lambda lines: [],
    ],
)
def test_a_damaged_file_is_named(damage: Callable[[list[str]], list[str]], tmp_path: Path) -> None:
    run, file = write_run(tmp_path / "run", load_recipe("ptb-pru-g4")), tmp_path / "tries.jsonl"
    keep(run, file)
    file.write_text("\n".join(damage(file.read_text().splitlines())))
    with pytest.raises(PRUError, match=r"tries\.jsonl is not a file that pru report --keep has written"):
        report([file])
