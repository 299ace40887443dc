"""Evaluation of a run: loads its model, tunes and scores it, and records the results in the run folder."""

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
from torch_pru.lm.data import Corpus, EncodedText, TextSize, encode_text
from torch_pru.lm.data.sources import SPLITS
from torch_pru.lm.device import autocast, check_precision, choose_device, device_name
from torch_pru.lm.evaluation.cache import score_cache
from torch_pru.lm.evaluation.dynamic import GradientStatistics, gradient_statistics, score_dynamic
from torch_pru.lm.evaluation.scores import (
    SETTINGS,
    entry,
    read_again,
    save_log_probabilities,
    save_scores,
    scores_for,
)
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.evaluation.tune import TOKENS, Tuning, tune_cache, tune_dynamic
from torch_pru.lm.files import locked
from torch_pru.lm.progress import ProgressBar, ProgressCallback, no_progress_bar
from torch_pru.lm.run import RunFolder

METHODS = ("static", *SETTINGS)
PRECISIONS = ("float32", "bfloat16", "float16")
LOCK_TIMEOUT = 3.0
"""Seconds to wait for another evaluation to write its scores. A training run holds the lock much longer."""


class Evaluation:
    """Scores the best weights of a run.

    The corpus and the gradient statistics are loaded or computed when they are first used.

    Args:
        run: the run folder.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        precision: compute precision: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        progress_bar: shows progress.

    Attributes:
        model: on the device, in ``eval()`` mode.
        scores: the recorded scores of these weights, with the settings that were tuned since.
    """

    def __init__(
        self,
        run: RunFolder,
        device: str = "auto",
        precision: str = "float32",
        progress_bar: ProgressBar = no_progress_bar,
    ) -> None:
        check_choice("precision", precision, PRECISIONS)
        self.run, self.device, self.precision = run, choose_device(device), precision
        self.progress_bar = progress_bar
        self.checkpoints = saved_numbers(run.checkpoints)  # read before the weights, see `record`
        self.model = run.model(device=self.device)
        check_precision(precision, self.device, self.model)
        self.scores = scores_for(self.model, run.path, run.inputs_digest())
        self.tuned: dict[str, Tuning[Any]] = {}
        self.losses: dict[str, Tensor] = {}  # of the last text that each method scored

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus of the run."""
        return self.run.corpus()

    def encode(self, text: Path) -> EncodedText:
        """A file as ids, split into tokens as the run's corpus is."""
        return encode_text(text, self.run.vocabulary, self.run.tokenizer)

    @contextmanager
    def _working(self, description: str) -> Iterator[ProgressCallback]:
        """Shows a progress bar and computes in the precision of this evaluation."""
        with self.progress_bar(description) as progress, autocast(self.precision, self.device):
            yield progress

    @cached_property
    def statistics(self) -> GradientStatistics:
        """The gradient statistics of the training text, for dynamic evaluation."""
        train = self.corpus.train
        batch = min(100, len(train) // 2)  # 100 as published, fewer for a very short text
        with self._working("training text for dynamic evaluation") as progress:
            return gradient_statistics(self.model, train, batch=batch, progress=progress)

    def tune(self, method: str, tokens: int = TOKENS) -> Tuning[Any]:
        """Choose the settings of ``"dynamic"`` or ``"cache"`` on the first ``tokens`` of the validation text.

        `score` uses them from then on; `record` writes them to the run folder.
        """
        check_choice("method", method, SETTINGS)
        check_positive("tokens", tokens)  # before the statistics are computed, which takes long
        model, valid = self.model, self.corpus.valid
        statistics = self.statistics if method == "dynamic" else None
        with self._working(f"tuning {method}") as progress:
            if statistics is not None:
                tuning: Tuning[Any] = tune_dynamic(model, valid, statistics, tokens=tokens, progress=progress)
            else:
                tuning = tune_cache(model, valid, tokens=tokens, progress=progress)
        self.scores.note_tuning(method, tuning)
        self.tuned[method] = tuning
        return tuning

    def score(self, method: str, ids: Tensor, batch: int = 1) -> dict[str, Any]:
        """The score of ``ids`` (N,) as an `entry` for scores.json.

        Args:
            method: ``"static"``, ``"dynamic"`` or ``"cache"``.
            ids: (N,) the text.
            batch: columns that are read in parallel, for ``"static"`` only.
        """
        check_choice("method", method, METHODS)
        statistics = self.statistics if method == "dynamic" else None
        settings: Any = None if method == "static" else self.scores.settings(method)
        with self._working("scoring" if method == "static" else f"scoring ({method})") as progress:
            if statistics is not None:
                found = score_dynamic(self.model, ids, statistics, settings, progress=progress)
            elif method == "cache":
                found = score_cache(self.model, ids, settings, progress=progress)
            else:
                found = score(self.model, ids, batch=batch, progress=progress)
        if found.losses is not None:
            self.losses[method] = found.losses
        # Autocast does not apply to float64.
        is_double = next(self.model.parameters()).dtype == torch.float64
        computed = "float64" if is_double else self.precision
        size = self._size(ids) if batch == 1 else None
        return entry(found, device_name(self.device), computed, settings, size)

    def _size(self, ids: Tensor) -> TextSize:
        """Words and bytes of a text without its first word and token, which are not scored."""
        words = self.run.vocabulary.words
        tokens = (words[number] for piece in ids.split(1 << 20) for number in piece.tolist())
        tokenizer = self.run.tokenizer
        whole = tokenizer.size(tokens)
        return TextSize(whole.words - 1, whole.bytes - tokenizer.size([words[int(ids[0])]]).bytes)

    def record(self, split: str = "", found: Mapping[str, dict[str, Any]] | None = None) -> list[str]:
        """Write the tuned settings, and scores of a split, to the run's scores.json.

        Scores that other processes have written in the meantime are kept. Raises if the run is being trained,
        or has been trained since it was opened.

        Args:
            split: the split that was scored.
            found: by method, what `score` returned.

        Returns:
            The methods whose recorded score was kept, because it was computed in a higher precision.
        """
        if found:
            check_choice("split", split, SPLITS)
        for method in found or ():
            check_choice("method", method, METHODS)
        with locked(self.run.path, LOCK_TIMEOUT):
            if saved_numbers(self.run.checkpoints) != self.checkpoints:
                raise PRUError(
                    f"the run in {self.run.path} has been trained further since it was opened; open it again"
                )
            self.scores = read_again(self.scores, self.run.path)
            for method, tuning in self.tuned.items():
                self.scores.note_tuning(method, tuning)
            kept = [method for method, value in (found or {}).items() if not self._note(method, split, value)]
            save_scores(self.scores, self.run.path)
        return kept

    def _note(self, method: str, split: str, found: dict[str, Any]) -> bool:
        """Record a score, with the log-probabilities of its tokens if it is the one that counts."""
        kept = self.scores.note(method, split, found)
        more: dict[str, Any] = {"kept": kept}
        losses = self.losses.get(method)
        if kept and losses is not None and len(losses) == found["tokens"]:
            more["log_probabilities"] = save_log_probabilities(losses, self.run.path, split, method)
        self.scores.log(method, split, found, **more)
        return kept
