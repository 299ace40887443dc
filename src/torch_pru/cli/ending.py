"""The end of a run on the built-in text or on the user's own: scores, a sample, and the next commands."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from torch_pru.cli.console import output, say, wraps
from torch_pru.cli.evaluate import keep
from torch_pru.cli.progress import bar

if TYPE_CHECKING:
    from torch_pru.lm.evaluation import Evaluation
    from torch_pru.lm.run import RunFolder

LSTM_RECORD = Path(__file__).parents[1] / "lm" / "recipes" / "quickstart-lstm.json"
"""Scores of ``pru train quickstart --unit lstm``, kept so that every quickstart can show them."""

BASELINE = "Kneser-Ney bigram (baseline)"
SAMPLE = 200  # tokens that the sample is made of, at most
MOST_COUNTED = 5_000_000  # training tokens; counting the pairs of a longer text takes too much memory


def show_ending(run: RunFolder) -> None:
    """Perplexities beside those of simpler models, some text, and things to do next."""
    from torch_pru.lm.evaluation import Evaluation, generate

    console = output()
    work = Evaluation(run, run.config.training.device, progress_bar=bar)
    own = own_scores(work)
    rows, notes = {f"this {run.config.model.kind.upper()}": own}, []
    if is_quickstart(run) and (record := lstm_record()):
        rows["nn.LSTM *"] = record["perplexity"]
        notes.append(f"* trained earlier with the same settings; {record['parameters']:,} parameters")
    if len(work.corpus.train) <= MOST_COUNTED:
        rows[BASELINE] = counted_scores(work)
        if own["valid"] > rows[BASELINE]["valid"]:
            notes.append(
                "This model is worse than the baseline, which only counts word pairs: train longer (a larger "
                "--minutes or --epochs), or on more text."
            )
    else:
        notes.append(
            f"No {BASELINE} is shown: counting the word pairs of more than {MOST_COUNTED:,} training tokens "
            f"takes too much memory."
        )
    if (columns := run.config.training.valid_batch) > 1:
        notes.append(
            f"For these scores, the model reads the text from beginning to end. Validation during training "
            f"cuts it into {columns} columns that are read in parallel, so its perplexity is slightly "
            f"different."
        )
    console.print(table_of(rows))
    for note in notes:
        say(console, note)
    words = generate(work.model, run.vocabulary, temperature=0.8, seed=run.config.training.seed)
    tokenizer = run.tokenizer
    console.print("\nSample:")
    for sentence in islice(sentences(islice(words, SAMPLE)), 3):
        width = console.width if wraps(console) else None
        console.print(indented(tokenizer.join(sentence), width), soft_wrap=True)
    console.print("\nWhat to do next:")
    for command, purpose in next_steps(run):
        console.print(f"  {command}\n      {purpose}", soft_wrap=True)


def indented(text: str, width: int | None) -> str:
    """A text two columns from the left, wrapped to a width or in one line.

    Example:
        >>> indented("and it came to pass in the days", 24)
        '  and it came to pass in\\n  the days'
        >>> indented("and it came to pass in the days", None)
        '  and it came to pass in the days'
    """
    lines = [text] if width is None else textwrap.wrap(text, max(20, width - 2))
    return "\n".join(f"  {line}" for line in lines)


def show_scores(runs: Sequence[RunFolder]) -> None:
    """The scores of several runs in one table, by the names of their folders."""
    from torch_pru.lm.evaluation import Evaluation

    work = (Evaluation(run, run.config.training.device) for run in runs)
    output().print()
    output().print(table_of({one.run.path.name: own_scores(one) for one in work}))


def own_scores(work: Evaluation) -> dict[str, float]:
    """Perplexity of each part, from the run's record where it has one."""
    found = {}
    for split in ("valid", "test"):
        score = work.scores.perplexity("static", split)
        if score is None:
            entry = work.score("static", work.corpus.split(split))
            keep(work, split, {"static": entry})
            score = entry["perplexity"]
        found[split] = score
    return found


def counted_scores(work: Evaluation) -> dict[str, float]:
    """Perplexity of a Kneser-Ney bigram, which knows how often each word follows each other word."""
    from torch_pru.lm.data import kneser_ney_bigram_perplexity

    corpus = work.corpus
    return {
        split: kneser_ney_bigram_perplexity(corpus.train, corpus.split(split), len(corpus.vocabulary))
        for split in ("valid", "test")
    }


def table_of(rows: dict[str, dict[str, float]]) -> Table:
    """Models and their perplexities."""
    from torch_pru.lm.evaluation.static import format_perplexity

    table = Table("perplexity (lower is better)", box=None, pad_edge=False)
    for heading in ("validation", "test"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, scores in rows.items():
        table.add_row(name, format_perplexity(scores["valid"]), format_perplexity(scores["test"]))
    return table


def is_quickstart(run: RunFolder) -> bool:
    """Whether a run has the quickstart's model and schedule, with which its record compares."""
    from torch_pru.lm.recipe import load_recipe

    recipe, own = load_recipe("quickstart"), run.config
    same_schedule = recipe.training.epochs == own.training.epochs and not own.training.minutes
    return recipe.model == own.model and recipe.data.corpus == own.data.corpus and same_schedule


def lstm_record() -> dict[str, Any] | None:
    """The record of the quickstart's LSTM; None where the package has none."""
    if not LSTM_RECORD.is_file():
        return None
    record: dict[str, Any] = json.loads(LSTM_RECORD.read_text(encoding="utf-8"))
    return record


def next_steps(run: RunFolder) -> list[tuple[str, str]]:
    """Commands, and what each does; a page cannot split text into subwords."""
    from torch_pru.lm.config import is_subwords
    from torch_pru.lm.run import pru_command
    from torch_pru.page.site import BUILD_COMMAND, is_built

    corpus = run.config.data.corpus
    prompt = ' --prompt "In the beginning"' if corpus == "king-james" else ""
    purpose = "opens a web page where the model predicts the next word as you type"
    if not is_built():
        purpose += f" (once it is built: {BUILD_COMMAND})"
    subwords = is_subwords(run.config.data.tokenizer)
    steps = [] if subwords else [(pru_command("page", run.path), purpose)]
    steps += [
        (f"{pru_command('generate', run.path)}{prompt} --temperature 0.8", "generates more text"),
        (
            f"{pru_command('evaluate', run.path)} --split test --cache",
            "test perplexity with a cache of recent words",
        ),
    ]
    if corpus == "king-james":
        return [*steps, ("pru train --text FILE", "trains on your own text")]
    settings = shlex.quote(str(run.path / "config.toml"))  # all settings of this run, its time limit too
    if run.config.model.kind == "pru":
        other, purpose = "--unit lstm", "an LSTM"
    else:
        groups = " --groups 4" if all(size % 4 == 0 for size in run.config.model.hidden) else ""
        other, purpose = f"--unit pru{groups}", "a PRU"
    return [
        *steps,
        (f"pru train {settings} {other}", f"trains {purpose} with the same settings, to compare"),
    ]


def sentences(words: Iterator[str]) -> Iterator[list[str]]:
    """Words up to each ``<eos>``; empty sentences are left out, and one of 60 words is broken off.

    Example:
        >>> list(islice(sentences(iter(["<eos>", "he", "wept", "<eos>", "and"] * 2)), 2))
        [['he', 'wept'], ['and']]
    """
    sentence: list[str] = []
    for word in words:
        if word != "<eos>":
            sentence.append(word)
        if sentence and (word == "<eos>" or len(sentence) == 60):
            yield sentence
            sentence = []
