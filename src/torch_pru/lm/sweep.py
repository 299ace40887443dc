"""The table of a sweep: a row for each combination, over all its seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.evaluation.static import format_perplexity
from torch_pru.lm.model import parameter_counts, skeleton
from torch_pru.lm.run import RunFolder


@dataclass(frozen=True)
class Row:
    """One combination in the table, over all its seeds.

    Attributes:
        label: of the combination.
        parameters: of its model.
        valid, test: perplexities of its runs, at batch 1.
        tokens_per_second: of training, the mean over its runs.
        minutes: of training, the mean over its runs.
    """

    label: str
    parameters: int
    valid: list[float]
    test: list[float]
    tokens_per_second: float
    minutes: float


def row_of(label: str, runs: Sequence[RunFolder]) -> Row:
    """A row from finished runs that `pru evaluate` has scored."""
    first = runs[0]
    counts = parameter_counts(
        skeleton(first.config.model, first.config.regularization, len(first.vocabulary))
    )
    scores: dict[str, list[float]] = {"valid": [], "test": []}
    speeds, minutes = [], []
    for run in runs:
        kept = load_scores(run.path)
        for split, found in scores.items():
            value = None if kept is None else kept.perplexity("static", split)
            if value is not None:
                found.append(value)
        metrics = run.metrics()
        speeds += [line["clock"]["tokens_per_second"] for line in metrics if line.get("kind") == "steps"]
        minutes.append(run.epochs()[-1]["clock"]["seconds"] / 60)
    speed = statistics.median(speeds) if speeds else 0.0
    return Row(label, counts.total, scores["valid"], scores["test"], speed, statistics.mean(minutes))


def with_spread(values: Sequence[float]) -> str:
    """The mean of some perplexities, and their standard deviation if there are several.

    Example:
        >>> with_spread([60.0, 62.0]), with_spread([60.0]), with_spread([])
        ('61.00 ± 1.41', '60.00', '')
    """
    if not values:
        return ""
    mean = format_perplexity(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


HEADINGS = ("run", "parameters", "validation", "test", "tokens/s", "minutes")


def cells_of(row: Row) -> list[str]:
    """A row as texts, in the order of `HEADINGS`."""
    return [
        row.label,
        f"{row.parameters:,}",
        with_spread(row.valid),
        with_spread(row.test),
        f"{row.tokens_per_second:,.0f}",
        f"{row.minutes:.1f}",
    ]


def markdown(rows: Sequence[Row]) -> str:
    """All rows as a Markdown table."""
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 1)], *map(cells_of, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
