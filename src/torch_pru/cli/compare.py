"""``pru compare``: the difference between two groups of runs."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_pru.cli.checks import check_writable
from torch_pru.cli.command import Command
from torch_pru.cli.console import output
from torch_pru.cli.tables import print_table

if TYPE_CHECKING:
    from torch_pru.lm.compare import RunComparison, ScoredRun


class ManyAgainst(Command):
    """Lets ``--against`` take several runs: ``--against A B`` is ``--against A --against B``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option before each of its values."""
        return super().parse_args(ctx, repeat_option("--against", args))


def repeat_option(option: str, args: Sequence[str]) -> list[str]:
    """Repeat an option before each word that follows it, up to the next option.

    Example:
        >>> repeat_option("--against", ["a", "--against", "b", "c", "--json"])
        ['a', '--against', 'b', '--against', 'c', '--json']
    """
    repeated: list[str] = []
    inside = False
    for number, word in enumerate(args):
        if word.startswith("-"):
            inside = word == option
        elif inside and args[number - 1] != option:
            repeated.append(option)
        repeated.append(word)
    return repeated


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders of a model, one per seed.")],
    against: Annotated[
        list[Path], typer.Option(metavar="RUN...", help="Run folders of the model to compare with.")
    ],
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    method: Annotated[str, typer.Option(help="static, dynamic or cache.")] = "static",
    margin: Annotated[
        float, typer.Option(help="Smaller differences in perplexity count as equivalent.")
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write comparison.json and a figure there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two groups of runs.

    Prints the mean perplexity of RUN minus that of --against, with two intervals: one over seeds (Welch,
    95%), and one over seeds and blocks of tokens (bootstrap). Also says whether the interval over seeds lies
    within --margin.

    Reads the scores that `pru evaluate` has recorded; nothing is trained or scored.
    """
    from torch_pru.lm.compare import compare_runs

    if out is not None:
        check_writable(out)
    found = compare_runs(runs, against, split=split, method=method, margin=margin)
    if as_json:
        output().print_json(json.dumps(as_data(found)), ensure_ascii=True)
    else:
        show(found)
    if out is not None:
        write(found, out)


def as_data(found: RunComparison) -> dict[str, Any]:
    """A comparison as JSON has it."""
    return {**dataclasses.asdict(found), "verdict": found.verdict}


def show(found: RunComparison) -> None:
    """Print a comparison."""
    console = output()
    text = "validation" if found.split == "valid" else found.split
    console.print(f"perplexity of the {text} text, {found.method}", soft_wrap=True)
    headings = ("", "runs", "seeds", "parameters", "perplexity")
    rows = [[name, *side_cells(side)] for name, side in (("RUN", found.runs), ("--against", found.against))]
    print_table(console, headings, rows, left=[""], wrapped=["seeds", "parameters"], spare=["parameters"])
    lines = [f"difference (RUN minus --against): {found.difference:+.2f}"]
    several = max(len(found.runs), len(found.against)) > 1
    if several:
        lines.insert(0, "perplexity: mean over runs ± standard deviation")
    if found.interval is not None and found.degrees is not None:
        lines.append(
            f"95% interval over seeds (Welch, {found.degrees:.1f} degrees of freedom): {ends(found.interval)}"
        )
    if found.bootstrap is not None:
        over = "seeds and tokens" if several else "tokens"
        lines.append(f"95% interval over {over} (bootstrap): {ends(found.bootstrap)}")
    for line in [*lines, f"verdict: {found.verdict}", *(f"note: {note}" for note in found.notes)]:
        console.print(line, soft_wrap=True)


def side_cells(side: Sequence[ScoredRun]) -> list[str]:
    """Number of runs, seeds, parameters, and mean perplexity of one side."""
    values = [one.perplexity for one in side]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return [
        str(len(side)),
        ", ".join(str(one.seed) for one in side),
        ", ".join(sorted({f"{one.parameters:,}" for one in side})),
        f"{statistics.mean(values):.2f}{spread}",
    ]


def ends(interval: tuple[float, float]) -> str:
    """An interval to be read.

    Example:
        >>> ends((-1.0, 0.25))
        '[-1.00, +0.25]'
    """
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]"


def write(found: RunComparison, out: Path) -> None:
    """Write the numbers and, if there are parts to draw, the figure."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(as_data(found), indent=1) + "\n", encoding="utf-8")
    names = ["comparison.json"]
    if found.by_frequency and found.by_position:
        from torch_pru.analysis.figures.comparison import draw
        from torch_pru.analysis.figures.style import render

        for kind in ("svg", "png"):
            (out / f"comparison.{kind}").write_bytes(render(draw(found), kind))
            names.append(f"comparison.{kind}")
    for name in names:
        output().print(str(out / name), soft_wrap=True)
