"""``pru evaluate``: perplexity of a run."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from torch_pru.cli.console import messages, output
from torch_pru.cli.progress import bar
from torch_pru.errors import PRUError, check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from torch_pru.lm.data import Corpus
    from torch_pru.lm.evaluation import GradientStatistics
    from torch_pru.lm.model import LanguageModel
    from torch_pru.lm.run import RunFolder


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    split: Annotated[str | None, typer.Option(help="valid or test.", show_default="valid")] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Score this instead, cut into words as the run's corpus is.",
        ),
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Also with dynamic evaluation.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="Also with a continuous cache.")] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="First choose their settings on validation; the run keeps and uses them."
        ),
    ] = False,
    tune_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="How much of validation --tune reads, once for each setting.", show_default="30000"
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Columns read side by side; reported scores are at 1.")
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of the products: float32; bfloat16 and float16 are quick on a GPU.")
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a text with a run.

    The perplexity of the run's best weights. At batch 1 every predicted token counts, N - 1 of a split.

    Scores of a split at batch 1 are kept in the run's scores.json, for pru report.
    """
    from torch_pru.lm.evaluation.scores import save_scores
    from torch_pru.lm.run import RunFolder

    methods = [name for name, wanted in (("dynamic", dynamic), ("cache", cache)) if wanted]
    check_options(split, text, methods, tune=tune, tune_tokens=tune_tokens, batch=batch)
    check_choice("--precision", precision, ("float32", "bfloat16", "float16"))
    split = split or "valid"
    work = Evaluation(RunFolder.open(run), device, precision)
    ids = work.corpus.split(split) if text is None else work.encode(text)
    if tune:
        for method in methods:
            work.tune(method, tune_tokens)
    found = {method: work.score(method, ids, batch) for method in ("static", *methods)}
    unknown = None if text is None else work.count_unknown(text)
    show(str(text or split), found, set(work.scores.tuning), unknown, as_json=as_json)
    if text is None and batch == 1:
        for method, entry in found.items():
            if not work.scores.note(method, split, entry):
                kept = f"{split}, {method}: the run keeps its score in float32, not this one in {precision}"
                messages().print(kept, soft_wrap=True)
        save_scores(work.scores, work.run.path)


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
        raise PRUError("--split and --text exclude each other: score a split of the run's corpus, or a file")
    if tune and not methods:
        raise PRUError("--tune chooses the settings of --dynamic or --cache; give one of them")
    if tune_tokens is not None and not tune:
        raise PRUError(f"--tune-tokens {tune_tokens} says how much --tune reads; give --tune too")
    if methods and batch != 1:
        raise PRUError(f"--batch {batch}: --{methods[0]} reads the text in one piece; leave out --batch")


class Evaluation:
    """A run's model with what its scores need, each loaded or gathered when it is first asked for."""

    def __init__(self, run: RunFolder, device: str, precision: str) -> None:
        from torch_pru.lm.evaluation.scores import scores_for
        from torch_pru.lm.training.distributed import choose_device
        from torch_pru.lm.training.precision import check_precision

        self.run, self.device, self.precision = run, choose_device(device), precision
        self.model = run.model(device=self.device)
        check_precision(precision, self.device, self.model)
        self.scores = scores_for(self.model, run.path)

    def _computing(self) -> AbstractContextManager[object]:
        from torch_pru.lm.training.precision import computing

        return computing(self.precision, self.device)

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus of the run."""
        return self.run.corpus()

    def encode(self, text: Path) -> Tensor:
        """A file as ids (N,), cut into words as the run's corpus is."""
        from torch_pru.lm.data import encode_text, word_splitter

        return encode_text(text, self.run.vocabulary, word_splitter(self.run.config.data.corpus))

    def count_unknown(self, text: Path) -> tuple[int, int]:
        """How many words of a file the run does not know, and how many words there are."""
        from torch_pru.lm.data import count_unknown, word_splitter

        return count_unknown(text, self.run.vocabulary, word_splitter(self.run.config.data.corpus))

    @cached_property
    def statistics(self) -> GradientStatistics:
        """Gradients over the training text, for dynamic evaluation."""
        from torch_pru.lm.evaluation import gradient_statistics

        with bar("gradient statistics") as advance, self._computing():
            train = self.corpus.train
            batch = min(100, len(train) // 2)  # as published; a very short text has fewer columns
            return gradient_statistics(self.model, train, batch=batch, progress=advance)

    def tune(self, method: str, tokens: int | None = None) -> None:
        """Choose the method's settings on the first ``tokens`` of validation; the run folder keeps them."""
        from torch_pru.lm.evaluation import tune_cache, tune_dynamic
        from torch_pru.lm.evaluation.scores import save_scores
        from torch_pru.lm.evaluation.tune import TOKENS, Tuning

        model, valid, tokens = self.model, self.corpus.valid, tokens or TOKENS
        statistics = self.statistics if method == "dynamic" else None
        tuning: Tuning[Any]
        with bar(f"tuning {method}") as advance, self._computing():
            if statistics is not None:
                tuning = tune_dynamic(model, valid, statistics, tokens=tokens, progress=advance)
            else:
                tuning = tune_cache(model, valid, tokens=tokens, progress=advance)
        self.scores.note_tuning(method, tuning)
        try:
            save_scores(self.scores, self.run.path)
        except PRUError as error:  # what was tuned can still be used
            messages().print(f"not kept: {error}", soft_wrap=True)

    def score(self, method: str, ids: Tensor, batch: int) -> dict[str, Any]:
        """The score of ``ids`` (N,) by one method, as plain values."""
        from torch_pru.lm.evaluation import score, score_cache, score_dynamic
        from torch_pru.lm.evaluation.scores import entry

        statistics = self.statistics if method == "dynamic" else None
        settings: Any = None if method == "static" else self.scores.settings(method)
        with bar(f"scoring ({method})") as advance, self._computing():
            if statistics is not None:
                found = score_dynamic(self.model, ids, statistics, settings, progress=advance)
            elif method == "cache":
                found = score_cache(self.model, ids, settings, progress=advance)
            else:
                found = score(self.model, ids, batch=batch, progress=advance)
        return entry(found, device_name(self.model), self.precision, settings)


def show(
    text: str,
    found: dict[str, dict[str, Any]],
    tuned: set[str],
    unknown: tuple[int, int] | None,
    *,
    as_json: bool,
) -> None:
    """Print the scores of a text, by method; of a file also its unknown words and all its words."""
    console = output()
    if as_json:
        counts = {} if unknown is None else dict(zip(("unknown_words", "words"), unknown, strict=True))
        console.print_json(json.dumps({"text": text, **counts, **found}))
        return
    formats = {"perplexity": ".2f", "nll": ".4f", "tokens": ",", "seconds": ".1f"}
    if console.width < 60:
        del formats["nll"], formats["seconds"]
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in formats:
        table.add_column("nats" if name == "nll" else name, justify="right", no_wrap=True)
    for method, entry in found.items():
        table.add_row(f"{text}, {method}", *(format(entry[name], form) for name, form in formats.items()))
    console.print(table)
    for method, entry in found.items():
        if "settings" in entry:
            values = ", ".join(f"{name} {value:g}" for name, value in entry["settings"].items())
            origin = "tuned on validation" if method in tuned else "published defaults, not tuned"
            console.print(f"{method}: {values} ({origin})", soft_wrap=True)
    if unknown is not None and unknown[0]:
        share = f"{unknown[0]:,} of {unknown[1]:,} words ({unknown[0] / unknown[1]:.1%})"
        console.print(f"not in the run's vocabulary, so read as <unk>: {share}", soft_wrap=True)


def device_name(model: LanguageModel) -> str:
    """The device a model is on, a GPU by its name."""
    import torch

    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
