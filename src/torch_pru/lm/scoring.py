"""The log-probability of every word of a text, in one go or as a stream.

`Scorer` reads words after a `Context`, which is a value: keep it, copy it, continue from it as often as you
like. Sums over a text are those of `pru evaluate`: the same code reads the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import write_aside
from torch_pru.lm.data.text import EOS, UNKNOWN
from torch_pru.lm.data.tokenizer import Tokenizer
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.evaluation.cache import QUERIES, CacheSettings, Memory, look_up, mix
from torch_pru.lm.evaluation.dynamic import (
    Adaptation,
    DynamicSettings,
    GradientStatistics,
    gradient_mode,
    read_segment,
)
from torch_pru.lm.evaluation.evaluation import Evaluation
from torch_pru.lm.evaluation.static import WINDOW, WindowScores, eval_mode, losses
from torch_pru.lm.model import LanguageModel, State
from torch_pru.lm.progress import ProgressBar, no_progress_bar
from torch_pru.lm.run import RunFolder
from torch_pru.lm.state_files import load_tensors, save_tensors


class WordScore(NamedTuple):
    """One word of a text; in runs on subwords or characters, one token.

    Attributes:
        word: as it stands in the text.
        log_probability: natural logarithm; NaN for a first word that nothing comes before.
        unknown: whether the word was read as ``<unk>``: it is outside the vocabulary, or ``<unk>`` itself.

    Example:
        >>> WordScore("god", -0.6931471805599453, unknown=False).surprisal
        1.0
    """

    word: str
    log_probability: float
    unknown: bool

    @property
    def surprisal(self) -> float:
        """The negative log-probability in bits."""
        return -self.log_probability / math.log(2)


def by_word(scores: Iterable[WordScore], tokenizer: Tokenizer) -> Iterator[WordScore]:
    """The scores of whole words, from those of subwords or characters.

    A word begins at white space, which counts as part of it, and ``<eos>`` is a word. Its log-probability is
    the sum over its tokens. Tokens that are words already are left as they are.

    Example:
        >>> scores = [WordScore("a", -1.0, False), WordScore("▁", -0.5, False), WordScore("b", -2.0, False)]
        >>> [(each.word, each.log_probability) for each in by_word(scores, Tokenizer("characters"))]
        [('a', -1.0), ('b', -2.5)]
    """
    if tokenizer.whole_words:
        yield from scores
        return
    word, total, unknown = b"", 0.0, False
    for score in scores:
        piece = tokenizer.spell(score.word)
        if word and (score.word == EOS or (piece[:1].isspace() and word.strip())):
            yield WordScore(word.decode("utf-8", "replace").strip(), total, unknown)
            word, total, unknown = b"", 0.0, False
        if score.word == EOS:
            yield score
        else:
            word, total, unknown = word + piece, total + score.log_probability, unknown or score.unknown
    if word:
        yield WordScore(word.decode("utf-8", "replace").strip(), total, unknown)


@dataclass(frozen=True)
class Context:
    """What a scorer has read so far. It never changes, so a reference to it is as good as a copy.

    Attributes:
        state: h and c of the layers before ``tokens``.
        tokens: the words that are not in ``state`` yet: the last one, and with ``adapt`` all words since
            the model last learned. Empty only before the first word of a text without ``<eos>`` before it.
        memory: what the cache remembers.
    """

    state: State
    tokens: tuple[int, ...]
    memory: Memory | None = None


@dataclass(frozen=True)
class ScoredWords:
    """Some words of a text, in order, with their scores.

    Attributes:
        words: n strings.
        log_probabilities: (n,), natural logarithms; NaN for a first word that nothing comes before.
        unknown: n flags.
        context: what has been read after the last of them.
        unscored: 1 where the first of them has no score, else 0.

    Iterating gives a `WordScore` for each word.
    """

    words: list[str]
    log_probabilities: Tensor
    unknown: list[bool]
    context: Context
    unscored: int = 0

    @property
    def total(self) -> float:
        """The sum of the log-probabilities."""
        return float(self.log_probabilities[self.unscored :].sum(dtype=torch.float64))

    @property
    def count(self) -> int:
        """How many of the words have a score."""
        return len(self.words) - self.unscored

    def __iter__(self) -> Iterator[WordScore]:
        return map(WordScore, self.words, self.log_probabilities.tolist(), self.unknown)

    def __len__(self) -> int:
        return len(self.words)


class Scorer:
    """Scores words with a language model.

    Args:
        model: a trained model. With ``adapt`` its own weights learn.
        vocabulary: of the run that the model comes from.
        tokenizer: splits text into words, for `read_file`; at spaces by default.
        cache: settings of a continuous cache, or None.
        adapt: settings of dynamic evaluation, or None. It needs ``statistics``.
        statistics: from `torch_pru.lm.evaluation.gradient_statistics`.

    Example::

        scorer = Scorer.open("runs/quickstart-1")
        found = scorer.score(["in", "the", "beginning"])
        print([(each.word, each.surprisal) for each in found])
        more = scorer.score(["god", "created"], found.context)
    """

    def __init__(
        self,
        model: LanguageModel,
        vocabulary: Vocabulary,
        *,
        tokenizer: Tokenizer | None = None,
        cache: CacheSettings | None = None,
        adapt: DynamicSettings | None = None,
        statistics: GradientStatistics | None = None,
    ) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.tokenizer = tokenizer or Tokenizer("spaces")
        self.cache, self.adapt = cache, adapt
        self._adaptation: Adaptation | None = None
        if adapt is not None:
            if statistics is None:
                raise PRUError("adapt needs statistics; gather them with gradient_statistics(model, train)")
            self._adaptation = Adaptation(model, statistics)
            self._adaptation.prepare(adapt)

    @classmethod
    def open(
        cls,
        run: str | Path,
        *,
        device: str = "auto",
        adapt: bool = False,
        cache: bool = False,
        progress_bar: ProgressBar = no_progress_bar,
    ) -> Scorer:
        """A scorer with the best weights of a run.

        Args:
            run: the run folder.
            device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
            adapt: learn while reading (dynamic evaluation). This first reads the run's training text once.
            cache: remember recent words (continuous cache).
            progress_bar: shows the progress of reading the training text.

        The settings of ``adapt`` and ``cache`` are those that ``pru evaluate --tune`` chose for the run, or
        the published ones.
        """
        work = Evaluation(RunFolder.open(run), device, progress_bar=progress_bar)
        return cls(
            work.model,
            work.run.vocabulary,
            tokenizer=work.run.tokenizer,
            cache=work.scores.settings("cache") if cache else None,
            adapt=work.scores.settings("dynamic") if adapt else None,
            statistics=work.statistics if adapt else None,
        )

    def begin(self, *, bos: bool = True) -> Context:
        """The context of a text's first word.

        Args:
            bos: whether the text begins after an ``<eos>``, as `generate` begins. Without it nothing comes
                before the first word, which then has no score, as in ``pru evaluate``.
        """
        tokens = tuple(self.vocabulary.encode([EOS]).tolist()) if bos else ()
        return Context(self.model.initial_state(1), tokens)

    def score(self, words: Sequence[str], context: Context | None = None) -> ScoredWords:
        """Score words, all at once.

        Args:
            words: a list of words; ``"<eos>"`` ends a sentence.
            context: what comes before them, ``begin()`` by default.
        """
        if isinstance(words, str):
            raise PRUError(f"words={words!r} must be a list of words, as in words.split()")
        parts = list(self.read(words, context))
        if not parts:
            return ScoredWords([], torch.empty(0), [], context or self.begin())
        return ScoredWords(
            words=list(chain.from_iterable(part.words for part in parts)),
            log_probabilities=torch.cat([part.log_probabilities for part in parts]),
            unknown=list(chain.from_iterable(part.unknown for part in parts)),
            context=parts[-1].context,
            unscored=parts[0].unscored,
        )

    def read(self, words: Iterable[str], context: Context | None = None) -> Iterator[ScoredWords]:
        """Score a stream of words of any length, about a thousand at a time, in bounded memory."""
        words = iter(words)
        context = self.begin() if context is None else context
        while taken := list(islice(words, self._window() + 1 - len(context.tokens))):
            unscored = 0 if context.tokens else 1
            nll, context = self._read_window(self.vocabulary.encode(taken), context)
            unknown = [word == UNKNOWN or word not in self.vocabulary for word in taken]
            yield ScoredWords(taken, -nll.cpu(), unknown, context, unscored)

    def read_file(self, path: str | Path | int, *, bos: bool = True) -> Iterator[ScoredWords]:
        """Score a text file, ``<eos>`` after every line; a path of 0 is standard input.

        Args:
            path: the file, UTF-8. It is cut into words as the run's corpus is.
            bos: as for `begin`.
        """
        source = path if isinstance(path, int) else Path(path)
        words = chain.from_iterable(map(self.tokenizer, self.tokenizer.blocks(source)))
        yield from self.read(words, self.begin(bos=bos))

    def log_probabilities(self, context: Context | None = None) -> Tensor:
        """log p of every word of the vocabulary after a context, (V,), by the model alone, without a cache.

        Where nothing has been read, not even ``<eos>``, they are those of an output of zeros: with the
        decoder's bias alone, much like the frequencies of the words.
        """
        context = self.begin() if context is None else context
        weight = self.model.embedding.weight
        with torch.no_grad(), eval_mode(self.model):
            hidden = weight.new_zeros(self.model.config.hidden[-1])
            if context.tokens:
                tokens = torch.tensor(context.tokens, device=weight.device)
                hidden = self.model.hidden(tokens[:, None], context.state).raw[-1, 0]
            return self.model.log_probabilities(hidden)

    def undo(self) -> None:
        """Forget what was learned with ``adapt``: the weights are exactly the trained ones again."""
        self._learning().undo()

    def save_learned(self, path: str | Path) -> None:
        """Write the weights as they are now, after what was learned with ``adapt``, to a safetensors file."""
        self._learning()
        with write_aside(Path(path)) as file:
            file.write(save_tensors(self.model.state_dict()))

    def load_learned(self, path: str | Path) -> None:
        """Continue with what `save_learned` wrote. `undo` still restores the trained weights."""
        self._learning()
        try:
            weights = load_tensors(Path(path).read_bytes())
        except (OSError, ValueError, SafetensorError) as error:
            raise PRUError(f"cannot read learned weights from {path}: {error}") from error
        if not all(bool(value.isfinite().all()) for value in weights.values()):
            raise PRUError(f"{path} has weights that are not finite")
        try:
            self.model.load_state_dict(weights)
        except RuntimeError as error:
            raise PRUError(f"{path} holds the weights of another model") from error

    def _learning(self) -> Adaptation:
        if self._adaptation is None:
            raise PRUError("this scorer does not learn: make it with adapt=True")
        return self._adaptation

    def _window(self) -> int:
        """Words that are scored at once: as many as `pru evaluate` takes, so that the sums are the same."""
        if self.adapt is not None:
            return self.adapt.segment
        return WINDOW if self.cache is None else QUERIES

    def _read_window(self, ids: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Losses (n,) of ``ids`` (n,), which with the context's tokens are one window at most."""
        tokens = (*context.tokens, *ids.tolist())
        if len(tokens) == 1:  # nothing came before it
            return torch.full((1,), math.nan), replace(context, tokens=tokens)
        text = torch.tensor(tokens, device=self.model.embedding.weight.device)
        whole = len(tokens) == self._window() + 1
        scored, state = self._run(text, context.state, learn=whole)
        # Those before were scored earlier, in a segment that was not yet complete.
        new = WindowScores(*(values[-len(ids) :] for values in scored))
        nll, memory = new.nll, context.memory
        if self.cache is not None:
            pointed, memory = look_up(new, memory, self.cache.theta, self.cache.window)
            nll = mix(pointed, self.cache.mixture)
        if len(nll) < len(ids):  # the very first word
            nll = torch.cat([nll.new_full((1,), math.nan), nll])
        if whole or self.adapt is None:
            return nll, Context(state, tokens[-1:], memory)
        return nll, Context(context.state, tokens, memory)

    def _run(self, text: Tensor, state: State, *, learn: bool) -> tuple[WindowScores, State]:
        """Read ``text`` (n + 1,): what the model made of its n last words, and the state before the last."""
        tokens, targets = text[:-1, None], text[1:]
        if self._adaptation is not None:
            with gradient_mode(self.model):  # also without learning: the rounding is then the same
                nll, gradients, hidden = read_segment(self.model, tokens, targets, state)
            if learn:
                self._adaptation.learn(gradients, len(targets))
            detached = [(h.detach(), c.detach()) for h, c in hidden.state]
            return WindowScores(hidden.raw.detach().flatten(0, 1), targets, nll.detach()), detached
        with torch.no_grad(), eval_mode(self.model):
            hidden = self.model.hidden(tokens, state)
            flat = hidden.raw.flatten(0, 1)
            return WindowScores(flat, targets, losses(self.model, flat, targets)), hidden.state
