"""The table of a sweep: a row for each combination, over all its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch_pru.lm.records import read_folder
from torch_pru.lm.report_cells import mean, recorded
from torch_pru.lm.run import RunFolder
from torch_pru.lm.visible import table


@dataclass(frozen=True)
class SweepRow:
    """One combination in the table, over all its seeds.

    Attributes:
        label: of the combination.
        parameters: of its model.
        valid, test: perplexities of its runs, at batch 1.
        tokens_per_second: of training, the median over its runs; None if they were too short to measure it.
        minutes: of training, the mean over its runs.
    """

    label: str
    parameters: int
    valid: list[float]
    test: list[float]
    tokens_per_second: float | None
    minutes: float


def row_of(label: str, runs: Sequence[RunFolder]) -> SweepRow:
    """A row from finished runs that `pru evaluate` has scored."""
    records = [read_folder(run.path) for run in runs]
    speeds = [
        line["clock"]["tokens_per_second"]
        for run in runs
        for line in run.metrics()
        if line.get("kind") == "steps"
    ]
    return SweepRow(
        label,
        records[0].parameters("total") or 0,
        recorded(records, "static", "valid"),
        recorded(records, "static", "test"),
        statistics.median(speeds) if speeds else None,
        statistics.mean(record.minutes for record in records),
    )


HEADINGS = ("run", "parameters", "validation", "test", "tokens/s", "minutes")


def cells_of(row: SweepRow) -> list[str]:
    """A row as texts, in the order of `HEADINGS`."""
    return [
        row.label,
        f"{row.parameters:,}",
        mean(row.valid),
        mean(row.test),
        "–" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        f"{row.minutes:.1f}" if row.minutes >= 1 else f"{row.minutes:.2g}",
    ]


def markdown(rows: Sequence[SweepRow]) -> str:
    """All rows as a Markdown table."""
    return table(HEADINGS, map(cells_of, rows), left=("run",)) + "\n"
