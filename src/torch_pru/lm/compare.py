"""Two groups of runs compared by their recorded scores: how large the difference is, and where it comes from.

Nothing is trained or scored here. ``pru evaluate`` has recorded the perplexities and, unless the record is of
an early version, the log-probability of every token.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
from numpy.typing import NDArray

from torch_pru.errors import PRUError, check_choice
from torch_pru.lm.corpora import BUILT_IN, CORPORA
from torch_pru.lm.data.corpus import Corpus, load_corpus, prepared_folder
from torch_pru.lm.data.storage import data_folder
from torch_pru.lm.data.text import EOS
from torch_pru.lm.evaluation.scores import load_log_probabilities, load_scores
from torch_pru.lm.records import settings_without_runtime
from torch_pru.lm.run import RunFolder, pru_command
from torch_pru.lm.statistics import Blocks, Interval, blocks_of, crossed_bootstrap, welch

MARGIN = 0.5
"""Default equivalence margin, in perplexity: the paper's own noise."""

BLOCK = 1000
"""Tokens per block of the bootstrap: long enough that blocks depend little on each other."""

LEAST_BLOCKS = 20
"""Fewest blocks to draw from: a short text has shorter blocks."""

POSITIONS = (1, 2, 4, 8, 16, 32)
"""First positions of the bins of a sentence; the last bin is open."""


@dataclass(frozen=True)
class ScoredRun:
    """A run with its recorded perplexity.

    Attributes:
        name: of its folder.
        seed: of its training.
        perplexity: of the compared split.
        tokens: how many tokens were scored.
        parameters: of the model.
        precision: of the score.
        words: how many words were scored; 0 in records of early versions.
        word_perplexity: perplexity per word.
    """

    name: str
    seed: int
    perplexity: float
    tokens: int
    parameters: int
    precision: str
    words: int = 0
    word_perplexity: float = 0.0


@dataclass(frozen=True)
class Part:
    """A group of tokens, and what it adds to the difference.

    Attributes:
        label: which tokens.
        tokens: how many there are.
        difference: of the mean losses on these tokens, in nats.
        contribution: to the difference of the mean losses on all tokens; the contributions add up to it.
        interval: 95% interval of ``contribution``, by the crossed bootstrap.
    """

    label: str
    tokens: int
    difference: float
    contribution: float
    interval: Interval


@dataclass(frozen=True)
class RunComparison:
    """The difference between two groups of runs, the first less the second.

    Attributes:
        split, method: which scores are compared.
        margin: differences smaller than this count as equivalent.
        runs, against: both groups.
        difference: of the mean perplexities.
        degrees: of freedom of Welch's interval; None with a single run in a group.
        interval: 95% interval over seeds, by Welch; None with a single run in a group.
        bootstrap: 95% interval over seeds and blocks of tokens; None without log-probabilities.
        loss_difference: of the mean losses, in nats; None without log-probabilities.
        by_frequency: parts by how often a word occurs in the training text.
        by_position: parts by the position of a word in its sentence.
        notes: which runs should not be averaged, and what could not be computed, and why.
    """

    split: str
    method: str
    margin: float
    runs: list[ScoredRun]
    against: list[ScoredRun]
    difference: float
    degrees: float | None = None
    interval: Interval | None = None
    bootstrap: Interval | None = None
    loss_difference: float | None = None
    by_frequency: list[Part] = field(default_factory=list)
    by_position: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """What the interval over seeds says."""
        if self.interval is None:
            return "undecided (an interval over seeds needs two or more runs on each side)"
        side = "lower" if self.difference < 0 else "higher"
        if self.interval.within(self.margin):
            more = f", though {side}" if self.interval.excludes_zero else ""
            return f"equivalent within ±{self.margin:g}{more}"
        if self.interval.excludes_zero:
            return f"{side} (the interval excludes 0)"
        return f"undecided (the interval includes 0 and is not within ±{self.margin:g})"


def compare_runs(
    runs: Sequence[str | Path],
    against: Sequence[str | Path],
    *,
    split: str = "test",
    method: str = "static",
    margin: float = MARGIN,
) -> RunComparison:
    """Compare two groups of runs by their recorded scores.

    Args:
        runs, against: run folders, with or without weights; usually the seeds of one recipe on each side.
        split: ``"valid"`` or ``"test"``.
        method: ``"static"``, ``"dynamic"`` or ``"cache"``.
        margin: equivalence margin, in perplexity.
    """
    check_choice("split", split, ("valid", "test"))
    check_choice("method", method, ("static", "dynamic", "cache"))
    if not margin > 0:
        raise PRUError(f"margin={margin!r} must be above 0")
    folders = [[RunFolder.open(path) for path in side] for side in (runs, against)]
    refuse_mixtures(folders)
    sides = [[scored_run(run, split, method) for run in side] for side in folders]
    everything = [one for side in sides for one in side]
    if per_word := len({one.tokens for one in everything}) > 1:
        refuse_other_texts(everything)
        sides = [[replace(one, perplexity=one.word_perplexity) for one in side] for side in sides]
    first, second = ([one.perplexity for one in side] for side in sides)
    difference = statistics.mean(first) - statistics.mean(second)
    notes = [note for side in folders for note in mixture_notes(side)]
    found = RunComparison(split, method, margin, sides[0], sides[1], difference, notes=notes)
    if len(first) > 1 and len(second) > 1:
        over_seeds = welch(first, second)
        found = replace(found, degrees=over_seeds.degrees, interval=over_seeds.interval)
    if per_word:
        per_word_note = "the tokens differ, so the perplexities are per word, without parts"
        return replace(found, notes=[*notes, per_word_note])
    return with_tokens(found, *folders)


def with_tokens(
    found: RunComparison, runs: Sequence[RunFolder], against: Sequence[RunFolder]
) -> RunComparison:
    """Add what the log-probabilities of tokens show, or a note that there are none."""
    notes = list(found.notes)
    first, second = (token_losses(side, found.split, found.method, notes) for side in (runs, against))
    if first is None or second is None:
        return replace(found, notes=notes)
    by_frequency, by_position = token_parts(runs[0], found.split, first, second, notes)
    size = block_size(first.shape[1])
    return replace(
        found,
        bootstrap=crossed_bootstrap(blocks_of(first, size), blocks_of(second, size)),
        loss_difference=float(first.mean() - second.mean()),
        by_frequency=by_frequency,
        by_position=by_position,
        notes=notes,
    )


def block_size(tokens: int) -> int:
    """Tokens per block of the bootstrap, for a text with so many tokens.

    Example:
        >>> block_size(82_430), block_size(934)
        (1000, 46)
    """
    return max(1, min(BLOCK, tokens // LEAST_BLOCKS))


def refuse_mixtures(folders: Sequence[Sequence[RunFolder]]) -> None:
    """Both sides need a run, every run is given once, and all have the same corpus."""
    if not all(folders):
        raise PRUError("both sides of a comparison need at least one run")
    everything = [run for side in folders for run in side]
    paths = [run.path.resolve() for run in everything]
    for path in paths:
        if paths.count(path) > 1:
            raise PRUError(f"the run in {path} is given twice")
    corpora = sorted({run.config.data.corpus for run in everything})
    if len(corpora) > 1:
        raise PRUError(f"the runs were trained on different texts: {', '.join(corpora)}")


def mixture_notes(side: Sequence[RunFolder]) -> list[str]:
    """What speaks against averaging the runs of one side: different settings, or a seed used twice."""
    names = ", ".join(run.path.name for run in side)
    settings = [settings_without_runtime(run.config) | {"stage": run.stage} for run in side]
    notes = []
    if differing := [key for key, value in settings[0].items() if any(one[key] != value for one in settings)]:
        notes.append(f"{names} were trained with different settings ({', '.join(differing)})")
    by_seed: dict[int, list[str]] = {}
    for run in side:
        by_seed.setdefault(run.config.training.seed, []).append(run.path.name)
    return notes + [
        f"{', '.join(same)} have the same seed ({seed})" for seed, same in by_seed.items() if len(same) > 1
    ]


def scored_run(run: RunFolder, split: str, method: str) -> ScoredRun:
    """A run with its recorded score, which it must have."""
    scores = load_scores(run.path)
    entry = None if scores is None else scores.results.get(method, {}).get(split)
    if scores is None or entry is None:
        option = "" if method == "static" else f" --{method}"
        command = f"{pru_command('evaluate', run.path)} --split {split}{option}"
        raise PRUError(f"the run in {run.path} has no {method} score of the {split} text; run {command}")
    return ScoredRun(
        name=run.path.name,
        seed=run.config.training.seed,
        perplexity=float(entry["perplexity"]),
        tokens=int(entry.get("tokens", 0)),
        parameters=scores.parameters.get("total", 0),
        precision=str(entry.get("precision", "float32")),
        words=int(entry.get("words", 0)),
        word_perplexity=float(entry.get("word_perplexity", 0.0)),
    )


def refuse_other_texts(scored: Sequence[ScoredRun]) -> None:
    """All runs must have scored the same number of words, if not of tokens."""
    if len({one.words for one in scored}) > 1 or not scored[0].words:
        counts = ", ".join(f"{one.name} {one.tokens:,}" for one in scored)
        raise PRUError(f"the runs were scored on different texts; tokens: {counts}")


def token_losses(
    side: Sequence[RunFolder], split: str, method: str, notes: list[str]
) -> NDArray[numpy.float64] | None:
    """The losses (runs, tokens) of one side; None, with a note, unless every run has kept them."""
    found = [load_log_probabilities(run.path, split, method) for run in side]
    missing = [run.path.name for run, one in zip(side, found, strict=True) if one is None]
    if missing:
        notes.append(f"no log-probabilities of tokens, so no bootstrap and no parts: {', '.join(missing)}")
        return None
    return -numpy.stack([one.double().numpy() for one in found if one is not None])


def token_parts(
    run: RunFolder,
    split: str,
    first: NDArray[numpy.float64],
    second: NDArray[numpy.float64],
    notes: list[str],
) -> tuple[list[Part], list[Part]]:
    """Parts of the difference by word frequency and by position; empty, with a note, without the corpus."""
    try:
        check_here(run.config.data.corpus)
        corpus = load_corpus(run.config.data.corpus, run.corpus_tokenizer)
        words = corpus.split(split)[1:].long().numpy()
        if words.shape != (first.shape[1],) or run.text_digest not in ("", corpus.digest()):
            raise PRUError(
                f"the text has changed since the runs were scored; restore {run.config.data.corpus}, or "
                f"train and score the runs again"
            )
    except PRUError as error:
        notes.append(f"no parts by word frequency and position: {error}")
        return [], []
    bins = frequency_bins(corpus, words), position_bins(corpus, split)
    by_frequency, by_position = (
        [part(label, chosen, first, second) for label, chosen in one.items() if chosen.any()] for one in bins
    )
    return by_frequency, by_position


def check_here(corpus: str) -> None:
    """Raise if a text of the user's own is not on this machine, and say how to get it."""
    if corpus in (*CORPORA, BUILT_IN) or prepared_folder(corpus) is not None or Path(corpus).is_dir():
        return
    folder = Path(corpus) if os.sep in corpus else data_folder() / corpus
    raise PRUError(
        f"the runs' corpus is not on this machine; copy its folder from the machine where they were trained "
        f"to {folder}, and compare again"
    )


def frequency_bins(corpus: Corpus, words: NDArray[numpy.int64]) -> dict[str, NDArray[numpy.bool_]]:
    """Tokens by how often their word occurs in the training text: below 10, 10 to 99, ..."""
    size = len(corpus.vocabulary)
    counts = numpy.bincount(corpus.train.long().numpy(), minlength=size)[words]
    decades = numpy.floor(numpy.log10(numpy.maximum(counts, 1))).astype(int)
    labels = {}
    for decade in range(decades.max() + 1):
        label = f"{10**decade:,} to {10 ** (decade + 1) - 1:,}" if decade else "below 10"
        labels[label] = decades == decade
    return labels


def position_bins(corpus: Corpus, split: str) -> dict[str, NDArray[numpy.bool_]]:
    """Tokens by their position in the sentence, counted from 1 after an ``<eos>``."""
    ids = corpus.split(split).long().numpy()
    end = int(corpus.vocabulary.encode([EOS])[0]) if EOS in corpus.vocabulary else -1
    index = numpy.arange(len(ids))
    ends = numpy.maximum.accumulate(numpy.where(ids == end, index, -1))  # the last <eos> up to each token
    positions = index[1:] - ends[:-1]  # the first token is not predicted
    bins = {}
    for first, following in zip(POSITIONS, (*POSITIONS[1:], None), strict=True):
        if following is None:
            bins[f"{first} and more"] = positions >= first
        else:
            label = str(first) if following == first + 1 else f"{first} to {following - 1}"
            bins[label] = (positions >= first) & (positions < following)
    return bins


def part(
    label: str,
    chosen: NDArray[numpy.bool_],
    first: NDArray[numpy.float64],
    second: NDArray[numpy.float64],
) -> Part:
    """What the chosen tokens add to the difference of the mean losses."""
    difference = float(first[:, chosen].mean() - second[:, chosen].mean())
    sides = [contributions(losses, chosen) for losses in (first, second)]
    interval = crossed_bootstrap(*sides, perplexity=False)
    return Part(label, int(chosen.sum()), difference, difference * float(chosen.mean()), interval)


def contributions(losses: NDArray[numpy.float64], chosen: NDArray[numpy.bool_]) -> Blocks:
    """Blocks in which only the chosen tokens have a loss, over all tokens."""
    return blocks_of(numpy.where(chosen, losses, 0.0), block_size(losses.shape[1]))
