"""Runs in one short table: in what they differ, what they reached, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_pru.lm.config import PRU_SETTINGS
from torch_pru.lm.evaluation.static import format_perplexity
from torch_pru.lm.records import RunRecord, read_results
from torch_pru.lm.visible import table, visible

HEADINGS = (
    "run",
    "differs in",
    "parameters",
    "validation",
    "test",
    "test per word",
    "epochs",
    "minutes",
    "ended",
)


LEFT = ("run", "differs in", "ended")
"""The columns that are aligned to the left."""


@dataclass(frozen=True)
class Summary:
    """Runs in a table, one per line.

    Attributes:
        heading: a title for each column.
        rows: a cell for each column.
        note: which runs have no score, or an empty string.
    """

    heading: list[str]
    rows: list[list[str]]
    note: str

    def markdown(self) -> str:
        """The table and the note in Markdown."""
        if not self.rows:
            return "No runs.\n"
        note = f"\n{visible(self.note)}\n" if self.note else ""
        return table(self.heading, self.rows, left=LEFT) + "\n" + note


def summary(paths: Iterable[str | Path]) -> Summary:
    """The table of some runs.

    Perplexities are those that ``pru evaluate`` has recorded; columns that no run fills are left out.

    Args:
        paths: run folders, compact files, or folders of these; see `read_results`.
    """
    results = sorted(read_results(paths), key=lambda one: (one.config.name, one.name, str(one.path)))
    differing = differing_settings(results) if results else []
    tokens_differ = len({result.config.data.tokenizer for result in results}) > 1
    names = names_of(results)
    rows = [
        [name, *cells(result, differing, per_word=tokens_differ)]
        for name, result in zip(names, results, strict=True)
    ]
    used = [number for number in range(len(HEADINGS)) if any(row[number] for row in rows)]
    heading, *shown = [[line[number] for number in used] for line in (HEADINGS, *rows)]
    unscored = [
        name
        for name, result in zip(names, results, strict=True)
        if result.perplexity("static", "valid") is None
    ]
    listed = ", ".join(unscored)
    note = f"No validation score: {listed}. Score a run with `pru evaluate RUN`."
    return Summary(heading, shown, note if unscored else "")


def names_of(results: Sequence[RunRecord]) -> list[str]:
    """The names of runs; where several have the same, with the place of each."""
    names = [result.name for result in results]
    return [
        name if names.count(name) == 1 else result.place for name, result in zip(names, results, strict=True)
    ]


def differing_settings(results: Sequence[RunRecord]) -> list[str]:
    """The settings that are not the same in all runs."""
    everything = [trained_settings(result) for result in results]
    keys = dict.fromkeys(key for settings in everything for key in settings)
    values = {key: [settings[key] for settings in everything if key in settings] for key in keys}
    return [key for key, found in values.items() if any(value != found[0] for value in found)]


def trained_settings(result: RunRecord) -> dict[str, Any]:
    """The settings that decide what a run trains; those that only a PRU has are left out of other runs.

    So is the limit of time, for which there is a column.
    """
    others = {"minutes"} if result.own_settings["unit"] == "pru" else {"minutes", *PRU_SETTINGS}
    return {key: value for key, value in result.own_settings.items() if key not in others}


def cells(result: RunRecord, differing: Sequence[str], *, per_word: bool = False) -> list[str]:
    """A run as texts, in the order of `HEADINGS` without the first."""
    settings = trained_settings(result)
    values = [f"{key}={as_text(settings[key])}" for key in differing if key in settings]
    total = result.parameters("total")
    scores = [result.perplexity("static", split) for split in ("valid", "test")]
    scores.append(result.perplexity("static", "test", per="word") if per_word else None)
    return [
        ", ".join([*values, *(["finetuned"] if result.finetuned else [])]),
        "" if total is None else f"{total:,}",
        *("" if score is None else format_perplexity(score) for score in scores),
        f"{len(result.epochs)}",
        f"{result.minutes:.1f}",
        result.stop_reason,
    ]


def as_text(value: Any) -> str:
    """A value, short: of a path only its last part.

    Example:
        >>> as_text((400, 400)), as_text("/home/me/texts/book")
        ('400x400', 'book')
    """
    if isinstance(value, list | tuple):
        return "x".join(map(str, value))
    return Path(value).name if isinstance(value, str) and "/" in value else str(value)
