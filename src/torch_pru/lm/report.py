"""``RESULTS.md``: the published tables with the runs of this project beside them, from records alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.config import RegularizationConfig
from torch_pru.lm.evaluation.tune import TOKENS
from torch_pru.lm.grid import as_typed
from torch_pru.lm.model import parameter_counts, skeleton
from torch_pru.lm.paper import (
    ADAPTED,
    CITED,
    DATA_SETS,
    GROUPED_SWEEP,
    LEVEL_SIZES,
    MAIN,
    POOLING,
    SWEEP,
    TRANSFORMS,
    Ablation,
    Adapted,
    Perplexities,
    Row,
    Setup,
)
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.records import RunRecord, read_results
from torch_pru.lm.report_cells import (
    NOISE,
    against,
    both,
    command,
    costs,
    here,
    millions,
    nearest_recipe,
    number,
    runs_of,
    seeds,
    short_commit,
    validation,
)
from torch_pru.lm.visible import table

INTRODUCTION = f"""\
# Results

Word-level perplexity, validation / test; lower is better. Made by `pru report results --paper > RESULTS.md`.

- **paper**: Mehta et al., "Pyramidal Recurrent Unit for Language Modeling" (EMNLP 2018).
- **code**: the README of the authors' repository; for AWD-LSTM, what its own authors' code reaches.
- **as published**: trained here with the published settings. Where the paper gives no value, ours is used:
  initial weights (`init=lstm`) and, on the Penn Treebank, weight drop 0.3 for AWD-PRU.
- **our settings**: other dropout, AR/TAR, trigger, finetuning rate and rotated columns, chosen on
  validation. Rows with standard dropout have no such column: their settings are the published ones.
- **reproduced** (as published): within {NOISE} of the paper, on validation and on test; **better**: more than
  {NOISE} below the paper on one of them. **reached** (our settings): at most {NOISE} above the paper on both.
  **missed**: otherwise. The paper reports one configuration twice, as LT / PT and as average sub-sampling;
  these results differ by 0.32 (PTB) and 0.57 (WT-2), and {NOISE} is about this variation.

Numbers are means over seeds, ± the standard deviation over seeds, of scores at batch 1 over every token, with
the weights of the best validation epoch. Only finished runs count; where there is none, unfinished runs are
shown and marked, without a verdict. Scores are made by `pru evaluate RUN` and
`pru evaluate RUN --split test`."""


def report(paths: Iterable[str | Path]) -> str:
    """The whole document in Markdown.

    Args:
        paths: run folders with or without weights, compact files, or folders of these; see `read_results`.
    """
    results = sorted(read_results(paths), key=lambda one: (one.config.name, one.finetuned, one.seed))
    refuse_duplicates(results)
    parts = [INTRODUCTION]
    for data_set in DATA_SETS:
        parts += [main_table(data_set, results), cost_table(data_set, results)]
    parts += [adapted_table(results), ablation_tables(results), sweep_tables(results), cited_table()]
    if results:
        parts.append(run_tables(results))
    return "\n\n".join(parts) + "\n"


def refuse_duplicates(results: Sequence[RunRecord]) -> None:
    """A run must not count twice, as itself and as a copy.

    A copy has the same weights and took the same time. (Finetuning that does not improve on its start has the
    weights of its source, but not its time.)
    """
    known: dict[object, RunRecord] = {}
    for one in results:
        marks: list[object] = [(one.path.resolve(), one.name)]
        marks += [(one.weights, round(one.minutes, 4))] if one.weights else []
        for mark in marks:
            if mark in known:
                raise PRUError(f"{known[mark].place} and {one.place} are the same run; give one of them")
            known[mark] = one


def main_table(data_set: str, results: Sequence[RunRecord]) -> str:
    """The paper's main table for ``"ptb"`` or ``"wt2"``."""
    heading = [
        *("model", "parameters, M: paper", "here", "paper", "code"),
        *("as published", "against the paper", "seeds", "our settings", "against the paper", "seeds"),
    ]
    rows = [main_row(row, results) for row in MAIN if row.data_set == data_set]
    return f"## {DATA_SETS[data_set]}\n\n" + table(heading, rows)


def main_row(row: Row, results: Sequence[RunRecord]) -> list[str]:
    """One row of the main table."""
    setups = [row.published, row.ours]
    everything = [run for setup in setups if setup for run in runs_of(setup, results)]
    cells = [row.model, str(row.parameters), millions(everything, "total"), both(row.paper), both(row.code)]
    for setup, word in zip(setups, ("reproduced", "reached"), strict=True):
        if setup is None:
            cells += ["", "", ""]
            continue
        runs = runs_of(setup, results)
        cells += [here(runs), against(row.paper, runs, word), seeds(runs)]
    return cells


def cost_table(data_set: str, results: Sequence[RunRecord]) -> str:
    """How the rows of a main table are made, and what that takes."""
    rows = []
    for row in MAIN:
        for setup, kind in ((row.published, "as published"), (row.ours, "ours")):
            if row.data_set == data_set and setup:
                runs = runs_of(setup, results)
                rows.append([row.model, kind, command(setup), *costs(runs), seeds(runs)])
    heading = ["model", "settings", "made by", "epochs", "minutes", "device", "seeds"]
    text = "Epochs and minutes of a finetuned row are those of finetuning. Several runs often shared one GPU."
    return f"### How these rows are made: {DATA_SETS[data_set]}\n\n{text}\n\n" + table(heading, rows)


def adapted_table(results: Sequence[RunRecord]) -> str:
    """Dynamic evaluation and the cache: what was published, and every model scored with them here."""
    heading = [
        *("model", "method", "published by", "published", "here", "static, same seeds"),
        *("seeds", "settings", "made by"),
    ]
    rows = {(one.setup, one.method): one for one in ADAPTED}
    for row in MAIN:
        for setup in filter(None, (row.published, row.ours)):
            for method in ("dynamic", "cache"):
                if any(one.is_scored(method) for one in runs_of(setup, results)):
                    rows.setdefault((setup, method), Adapted(setup, method))
    text = (
        f"The settings of both methods are tuned on the first {TOKENS:,} validation tokens, or as many as\n"
        "`--tune-tokens` says. These tokens are part of the validation text, so the validation scores are\n"
        "not independent of the tuning; the test scores are."
    )
    body = table(heading, (adapted_row(one, results) for one in rows.values()))
    return f"## Dynamic evaluation and continuous cache\n\n{text}\n\n{body}"


def adapted_row(one: Adapted, results: Sequence[RunRecord]) -> list[str]:
    """One row of that table."""
    runs = runs_of(one.setup, results)
    scored = [run for run in runs if run.is_scored(one.method)]
    settings = {
        ", ".join(f"{key} {value:g}" for key, value in run.settings(one.method).items()) for run in scored
    }
    options = sorted({run.evaluation_options(one.method) for run in scored}) or [" --tune"]
    part = f" ({len(scored)} of {len(runs)} seeds)" if len(scored) < len(runs) else ""
    return [
        one.setup.recipe + (", finetuned" if one.setup.finetuned else ""),
        one.method,
        one.source or "–",
        both(one.published),
        here(scored, one.method) if scored else "not scored" if runs else "not run",
        here(scored) if scored else "–",
        seeds(scored) + part if scored else "–",
        "; ".join(sorted(settings - {""})) or "–",
        "; ".join(f"`pru evaluate RUN --split test --{one.method}{more}`" for more in options),
    ]


def ablation_tables(results: Sequence[RunRecord]) -> str:
    """Tables with one column per data set."""
    blocks = [
        "## Ablations",
        "Validation perplexity; the settings are the published ones. The commands are for PTB;\n"
        "for WikiText-2 write `wt2` in place of `ptb`.",
        "### Transforms (one layer of 600 units, K = g = 4)",
        ablation_table("context / input transform", TRANSFORMS, results),
        "### Sub-sampling (one layer of 600 units, g = 1, K = 4)",
        ablation_table("sub-sampling", POOLING, results),
        "### Level sizes (PRU g=4 M=1400, standard dropout)",
        ablation_table("units of the two levels", LEVEL_SIZES, results),
    ]
    return "\n\n".join(blocks)


def ablation_table(what: str, rows: Sequence[Ablation], results: Sequence[RunRecord]) -> str:
    """Recurrent parameters, then the paper's and our validation perplexity on each data set."""
    heading = [
        what,
        "recurrent parameters, M",
        *("PTB: paper", "here", "seeds"),
        *("WT-2: paper", "here", "seeds"),
        "made by",
    ]
    body = []
    for row in rows:
        cells = [row.label, f"{recurrent_parameters(row.setup('ptb')) / 1e6:.2f}"]
        for data_set, paper in zip(DATA_SETS, (row.ptb, row.wt2), strict=True):
            runs = runs_of(row.setup(data_set), results)
            cells += [number(paper), validation(runs), seeds(runs)]
        body.append([*cells, command(row.setup("ptb"))])
    return table(heading, body)


def sweep_tables(results: Sequence[RunRecord]) -> str:
    """Levels by groups. The paper shows these as a figure only."""
    blocks = [
        "## Levels by groups",
        "One layer of 600 units, standard dropout; validation perplexity. The paper shows this as a figure,\n"
        'without numbers. Its "77% fewer" parameters at K=2, g=4 require grouped level matrices: the second\n'
        "table.",
        "### Level matrices not grouped",
        sweep_table(SWEEP, results),
        "### Level matrices grouped too (`input_groups=g`)",
        sweep_table(GROUPED_SWEEP, results),
    ]
    return "\n\n".join(blocks)


def sweep_table(rows: Sequence[Ablation], results: Sequence[RunRecord]) -> str:
    """Recurrent parameters, the saving against an LSTM of the same size, and validation perplexities."""
    heading = [
        "levels and groups",
        "recurrent parameters, M",
        "saving",
        "PTB",
        "seeds",
        "WT-2",
        "seeds",
        "made by",
    ]
    lstm = recurrent_parameters(Setup("ptb-ablation-lt-lt"))
    body = []
    for row in rows:
        count = recurrent_parameters(row.setup("ptb"))
        cells = [row.label, f"{count / 1e6:.2f}", f"{1 - count / lstm:.0%}"]
        for data_set in DATA_SETS:
            runs = runs_of(row.setup(data_set), results)
            cells += [validation(runs), seeds(runs)]
        body.append([*cells, command(row.setup("ptb"))])
    return table(heading, body)


def recurrent_parameters(setup: Setup) -> int:
    """How many parameters the recurrent layers of a setup have."""
    config = load_recipe(setup.recipe, dict(setup.changes))
    return parameter_counts(skeleton(config.model, RegularizationConfig())).recurrent


def cited_table() -> str:
    """The rows that the paper takes from others."""
    heading = ["model", "parameters", "PTB", "WT-2"]
    rows = [[one.model, one.parameters or "–", both(one.ptb), both(one.wt2)] for one in CITED]
    return "## Cited by the paper from others\n\n" + table(heading, rows)


def run_tables(results: Sequence[RunRecord]) -> str:
    """One row per run: those that the tables show, and all others."""
    counted = {id(one) for setup in table_setups() for one in runs_of(setup, results)}
    shown = [one for one in results if id(one) in counted]
    others = [one for one in results if id(one) not in counted]
    blocks = ["## Runs", "### Behind the tables", run_table(shown)]
    if others:
        text = "Runs with changed settings, and runs that were stopped before their end."
        blocks += ["### Experiments", text, run_table(others)]
    return "\n\n".join(blocks)


def table_setups() -> Iterator[Setup]:
    """The setup of every row of every table."""
    for row in MAIN:
        yield from filter(None, (row.published, row.ours))
    for one in (*TRANSFORMS, *POOLING, *LEVEL_SIZES, *SWEEP, *GROUPED_SWEEP):
        yield from (one.setup(data_set) for data_set in DATA_SETS)


def run_table(results: Sequence[RunRecord]) -> str:
    """One row per run."""
    heading = [
        *("record", "recipe", "changed", "stage", "seed", "precision", "validation / test"),
        *("epochs", "best", "minutes", "device", "commit"),
    ]
    rows = []
    for one in results:
        recipe, changes = nearest_recipe(one.config, one.stage)
        name = f"{one.path.stem} {one.name}" if one.path.suffix == ".jsonl" else one.name
        rows.append(
            [
                f"`{name}`",
                recipe,
                ", ".join(f"{key}={as_typed(value)}" for key, value in changes.items()) or "–",
                ("finetuned" if one.finetuned else "trained") + ("" if one.finished else ", unfinished"),
                str(one.seed),
                one.config.training.precision,
                both(Perplexities(one.perplexity("static", "valid"), one.perplexity("static", "test"))),
                str(len(one.epochs)),
                str(one.best_epoch),
                f"{one.minutes:.0f}",
                one.device,
                short_commit(str(one.environment.get("commit") or "")) or "–",
            ]
        )
    return table(heading, rows)
