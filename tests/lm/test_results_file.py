"""RESULTS.md is what the results folders say."""

from __future__ import annotations

import re
from pathlib import Path

from torch_pru.lm.paper import DATA_SETS, MAIN, POOLING, SWEEP, TRANSFORMS, Setup
from torch_pru.lm.records import read_results
from torch_pru.lm.report import report
from torch_pru.lm.report_cells import is_run_of

ROOT = Path(__file__).parents[2]
PAPER_ROWS = 68


def test_the_results_file_is_made_from_the_results() -> None:
    command = "pru report results --paper > RESULTS.md"
    content = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert command in content
    assert report([ROOT / "results"]) == content


def test_rows_are_as_long_as_their_headings() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "RESULTS.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(tables) >= 10
    for table in tables:
        assert len({len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_the_results_hold_no_weights() -> None:
    for path in (ROOT / "results").rglob("*"):
        assert path.is_dir() or path.stat().st_size < 1_000_000, path


def test_the_readme_shows_what_the_results_file_says() -> None:
    """Every row of the README's table has the numbers, and the number of seeds, of its row in RESULTS.md."""
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    names = {"PTB": "Penn Treebank", "WT-2": "WikiText-2"}
    tables = {short: results.split(f"\n## {name}\n")[1].split("\n#")[0] for short, name in names.items()}
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Results")[1].split("\n## ")[0]
    rows = [cells_of(line) for line in text.splitlines() if line.startswith(("| PTB", "| WT-2"))]
    assert len(rows) >= 8
    for name, parameters, paper, published, ours in rows:
        short, _, model = name.partition(", ")
        row = cells_of(row_of(model, tables[short]))
        assert parameters == row[2]
        assert paper == row[3]
        for shown, scores, seeds in ((published, row[5], row[7]), (ours, row[8], row[10])):
            if "unfinished" in scores:
                assert shown == "unfinished"
            elif seeds:
                means = re.findall(r"\*\*(\d+\.\d+)", scores)
                assert shown == f"{' / '.join(means)} ({len(seeds.split(', '))})"
            else:
                assert shown == ""


def test_the_readme_counts_the_rows_that_were_run() -> None:
    """Rows of the paper: the main tables, and the ablations and sub-samplings with a published number."""
    results = read_results([ROOT / "results"])
    setups: list[list[Setup]] = [[row.published, *([row.ours] if row.ours else [])] for row in MAIN]
    for data_set in DATA_SETS:
        ablations = [one for one in (*TRANSFORMS, *POOLING, *SWEEP) if not one.label.endswith("grouped too")]
        setups += [[one.setup(data_set)] for one in ablations]
    assert len(setups) == PAPER_ROWS
    seeds = []
    for row in setups:
        runs = [one for setup in row for one in results if is_run_of(one, setup) and one.finished]
        if runs:
            seeds.append(max(len({one.seed for one in runs if is_run_of(one, setup)}) for setup in row))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Of the paper's {PAPER_ROWS} rows, {len(seeds)} have been run" in text
    assert f"{seeds.count(1)} with one seed" in text
    assert len(text.split()) < 700


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def row_of(model: str, table: str) -> str:
    [row] = [line for line in table.splitlines() if line.startswith(f"| {model} |")]
    return row
