"""Runs in one short table: in what they differ, what they reached, and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def summary(paths: Iterable[str | Path]) -> str:
    """Runs as a Markdown table, one per line.

    Perplexities are those that ``pru evaluate`` has recorded; columns that no run fills are left out.

    Args:
        paths: run folders, compact files, or folders of these; see `read_results`.
    """
    results = sorted(read_results(paths), key=lambda one: (one.config.name, one.name))
    if not results:
        return "No runs.\n"
    differing = differing_settings(results)
    tokens_differ = len({result.config.data.tokenizer for result in results}) > 1
    rows = [cells(result, differing, per_word=tokens_differ) for result in results]
    used = [number for number in range(len(HEADINGS)) if any(row[number] for row in rows)]
    shown = [[line[number] for number in used] for line in (HEADINGS, *rows)]
    text = table(shown[0], shown[1:], left=("run", "differs in", "ended")) + "\n"
    unscored = [result.name for result in results if result.perplexity("static", "valid") is None]
    if unscored:
        names = visible(", ".join(unscored))
        text += f"\nNo validation score yet: {names}. Score a run with `pru evaluate RUN`.\n"
    return text


def differing_settings(results: Sequence[RunRecord]) -> list[str]:
    """The settings that are not the same in all runs."""
    everything = [trained_settings(result) for result in results]
    keys = dict.fromkeys(key for settings in everything for key in settings)
    values = {key: [settings[key] for settings in everything if key in settings] for key in keys}
    return [key for key, found in values.items() if any(value != found[0] for value in found)]


def trained_settings(result: RunRecord) -> dict[str, Any]:
    """The settings that decide what a run trains; those that only a PRU has are left out of other runs."""
    unit = result.own_settings["unit"]
    return {
        key: value for key, value in result.own_settings.items() if unit == "pru" or key not in PRU_SETTINGS
    }


def cells(result: RunRecord, differing: Sequence[str], *, per_word: bool = False) -> list[str]:
    """A run as texts, in the order of `HEADINGS`."""
    settings = trained_settings(result)
    values = [f"{key}={as_text(settings[key])}" for key in differing if key in settings]
    total = result.parameters("total")
    scores = [result.perplexity("static", split) for split in ("valid", "test")]
    scores.append(result.perplexity("static", "test", per="word") if per_word else None)
    return [
        result.name,
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
