"""``pru evaluate``: perplexity of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_pru.cli.console import messages, output, say
from torch_pru.cli.data import unknown_in_words
from torch_pru.cli.progress import bar
from torch_pru.cli.tables import print_table
from torch_pru.errors import PRUError, check_choice

if TYPE_CHECKING:
    from torch_pru.lm.evaluation import Evaluation

HEADINGS = {"nll": "nats/token", "word_perplexity": "per word", "byte_perplexity": "per byte"}

SPARE = ("seconds", "nats/token", "per byte", "per word", "tokens")
"""Columns that a narrow terminal does not show; the first one is left out first."""


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    split: Annotated[str | None, typer.Option(help="valid or test.", show_default="valid")] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score this file instead of a split; it is split into tokens as the run's corpus was.",
        ),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic", help="Also score with weights that adapt to the text (dynamic evaluation)."
        ),
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also score with a memory of recent words (continuous cache).")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First tune the settings of --dynamic and --cache on the validation text, and record them.",
        ),
    ] = False,
    tune_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Validation tokens that --tune scores with each setting.", show_default="30000"
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Batch size. Scores are recorded only with a batch size of 1.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="Compute precision: float32, bfloat16 or float16; 16 bits are faster on a GPU."),
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the perplexity of a text.

    The text is a split of the run's corpus or a file. Prints the perplexity of the run's best weights over
    every token but the first.

    Scores are recorded in the run's scores.json, which pru report reads.

    Settings of --dynamic: after every segment of tokens, the weights take a step of size learning rate; decay
    pulls them back to the trained ones; epsilon limits the steps where gradients are tiny. It first reads the
    training text, to see how large gradients are.

    Settings of --cache: theta says how much similar contexts count, mixture is the share of the cache in the
    probabilities.

    More: https://torch-pru.github.io/torch-pru/glossary/
    """
    from torch_pru.lm.evaluation import Evaluation
    from torch_pru.lm.evaluation.evaluation import PRECISIONS
    from torch_pru.lm.evaluation.tune import TOKENS
    from torch_pru.lm.run import RunFolder

    methods = [name for name, wanted in (("dynamic", dynamic), ("cache", cache)) if wanted]
    check_options(split, text, methods, tune=tune, tune_tokens=tune_tokens, batch=batch)
    check_choice("--precision", precision, PRECISIONS)
    split = split or "valid"
    work = Evaluation(RunFolder.open(run), device, precision, bar)
    read = None if text is None else work.encode(text)
    ids = work.corpus.split(split) if read is None else read.ids
    if tune:
        for method in methods:
            work.tune(method, tune_tokens or TOKENS)
            keep(work)
    found = {method: work.score(method, ids, batch) for method in ("static", *methods)}
    unknown = None if read is None else (read.unknown, len(read.ids))
    whole_words = work.run.tokenizer.whole_words or batch > 1
    show(
        str(text or split), found, set(work.scores.tuning), unknown, whole_words=whole_words, as_json=as_json
    )
    if text is None and batch == 1:
        keep(work, split, found)
    elif text is None:
        messages().print("not recorded: only scores with --batch 1 are recorded", soft_wrap=True)


def check_options(
    split: str | None,
    text: Path | None,
    methods: list[str],
    *,
    tune: bool,
    tune_tokens: int | None,
    batch: int,
) -> None:
    """Refuse options that do not go together."""
    if split is not None:
        check_choice("--split", split, ("valid", "test"))
    if split is not None and text is not None:
        raise PRUError("--split and --text cannot be used together; give one of them")
    if tune and not methods:
        raise PRUError("--tune needs --dynamic or --cache, whose settings it chooses")
    if tune_tokens is not None and not tune:
        raise PRUError(f"--tune-tokens {tune_tokens} has no effect without --tune; give --tune too")
    if methods and batch != 1:
        raise PRUError(f"--{methods[0]} reads the text in one piece, so --batch must be 1; leave out --batch")


def keep(work: Evaluation, split: str = "", found: Mapping[str, dict[str, Any]] | None = None) -> None:
    """Record what was tuned and found in the run folder; if that fails, say so."""
    try:
        stay = work.record(split, found)
    except PRUError as error:
        messages().print(f"not recorded: {error}", soft_wrap=True)
        return
    for method in stay:
        kept = work.scores.results[method][split].get("precision", "float32")
        line = (
            f"{row_label(split, method)}: not recorded in {work.precision}; the run keeps its score in {kept}"
        )
        messages().print(line, soft_wrap=True)


def show(
    text: str,
    found: dict[str, dict[str, Any]],
    tuned: set[str],
    unknown: tuple[int, int] | None,
    *,
    whole_words: bool = True,
    as_json: bool,
) -> None:
    """Print the scores of a text, by method; of a file also how many of its tokens are ``<unk>``."""
    from torch_pru.lm.evaluation.static import format_perplexity

    console = output()
    if as_json:
        names = ("unknown_tokens", "tokens_in_text")
        counts = {} if unknown is None else dict(zip(names, unknown, strict=True))
        console.print_json(json.dumps({"text": text, **counts, **found}), ensure_ascii=True)
        return
    formats = {
        "perplexity": format_perplexity,
        "nll": "{:.4f}".format,
        "tokens": "{:,}".format,
        "seconds": "{:.1f}".format,
    }
    if not whole_words:
        formats |= {"word_perplexity": format_perplexity, "byte_perplexity": "{:.3f}".format}
    rows = [
        [row_label(text, method), *(form(entry[name]) for name, form in formats.items())]
        for method, entry in found.items()
    ]
    headings = ["", *(HEADINGS.get(name, name) for name in formats)]
    print_table(console, headings, rows, left=[""], wrapped=[""], spare=SPARE)
    for method, entry in found.items():
        if "settings" in entry:
            values = ", ".join(setting_in_words(*one) for one in entry["settings"].items())
            origin = "tuned on validation" if method in tuned else "published defaults, not tuned"
            say(console, f"{method}: {values} ({origin})")
    if unknown is not None and unknown[0]:
        say(console, unknown_in_words(*unknown))


def row_label(text: str, method: str) -> str:
    """A text, and how it was scored where that is not the usual way.

    Example:
        >>> row_label("test", "static"), row_label("test", "cache")
        ('test', 'test, cache')
    """
    return text if method == "static" else f"{text}, {method}"


def setting_in_words(name: str, value: float) -> str:
    """A setting of dynamic evaluation or of the cache; the glossary explains them.

    Example:
        >>> setting_in_words("theta", 2.0), setting_in_words("window", 500)
        ('theta 2', 'memory of 500 words')
    """
    return f"memory of {value:g} words" if name == "window" else f"{name.replace('_', ' ')} {value:g}"
