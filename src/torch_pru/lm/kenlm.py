"""The interface of the ``kenlm`` package on top of `Scorer`, for programs written for kenlm.

Logarithms are to base 10, as there. ``import torch_pru.lm.kenlm as kenlm`` and a run folder in the place of
an ARPA file are the only changes such a program needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch_pru.errors import PRUError
from torch_pru.lm.data.text import EOS
from torch_pru.lm.scoring import Context, Scorer

LOG_10 = math.log(10)


class FullScoreReturn(NamedTuple):
    """What `Model.BaseFullScore` gives.

    Attributes:
        log_prob: to base 10.
        ngram_length: how many words the score is of, this one included: the model reads the whole history.
        oov: whether the word is outside the vocabulary, or ``<unk>`` itself.
    """

    log_prob: float
    ngram_length: int
    oov: bool


class State:
    """What has been read. ``copy.copy`` copies it; two states are equal where one is a copy of the other."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.length = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.context is other.context

    def __hash__(self) -> int:
        return id(self.context)

    def __copy__(self) -> State:
        copied = State()
        copied.context, copied.length = self.context, self.length
        return copied

    def __deepcopy__(self, _: object) -> State:
        return self.__copy__()  # a context never changes


class Model:
    """A run with kenlm's methods.

    Args:
        run: a run folder, or a `Scorer`. One that learns while it reads is refused: a program that compares
            several continuations would teach it all of them.
    """

    order = 2**31 - 1
    """The model has no longest n-gram."""

    def __init__(self, run: str | Path | Scorer) -> None:
        self.scorer = run if isinstance(run, Scorer) else Scorer.open(run)
        if self.scorer.adapt is not None:
            raise PRUError("a scorer with adapt=True cannot be used through kenlm's interface")

    def score(self, sentence: str, bos: bool = True, eos: bool = True) -> float:
        """The log10 probability of a sentence.

        Args:
            sentence: words separated by white space.
            bos: whether it begins a sentence. If not, the first word has its probability without a context.
            eos: whether the sentence ends after the last word.
        """
        return math.fsum(log_prob for log_prob, _, _ in self.full_scores(sentence, bos, eos))

    def full_scores(
        self, sentence: str, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """log10 probability, n-gram length and whether it is unknown, for each word and the end."""
        state = State()
        (self.BeginSentenceWrite if bos else self.NullContextWrite)(state)
        for word in [*sentence.split(), *([EOS] if eos else [])]:
            after = State()
            yield tuple(self.BaseFullScore(state, word, after))  # type: ignore[misc]
            state = after

    def perplexity(self, sentence: str) -> float:
        """The perplexity of a sentence with its end."""
        return 10.0 ** (-self.score(sentence) / (len(sentence.split()) + 1))

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802 (kenlm's names)
        """Let ``state`` be the beginning of a sentence."""
        state.context, state.length = self.scorer.begin(), 1

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Let ``state`` be one in which nothing has been read."""
        state.context, state.length = self.scorer.begin(bos=False), 0

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:  # noqa: N802
        """The log10 probability of ``word`` after ``in_state``; ``out_state`` becomes what follows both."""
        return self.BaseFullScore(in_state, word, out_state).log_prob

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:  # noqa: N802
        """As `BaseScore`, with the n-gram length and whether the word is unknown."""
        if not self.scorer.tokenizer.whole_words:
            raise PRUError(
                "kenlm's interface scores words, and this run has subwords or characters: use Scorer"
            )
        if in_state.context is None:
            raise PRUError("the state is empty; fill it with BeginSentenceWrite or NullContextWrite")
        word = {"</s>": EOS, "<s>": EOS}.get(word, word)
        found = self.scorer.score([word], in_state.context)
        ((_, log_probability, unknown),) = found
        if found.unscored:
            number = int(self.scorer.vocabulary.encode([word]))
            log_probability = float(self.scorer.log_probabilities(in_state.context)[number])
        out_state.context, out_state.length = found.context, in_state.length + 1
        return FullScoreReturn(log_probability / LOG_10, out_state.length, unknown)

    def __contains__(self, word: str) -> bool:
        return word in self.scorer.vocabulary


LanguageModel = Model
