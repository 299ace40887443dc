"""Runs that are analyzed together, and what they share."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from torch_pru.analysis.saliency import Sentence, encode_sentence, parse_sentence
from torch_pru.analysis.speech import sentences_of
from torch_pru.errors import PRUError
from torch_pru.lm.data.corpus import Corpus
from torch_pru.lm.data.text import UNKNOWN
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.run import RunFolder


def open_runs(folders: Iterable[str | Path]) -> dict[str, RunFolder]:
    """Open run folders. The keys are their names in figures: the shortest distinct ends of their paths.

    Example:
        >>> list(open_runs(["runs/ptb-pru-g4-1", "runs/ptb-lstm-1000-1"]))  # doctest: +SKIP
        ['ptb-pru-g4-1', 'ptb-lstm-1000-1']
    """
    runs = [RunFolder.open(folder) for folder in folders]
    if not runs:
        raise PRUError("at least one run folder is required")
    names = distinct_names([run.path.resolve() for run in runs])
    return dict(zip(names, runs, strict=True))


def distinct_names(paths: list[Path]) -> list[str]:
    """The shortest ends of paths that are distinct. Raises if a path is given twice.

    Example:
        >>> distinct_names([Path("/a/run"), Path("/b/run")])
        ['a/run', 'b/run']
    """
    for path in paths:
        if paths.count(path) > 1:
            raise PRUError(f"the run in {path} is given twice")
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


@dataclass(frozen=True)
class Comparison:
    """Runs that are analyzed together. Models, corpus and vocabulary are loaded when first used.

    Attributes:
        runs: by name.
        device: device of the models.

    Example:
        >>> runs = open_runs(["runs/ptb-pru-g4-1", "runs/ptb-lstm-1000-1"]) # doctest: +SKIP
        >>> compared = Comparison(runs)                                     # doctest: +SKIP
        >>> list(compared.models), len(compared.vocabulary)                 # doctest: +SKIP
        (['ptb-pru-g4-1', 'ptb-lstm-1000-1'], 10000)
    """

    runs: Mapping[str, RunFolder]
    device: torch.device | str = "cpu"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of all runs. Raises if they have different ones."""
        (first, run), *others = self.runs.items()
        words = run.vocabulary
        for name, other in others:
            if other.vocabulary != words:
                raise PRUError(
                    f"{first} and {name} have different vocabularies and cannot share a figure; analyze them "
                    f"separately (or use --only curves --only sweep, which do not need the vocabulary)"
                )
        return words

    @cached_property
    def models(self) -> dict[str, LanguageModel]:
        """The model of each run, with its best weights."""
        found = {}
        for name, run in self.runs.items():
            try:
                found[name] = run.model(device=self.device)
            except PRUError as error:
                raise PRUError(f"{error} (without weights: --only curves --only sweep)") from error
        return found

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus of the first run; the other runs must have the same vocabulary."""
        _ = self.vocabulary
        return next(iter(self.runs.values())).corpus()

    @cached_property
    def valid_sentences(self) -> list[list[str]]:
        """The sentences of the validation text."""
        return sentences_of(self.corpus.valid, self.vocabulary)

    def sentences(self, texts: Iterable[str]) -> list[Sentence]:
        """Parse sentences with the tokenizer of the corpus, and check them.

        Warns about words that the models do not know.
        """
        split = next(iter(self.runs.values())).tokenizer
        parsed = [parse_sentence(text, split) for text in texts]
        for sentence in parsed:
            encode_sentence(sentence, self.vocabulary)
        words = dict.fromkeys(word for sentence in parsed for word in sentence.words)
        if unread := ", ".join(word for word in words if word not in self.vocabulary):
            warnings.warn(f"not in the vocabulary, read as {UNKNOWN}: {unread}", stacklevel=2)
        return parsed
