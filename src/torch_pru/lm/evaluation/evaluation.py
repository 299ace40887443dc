"""A run folder evaluated: its model is loaded, tuned and scored, and the folder keeps what was found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_pru.errors import PRUError, check_choice, check_positive
from torch_pru.lm.checkpoint import saved_numbers
from torch_pru.lm.data import Corpus, EncodedText, encode_text, tokenizer_of
from torch_pru.lm.data.sources import SPLITS
from torch_pru.lm.device import choose_device, device_name
from torch_pru.lm.evaluation.cache import score_cache
from torch_pru.lm.evaluation.dynamic import GradientStatistics, gradient_statistics, score_dynamic
from torch_pru.lm.evaluation.scores import SETTINGS, entry, read_again, save_scores, scores_for
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.evaluation.tune import TOKENS, Tuning, tune_cache, tune_dynamic
from torch_pru.lm.run import RunFolder, locked
from torch_pru.lm.watch import Advance, Watch, unwatched

PRECISIONS = ("float32", "bfloat16", "float16")
PATIENCE = 3.0  # seconds to wait for another evaluation to write; one that trains holds the lock much longer


class Evaluation:
    """A run's best weights with what their scores need, each loaded or gathered when it is first asked for.

    Args:
        run: the run folder.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        precision: of the products: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        watch: shows progress.

    Attributes:
        model: on the device, in ``eval()``.
        scores: what the run folder has on record of these weights, and what was tuned since.

    Example:
        >>> evaluation = Evaluation(RunFolder.open("runs/quickstart-1"))            # doctest: +SKIP
        >>> tuning = evaluation.tune("cache")                                       # doctest: +SKIP
        >>> found = evaluation.score("cache", evaluation.corpus.test)               # doctest: +SKIP
        >>> found["perplexity"], found["settings"]["theta"]                         # doctest: +SKIP
        (53.1, 0.3)
        >>> evaluation.keep("test", {"cache": found})  # in scores.json             # doctest: +SKIP
        []
    """

    def __init__(
        self, run: RunFolder, device: str = "auto", precision: str = "float32", watch: Watch = unwatched
    ) -> None:
        from torch_pru.lm.training.precision import check_precision  # training needs evaluation, too

        check_choice("precision", precision, PRECISIONS)
        self.run, self.device, self.precision, self.watch = run, choose_device(device), precision, watch
        self.checkpoints = saved_numbers(run.checkpoints)  # before the weights are read: see `keep`
        self.model = run.model(device=self.device)
        check_precision(precision, self.device, self.model)
        self.scores = scores_for(self.model, run.path, run.inputs_digest())
        self.tuned: dict[str, Tuning[Any]] = {}

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus of the run."""
        return self.run.corpus()

    def encode(self, text: Path) -> EncodedText:
        """A file as ids, split into tokens as the run's corpus is."""
        return encode_text(text, self.run.vocabulary, tokenizer_of(self.run.config.data))

    @contextmanager
    def _computing(self, what: str) -> Iterator[Advance]:
        from torch_pru.lm.training.precision import computing

        with self.watch(what) as advance, computing(self.precision, self.device):
            yield advance

    @cached_property
    def statistics(self) -> GradientStatistics:
        """Gradients over the training text, for dynamic evaluation."""
        train = self.corpus.train
        batch = min(100, len(train) // 2)  # as published; a very short text has fewer columns
        with self._computing("gradient statistics") as advance:
            return gradient_statistics(self.model, train, batch=batch, progress=advance)

    def tune(self, method: str, tokens: int = TOKENS) -> Tuning[Any]:
        """Choose the settings of ``"dynamic"`` or ``"cache"`` on the first ``tokens`` of validation.

        `score` uses them from then on; `keep` writes them.
        """
        check_choice("method", method, SETTINGS)
        check_positive("tokens", tokens)  # before the gradients are gathered
        model, valid = self.model, self.corpus.valid
        statistics = self.statistics if method == "dynamic" else None
        with self._computing(f"tuning {method}") as advance:
            if statistics is not None:
                tuning: Tuning[Any] = tune_dynamic(model, valid, statistics, tokens=tokens, progress=advance)
            else:
                tuning = tune_cache(model, valid, tokens=tokens, progress=advance)
        self.scores.note_tuning(method, tuning)
        self.tuned[method] = tuning
        return tuning

    def score(self, method: str, ids: Tensor, batch: int = 1) -> dict[str, Any]:
        """The score of ``ids`` (N,) by ``"static"``, ``"dynamic"`` or ``"cache"``, see `entry`.

        ``batch``, the columns read side by side, counts for ``"static"`` only.
        """
        check_choice("method", method, ("static", *SETTINGS))
        statistics = self.statistics if method == "dynamic" else None
        settings: Any = None if method == "static" else self.scores.settings(method)
        with self._computing(f"scoring ({method})") as advance:
            if statistics is not None:
                found = score_dynamic(self.model, ids, statistics, settings, progress=advance)
            elif method == "cache":
                found = score_cache(self.model, ids, settings, progress=advance)
            else:
                found = score(self.model, ids, batch=batch, progress=advance)
        # Autocast leaves float64 as it is.
        wide = next(self.model.parameters()).dtype == torch.float64
        return entry(found, device_name(self.device), "float64" if wide else self.precision, settings)

    def keep(self, split: str = "", found: Mapping[str, dict[str, Any]] | None = None) -> list[str]:
        """Write what was tuned, and what `score` found of a split by method, into the run's scores.json.

        What other processes have written there meanwhile stays. Refused while the run is trained, and where
        its weights are no longer those that were scored.

        Returns:
            The methods whose score on record stays because it is in more bits.
        """
        if found:
            check_choice("split", split, SPLITS)
        for method in found or ():
            check_choice("method", method, ("static", *SETTINGS))
        with locked(self.run.path, PATIENCE):
            if saved_numbers(self.run.checkpoints) != self.checkpoints:
                raise PRUError(f"the run in {self.run.path} was trained meanwhile: its weights may be others")
            self.scores = read_again(self.scores, self.run.path)
            for method, tuning in self.tuned.items():
                self.scores.note_tuning(method, tuning)
            items = (found or {}).items()
            stay = [method for method, value in items if not self.scores.note(method, split, value)]
            save_scores(self.scores, self.run.path)
        return stay
