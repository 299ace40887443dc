"""What one usually does with a finished run: load its model, evaluate it, generate text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch_pru.errors import check_positive
from torch_pru.lm.device import autocast, choose_device, usable_precision
from torch_pru.lm.evaluation import Evaluation
from torch_pru.lm.evaluation import generate as generate_words
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import ProgressBar, no_progress_bar
from torch_pru.lm.run import RunFolder


def load(run: str | Path, which: str = "best", *, device: str = "auto") -> LanguageModel:
    """The model of a run, in ``eval()`` mode. Its vocabulary is ``RunFolder.open(run).vocabulary``.

    Args:
        run: the run folder.
        which: ``"best"`` for the weights of the lowest validation loss, ``"last"`` for those that training
            would continue from.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    """
    return RunFolder.open(run).model(which, choose_device(device))


def evaluate(
    run: str | Path,
    split: str = "test",
    methods: Sequence[str] = ("static",),
    *,
    tune: bool = False,
    device: str = "auto",
    precision: str = "float32",
    progress_bar: ProgressBar = no_progress_bar,
) -> dict[str, dict[str, Any]]:
    """Score a split of the run's corpus at batch 1, and record the scores in the run folder.

    Args:
        run: the run folder.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        methods: ``"static"``, ``"dynamic"`` (the weights adapt to the text) and ``"cache"`` (recent words
            become more likely).
        tune: first choose the settings of ``"dynamic"`` and ``"cache"`` on the validation text.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        precision: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        progress_bar: shows progress.

    Returns:
        By method, a dictionary with ``perplexity``, ``nll`` (nats per token), ``tokens``, ``seconds``,
        ``device``, ``precision`` and, where there are any, ``settings``.
    """
    evaluation = Evaluation(RunFolder.open(run), device, precision, progress_bar)
    for method in methods if tune else ():
        if method != "static":
            evaluation.tune(method)
    found = {method: evaluation.score(method, evaluation.corpus.split(split)) for method in methods}
    evaluation.record(split, found)
    return found


def generate(
    run: str | Path,
    prompt: str = "",
    *,
    words: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    unknown: bool = False,
    device: str = "auto",
) -> Iterator[str]:
    """Generate tokens with the best weights of a run, each as soon as it is drawn.

    Args:
        run: the run folder.
        prompt: text to continue, split into tokens as the run's corpus is. It is not repeated.
        words: the number of tokens.
        temperature: below 1 for more likely tokens, above 1 for more surprising ones, 0 for the likeliest.
        top_k: draw from the k likeliest tokens only.
        top_p: draw from the likeliest tokens whose probabilities add up to this.
        seed: the same seed gives the same text.
        unknown: whether ``<unk>`` may be drawn.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
    """
    check_positive("words", words)
    folder, chosen = RunFolder.open(run), choose_device(device)
    model = folder.model(device=chosen)
    tokens = generate_words(
        model,
        folder.vocabulary,
        folder.tokenizer(prompt),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        unknown=unknown,
    )
    precision = usable_precision(folder.config.training.precision, chosen, model)
    return _in_precision(islice(tokens, words), precision, model)


def _in_precision(tokens: Iterator[str], precision: str, model: LanguageModel) -> Iterator[str]:
    """Draw each token inside autocast; between two of them, the caller's setting holds."""
    while True:
        with autocast(precision, model.embedding.weight.device):
            token = next(tokens, None)
        if token is None:
            return
        yield token
