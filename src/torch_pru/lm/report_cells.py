"""The cells of the tables in ``RESULTS.md``: the runs of a row, means over them, how values are written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch_pru.lm.config import Config, second_stage
from torch_pru.lm.evaluation.static import format_perplexity
from torch_pru.lm.paper import Perplexities, Setup
from torch_pru.lm.recipe import list_recipes, load_recipe
from torch_pru.lm.records import RunRecord, settings_without_runtime

NOISE = 0.5
"""Tolerance of the verdicts: about the difference between two results that the paper reports for one
configuration (LT / PT in `TRANSFORMS` and average in `POOLING`)."""


def runs_of(setup: Setup, results: Sequence[RunRecord]) -> list[RunRecord]:
    """The finished runs of a setup; if there is none, the unfinished ones."""
    runs = [one for one in results if is_run_of(one, setup)]
    return [one for one in runs if one.finished] or runs


def nearest_recipe(config: Config, stage: str = "train") -> tuple[str, dict[str, Any]]:
    """The recipe that a run comes from, and the settings in which the run differs from it.

    That is a recipe with equal settings, else the one with the run's name, else the one with the fewest
    differences. A run on a text that no recipe has comes from none of them, unless it has the name of one.

    Example:
        >>> nearest_recipe(load_recipe("ptb-pru-g4", {"epochs": "3"}))
        ('ptb-pru-g4', {'epochs': 3})
    """
    own = settings_without_runtime(config)
    changes = {}
    for name in list_recipes():
        settings = setup_settings(Setup(name, (), stage == "finetune"))
        changes[name] = {key: value for key, value in own.items() if settings[key] != value}
    if config.name not in changes and all("corpus" in differing for differing in changes.values()):
        return "–", {}
    best = min(changes, key=lambda name: (bool(changes[name]), name != config.name, len(changes[name]), name))
    return best, changes[best]


def is_run_of(record: RunRecord, setup: Setup) -> bool:
    """Whether a run has these settings, apart from its seed and the way it was run."""
    return record.finetuned == setup.finetuned and record.own_settings == setup_settings(setup)


@cache
def setup_settings(setup: Setup) -> dict[str, Any]:
    """Those of a row's setup."""
    config = load_recipe(setup.recipe, dict(setup.changes))
    return settings_without_runtime(second_stage(config) if setup.finetuned else config)


def recorded(runs: Sequence[RunRecord], method: str, split: str) -> list[float]:
    """The perplexities that these runs have on record."""
    return [value for one in runs if (value := one.perplexity(method, split)) is not None]


def here(runs: Sequence[RunRecord], method: str = "static") -> str:
    """Our own numbers, validation / test; or why there is none."""
    if not runs:
        return "not run"
    values = [recorded(runs, method, split) for split in ("valid", "test")]
    if not any(values):
        return "not scored" + unfinished(runs)
    text = " / ".join(f"**{mean(one)}**{share(one, runs)}" if one else "–" for one in values)
    return text + unfinished(runs)


def validation(runs: Sequence[RunRecord]) -> str:
    """Our own validation perplexity, or why there is none."""
    if not runs:
        return "not run"
    values = recorded(runs, "static", "valid")
    return (
        f"**{mean(values)}**{share(values, runs)}{unfinished(runs)}"
        if values
        else "not scored" + unfinished(runs)
    )


def share(values: Sequence[float], runs: Sequence[RunRecord]) -> str:
    """Of how many runs a mean is, if not of all."""
    return f" ({len(values)} of {len(runs)} runs)" if len(values) < len(runs) else ""


def unfinished(runs: Sequence[RunRecord]) -> str:
    """A remark on runs that were stopped before their end."""
    if all(one.finished for one in runs):
        return ""
    epochs = " and ".join(str(len(one.epochs)) for one in runs)
    return f" (unfinished: {epochs} epochs)"


def against(paper: Perplexities, runs: Sequence[RunRecord], word: str) -> str:
    """The differences from the paper's perplexities, and whether the rule of the introduction holds."""
    means = [recorded(runs, "static", split) for split in ("valid", "test")]
    if not all(means):
        return ""
    gaps = [
        statistics.mean(values) - published
        for values, published in zip(means, paper, strict=True)
        if published is not None
    ]
    text = " / ".join(f"{gap:+.2f}" for gap in gaps).replace("-", "−")
    if not all(one.finished for one in runs):
        return text
    return f"{text}, {verdict(gaps, word)}"


def verdict(gaps: Sequence[float], word: str) -> str:
    """``word``, "better" or "missed", as the introduction of the document explains.

    Example:
        >>> verdict([0.14, -0.2], "reproduced"), verdict([0.51, 0.0], "reached")
        ('reproduced', 'missed')
        >>> verdict([0.14, -0.7], "reproduced"), verdict([0.14, -0.7], "reached")
        ('better', 'reached')
    """
    if any(round(gap, 9) > NOISE for gap in gaps):
        return "missed"
    better = any(round(gap, 9) < -NOISE for gap in gaps)
    return "better" if better and word == "reproduced" else word


def costs(runs: Sequence[RunRecord]) -> list[str]:
    """Epochs, minutes and device."""
    if not runs:
        return ["", "", ""]
    epochs = [len(one.epochs) for one in runs]
    spread = str(epochs[0]) if min(epochs) == max(epochs) else f"{min(epochs)} to {max(epochs)}"
    minutes = statistics.mean(one.minutes for one in runs)
    return [spread, f"{minutes:.0f}", ", ".join(sorted({one.device for one in runs}))]


def seeds(runs: Sequence[RunRecord]) -> str:
    """The seeds of runs, each once."""
    return ", ".join(str(seed) for seed in sorted({one.seed for one in runs}))


def millions(runs: Sequence[RunRecord], part: str) -> str:
    """Millions of parameters; empty before the first score."""
    counts = [count for one in runs if (count := one.parameters(part)) is not None]
    return f"{counts[0] / 1e6:.2f}" if counts else ""


def command(setup: Setup) -> str:
    """How a row is made."""
    return "`pru finetune RUN` of the row above" if setup.finetuned else f"`{setup.command}`"


def both(values: Perplexities) -> str:
    """Validation / test, or a dash.

    Example:
        >>> both(Perplexities(58.4, None)), both(Perplexities())
        ('58.40 / –', '–')
    """
    return " / ".join(map(number, values)) if any(value is not None for value in values) else "–"


def mean(values: Sequence[float]) -> str:
    """Mean and, of several values, standard deviation; empty without a value.

    Example:
        >>> mean([58.0, 59.0]), mean([58.0])
        ('58.50 ± 0.71', '58.00')
    """
    if len(set(values)) <= 1:
        return "".join(map(format_perplexity, values[:1]))
    return f"{format_perplexity(statistics.mean(values))} ± {format_perplexity(statistics.stdev(values))}"


def number(value: float | None) -> str:
    """A perplexity, or a dash."""
    return "–" if value is None else format_perplexity(value)


def short_commit(commit: str) -> str:
    """Ten digits, and the ``+`` of changed files.

    Example:
        >>> short_commit("0123456789abcdef"), short_commit("0123456789abcdef+")
        ('0123456789', '0123456789+')
    """
    return commit[:10] + ("+" if commit.endswith("+") else "")
