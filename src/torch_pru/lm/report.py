"""``RESULTS.md``: the published tables with the runs of this project beside them, from run folders alone."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.evaluation.static import in_digits
from torch_pru.lm.evaluation.tune import TOKENS
from torch_pru.lm.paper import (
    ABLATIONS,
    ADAPTED,
    CITED,
    DATA_SETS,
    MAIN,
    POOLING,
    SWEEP,
    Adapted,
    Perplexities,
    Row,
)
from torch_pru.lm.results import Result, read_result

NOISE = 0.5
"""A score up to this much above the paper's counts as reproduced: one configuration that the paper reports
twice differs by as much."""

INTRODUCTION = f"""\
# Results

Word-level perplexities: lower is better.

- **paper**: Mehta et al., "Pyramidal Recurrent Unit for Language Modeling" (EMNLP 2018).
- **code**: what the README of its authors' repository states; in AWD-LSTM's rows, what AWD-LSTM's own
  code reaches.
- **here**: the runs of this project that came to their end; "not run" where none has. Weights of the best
  validation epoch, every predicted token scored at batch 1; mean over seeds, with the standard deviation
  where there are several. Epochs and minutes of a finetuned row are those of finetuning.
- **reproduced**: at or below the paper's perplexity plus {NOISE}, its own noise, on validation and on test.

Each row is made by the command it shows, then `pru evaluate RUN` and `pru evaluate RUN --split test`.
This file is made by `pru report` from the run folders; the last table has one line for each of them."""


def report(folders: Iterable[str | Path]) -> str:
    """The whole document in Markdown. Rows without a finished run say "not run".

    Args:
        folders: run folders, or copies of them without weights.

    Example:
        >>> report([]).splitlines()[0]
        '# Results'
        >>> "not run" in report([])
        True
    """
    results = sorted(map(read_result, folders), key=lambda one: (one.nearest, one.finetuned, one.seed))
    refuse_twice(results)
    counted = [one for one in results if one.finished]
    parts = [INTRODUCTION]
    parts += [main_table(corpus, counted) for corpus in DATA_SETS]
    parts += [adapted_table(counted), ablation_tables(counted), sweep_table(counted), cited_table()]
    if results:
        parts.append(run_table(results))
    return "\n\n".join(parts) + "\n"


def refuse_twice(results: Sequence[Result]) -> None:
    """A run must not count twice, as itself and as a copy.

    A copy has the same weights and took the same time; finetuning that betters nothing took its own.
    """
    known: dict[object, Path] = {}
    for one in results:
        marks: list[object] = [one.folder.resolve()]
        marks += [(one.weights, one.minutes)] if one.weights else []
        for mark in marks:
            if mark in known:
                raise PRUError(f"{known[mark]} and {one.folder} are one run; give one of them")
            known[mark] = one.folder


def main_table(corpus: str, results: Sequence[Result]) -> str:
    """The paper's main table for ``"ptb"`` or ``"wt2"``."""
    heading = [
        *("model", "parameters, M: paper", "here"),
        *("validation: paper", "code", "here", "test: paper", "code", "here", "reproduced"),
        *("epochs", "minutes", "device", "seeds", "made by"),
    ]
    rows = [main_row(row, results) for row in MAIN if row.corpus == corpus]
    return f"## {DATA_SETS[corpus]}\n\n" + table(heading, rows)


def main_row(row: Row, results: Sequence[Result]) -> list[str]:
    """One line of the main table."""
    runs = runs_of(row.recipe, row.finetuned, results)
    valid, test = scores(runs, "static", "valid"), scores(runs, "static", "test")
    return [
        row.model,
        str(row.parameters),
        millions(runs, "total"),
        number(row.valid),
        number(row.repository.valid),
        here(runs, valid),
        number(row.test),
        number(row.repository.test),
        here(runs, test),
        reproduced([(valid, row.valid), (test, row.test)]),
        *costs(runs),
        command(row.recipe, row.finetuned),
    ]


def adapted_table(results: Sequence[Result]) -> str:
    """Dynamic evaluation and the cache: what was published, and every model here scored with them."""
    heading = [
        *("model", "method", "published by", "validation", "test"),
        *("here: validation", "test", "static test", "settings", "seeds", "made by"),
    ]
    published = {(one.recipe, one.finetuned, one.method): one for one in ADAPTED}
    for result in results:
        for recipe, method in itertools.product(result.recipes, ("dynamic", "cache")):
            if result.is_scored(method):
                ours = Adapted(recipe, method, Perplexities(), "", result.finetuned)
                published.setdefault((recipe, result.finetuned, method), ours)
    rows = [adapted_row(one, results) for one in published.values()]
    text = (
        f"Settings are tuned on the first {TOKENS:,} validation tokens, or as many as `--tune-tokens` says. "
        "Without `--split test` the validation text is scored."
    )
    return f"## Dynamic evaluation and continuous cache\n\n{text}\n\n" + table(heading, rows)


def adapted_row(one: Adapted, results: Sequence[Result]) -> list[str]:
    """One line of that table."""
    runs = runs_of(one.recipe, one.finetuned, results, one.method)
    settings = [
        ", ".join(f"{key} {value:g}" for key, value in run.settings(one.method).items()) for run in runs
    ]
    options = sorted({run.evaluation_options(one.method) for run in runs}) or [" --tune"]
    return [
        one.recipe + (", finetuned" if one.finetuned else ""),
        one.method,
        one.source or "–",
        number(one.perplexities.valid),
        number(one.perplexities.test),
        here(runs, scores(runs, one.method, "valid")),
        here(runs, scores(runs, one.method, "test")),
        here(runs, scores(runs, "static", "test")),
        "; ".join(sorted(set(settings) - {""})) or "–",
        seeds(runs),
        "; ".join(f"`pru evaluate RUN --split test --{one.method}{more}`" for more in options),
    ]


def ablation_tables(results: Sequence[Result]) -> str:
    """Validation perplexities of one layer of 600 units, standard dropout."""
    transforms = ablation_table("context / input transform", ABLATIONS, results)
    pooling = ablation_table("sub-sampling", POOLING, results)
    return (
        "## Ablations\n\n"
        "One layer, embedding and hidden size 600, standard dropout; validation perplexity. The\n"
        "commands are PTB's; for WikiText-2 write `wt2` in place of `ptb`.\n\n"
        f"### Transforms (K = g = 4)\n\n{transforms}\n\n### Sub-sampling (g = 1, K = 4)\n\n{pooling}"
    )


def ablation_table(
    what: str, published: dict[str, tuple[str, float, float]], results: Sequence[Result]
) -> str:
    """A table with a pair of columns for each corpus."""
    heading = [
        what,
        "recurrent parameters, M",
        "PTB: paper",
        "here",
        "seeds",
        "WT-2: paper",
        "here",
        "seeds",
        "made by",
    ]
    rows = []
    for recipe, (label, *paper) in published.items():
        cells = [label, millions(runs_of(f"ptb-{recipe}", False, results), "recurrent")]
        for corpus, value in zip(DATA_SETS, paper, strict=True):
            runs = runs_of(f"{corpus}-{recipe}", False, results)
            cells += [number(value), here(runs, scores(runs, "static", "valid")), seeds(runs)]
        rows.append([*cells, command(f"ptb-{recipe}", False)])
    return table(heading, rows)


def sweep_table(results: Sequence[Result]) -> str:
    """Levels by groups. The paper shows these as a figure only."""
    heading = [
        "levels and groups",
        "recurrent parameters, M",
        "PTB: here",
        "seeds",
        "WT-2: here",
        "seeds",
        "made by",
    ]
    rows = []
    for recipe, label in SWEEP.items():
        cells = [label, millions(runs_of(f"ptb-{recipe}", False, results), "recurrent")]
        for corpus in DATA_SETS:
            runs = runs_of(f"{corpus}-{recipe}", False, results)
            cells += [here(runs, scores(runs, "static", "valid")), seeds(runs)]
        rows.append([*cells, command(f"ptb-{recipe}", False)])
    text = "One layer as above; validation perplexity. The paper shows this as a figure, without numbers."
    return f"## Levels by groups\n\n{text}\n\n" + table(heading, rows)


def cited_table() -> str:
    """The rows that the paper takes from others."""
    heading = ["model", "parameters", "PTB validation", "test", "WT-2 validation", "test"]
    rows = [
        [
            one.model,
            one.parameters or "–",
            *map(number, (one.ptb.valid, one.ptb.test, one.wt2.valid, one.wt2.test)),
        ]
        for one in CITED
    ]
    return "## Cited by the paper from others\n\n" + table(heading, rows)


def run_table(results: Sequence[Result]) -> str:
    """One line a run, those with changed settings too."""
    heading = [
        *("folder", "recipe", "changed", "stage", "seed", "precision", "validation", "test"),
        *("epochs", "best", "minutes", "device", "commit"),
    ]
    rows = [
        [
            f"`{one.folder.name}`",
            ", ".join(one.recipes) or one.nearest,
            ", ".join(f"{key}={typed(value)}" for key, value in one.changes.items()) or "–",
            ("finetuned" if one.finetuned else "trained") + ("" if one.finished else ", unfinished"),
            str(one.seed),
            one.config.training.precision,
            number(one.perplexity("static", "valid")),
            number(one.perplexity("static", "test")),
            str(one.epochs),
            str(one.best_epoch),
            f"{one.minutes:.0f}",
            one.device,
            short_commit(one.commit) or "–",
        ]
        for one in results
    ]
    text = "Runs with changed settings, and those that have not come to their end, count in no table above."
    return f"## Every run\n\n{text}\n\n" + table(heading, rows)


def typed(value: Any) -> str:
    """A setting's value as it is typed after ``--set``.

    Example:
        >>> typed((200, 200)), typed(True), typed("ptb")
        ('[200, 200]', 'true', 'ptb')
    """
    return value if isinstance(value, str) else json.dumps(value)


def short_commit(commit: str) -> str:
    """Ten digits, and the ``+`` of changed files.

    Example:
        >>> short_commit("0123456789abcdef"), short_commit("0123456789abcdef+")
        ('0123456789', '0123456789+')
    """
    return commit[:10] + ("+" if commit.endswith("+") else "")


def runs_of(recipe: str, finetuned: bool, results: Sequence[Result], method: str = "static") -> list[Result]:
    """The runs of a recipe at one stage; where some are scored by a row's method, these alone."""
    runs = [one for one in results if recipe in one.recipes and one.finetuned == finetuned]
    return [one for one in runs if one.is_scored(method)] or runs


def scores(runs: Sequence[Result], method: str, split: str) -> list[float]:
    """The perplexities that these runs have on record."""
    return [value for one in runs if (value := one.perplexity(method, split)) is not None]


def reproduced(pairs: Iterable[tuple[list[float], float]]) -> str:
    """``yes`` where every mean is at or below its published value plus the noise; empty where one is missing.

    Example:
        >>> reproduced([([58.5, 58.7], 58.46), ([56.6], 56.56)])
        'yes'
    """
    pairs = list(pairs)
    if not all(found for found, _ in pairs):
        return ""
    return "yes" if all(statistics.mean(found) <= paper + NOISE for found, paper in pairs) else "no"


def costs(runs: Sequence[Result]) -> list[str]:
    """Epochs, minutes, device and seeds."""
    if not runs:
        return ["", "", "", ""]
    epochs = [one.epochs for one in runs]
    spread = str(epochs[0]) if min(epochs) == max(epochs) else f"{min(epochs)} to {max(epochs)}"
    minutes = statistics.mean(one.minutes for one in runs)
    return [spread, f"{minutes:.0f}", ", ".join(sorted({one.device for one in runs})), seeds(runs)]


def seeds(runs: Sequence[Result]) -> str:
    """The seeds of runs, each once."""
    return ", ".join(str(seed) for seed in sorted({one.seed for one in runs}))


def millions(runs: Sequence[Result], part: str) -> str:
    """Millions of parameters; empty before the first score."""
    counts = [count for one in runs if (count := one.parameters(part)) is not None]
    return f"{counts[0] / 1e6:.2f}" if counts else ""


def command(recipe: str, finetuned: bool) -> str:
    """How a row is made."""
    return "`pru finetune RUN` of the row above" if finetuned else f"`pru train {recipe}`"


def here(runs: Sequence[Result], found: list[float]) -> str:
    """Our own number, and of how many runs where not all have one; or why there is none."""
    if not found:
        return "not scored" if runs else "not run"
    share = f" ({len(found)} of {len(runs)} runs)" if len(found) < len(runs) else ""
    return f"**{mean(found)}**{share}"


def mean(values: list[float]) -> str:
    """Mean and, of several values, standard deviation.

    Example:
        >>> mean([58.0, 59.0]), mean([58.0])
        ('58.50 ± 0.71', '58.00')
    """
    if not values:
        return ""
    spread = f" ± {in_digits(statistics.stdev(values))}" if len(values) > 1 and len(set(values)) > 1 else ""
    return f"{in_digits(statistics.mean(values))}{spread}"


def number(value: float | None) -> str:
    """A perplexity, or a dash.

    Example:
        >>> number(58.4), number(None)
        ('58.40', '–')
    """
    return "–" if value is None else in_digits(value)


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped.

    Example:
        >>> print(table(["a", "b"], [["1", "2|3"]]))
        | a | b |
        |---|---|
        | 1 | 2\\|3 |
    """
    lines = [" | ".join(heading), "|".join("---" for _ in heading)]
    body = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join([f"| {lines[0]} |", f"|{lines[1]}|", *(f"| {line} |" for line in body)])
