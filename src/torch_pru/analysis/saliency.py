"""Which context words a prediction depends on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torch_pru.analysis.gradients import read_with_gradients
from torch_pru.errors import PRUError
from torch_pru.lm.data.text import EOS, UNKNOWN
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel

GUESSES = 5

_MARK = re.compile(r"\[([^\[\]]+)\]([^\[\]]*)")  # the word in brackets, and punctuation right after it


class Sentence(NamedTuple):
    """Words, and the index of the word to predict from those before it.

    Example:
        >>> parse_sentence("southeast of [san] francisco")
        Sentence(words=('southeast', 'of', 'san', 'francisco'), predicted=2)
    """

    words: tuple[str, ...]
    predicted: int


PAPER = (
    "the tremor was centered near <unk> southeast of [san] francisco",
    "the massages last N minutes and typically cost about [$] N",
    "he visits the same department every two or three [weeks]",
    "but pipeline companies estimate they still face $ N billion in liabilities from <unk> disputes "
    "including $ N [billion]",
    "chicken chains also are feeling more pressure from mcdonald 's corp. which introduced its <unk> <unk> "
    "this [year]",
)
"""The paper's five sentences, as in PTB's validation text, with the predicted word in brackets."""


def parse_sentence(text: str, split: Callable[[str], list[str]] = str.split) -> Sentence:
    """Parse a sentence. The word in brackets is predicted; without brackets, the last word.

    Args:
        text: words separated by spaces; a bracket between spaces is a word.
        split: the tokenizer of the model's corpus.

    Example:
        >>> parse_sentence("every two or three weeks").predicted
        4
    """
    words: list[str] = []
    marked: list[int] = []
    for piece in text.split():
        if mark := _MARK.fullmatch(piece):
            marked.append(len(words))
            words += [*split(mark[1]), *split(mark[2])]
        elif piece not in ("[", "]") and ("[" in piece or "]" in piece):
            raise PRUError(
                f"the sentence {text!r} has {piece!r}; put one whole word in brackets, as in "
                f"'two or three [weeks]', and spaces around a bracket that is itself a word"
            )
        else:
            words += split(piece)
    if not words:
        raise PRUError(f"the sentence {text!r} is empty; give the words, as in 'two or three [weeks]'")
    if len(marked) > 1:
        raise PRUError(f"the sentence {text!r} has {len(marked)} words in brackets; mark the one to predict")
    return Sentence(tuple(words), marked[0] if marked else len(words) - 1)


@dataclass(frozen=True)
class Guess:
    """A next word and its probability."""

    word: str
    probability: float


@dataclass(frozen=True)
class Saliency:
    """Relevance of each word to one prediction.

    Attributes:
        words: as the model reads them: ``<eos>`` first, and ``<unk>`` for unknown words.
        predicted: the position in ``words`` of the word that is predicted.
        explained: the word whose probability was differentiated: the reference, or the most likely word.
        probability: of the reference, according to the model.
        relevance: one value per word, 0 from the predicted word on.
        guesses: the most likely next words, most likely first.

    Example:
        >>> guesses = [Guess("amen", 0.9)]
        >>> Saliency(["<eos>", "amen"], 1, "amen", 0.9, [2.5, 0.0], guesses).reference
        'amen'
    """

    words: list[str]
    predicted: int
    explained: str
    probability: float
    relevance: list[float]
    guesses: list[Guess]

    @property
    def reference(self) -> str:
        """The word in the sentence."""
        return self.words[self.predicted]


def encode_sentence(sentence: Sentence, vocabulary: Vocabulary) -> Tensor:
    """The ids (T,) of ``<eos>`` and the words. Raises if the model knows none of the words.

    Example:
        >>> encode_sentence(Sentence(("god", "golf"), 1), Vocabulary(["<eos>", "<unk>", "god"]))
        tensor([0, 2, 1])
    """
    if not sentence.words:
        raise PRUError("the sentence is empty; it needs at least the word to predict")
    if not any(word in vocabulary for word in sentence.words if word != UNKNOWN):
        raise PRUError(
            f"the sentence {' '.join(sentence.words)!r} has no word that the model knows; "
            f"use words of its vocabulary ({len(vocabulary):,} words)"
        )
    return vocabulary.encode([EOS, *sentence.words])


@torch.enable_grad()  # also if the caller has disabled gradients
def saliency(
    model: LanguageModel,
    vocabulary: Vocabulary,
    sentence: Sentence,
    *,
    top1: bool = False,
    guesses: int = GUESSES,
) -> Saliency:
    """Squared norm of the gradient of the predicted word's log-probability, at each word's embedding.

    The model reads the sentence after an ``<eos>``, from the zero state.

    Args:
        model: the language model.
        vocabulary: of the model.
        sentence: as from ``parse_sentence``.
        top1: differentiate the probability of the model's most likely word instead of the reference.
        guesses: how many of the most likely words to report.

    Example:
        >>> sentence = parse_sentence("and god saw the [light]")
        >>> found = saliency(run.model(), run.vocabulary, sentence)         # doctest: +SKIP
        >>> found.reference                                                 # doctest: +SKIP
        'light'
    """
    ids = encode_sentence(sentence, vocabulary).to(model.embedding.weight.device)
    at = sentence.predicted + 1  # the model reads <eos> first
    read = read_with_gradients(model, ids[:, None])
    log_p = model.log_probabilities(read.hidden[at - 1, 0])  # (V,)
    most_likely = log_p.detach().topk(min(guesses, len(vocabulary)))
    explained = log_p.argmax() if top1 else ids[at]
    (gradient,) = torch.autograd.grad(log_p[explained], read.inputs)  # (T, 1, E)
    pairs = zip(most_likely.indices.tolist(), most_likely.values.exp().tolist(), strict=True)
    return Saliency(
        words=[vocabulary.word(number) for number in ids.tolist()],
        predicted=at,
        explained=vocabulary.word(int(explained)),
        probability=log_p[ids[at]].exp().item(),
        relevance=gradient[:, 0].square().sum(-1).tolist(),
        guesses=[Guess(vocabulary.word(number), probability) for number, probability in pairs],
    )


def default_sentences(vocabulary: Vocabulary, text: list[list[str]], count: int = 5) -> list[Sentence]:
    """The paper's sentences if the model knows all their words, else the first suitable ones of a text.

    Suitable sentences have 8 to 25 words. Their last word that consists of letters is predicted; if there is
    none, the last word other than ``<unk>``.

    Args:
        vocabulary: of the model.
        text: sentences of the validation text.
        count: number of sentences to take.

    Example:
        >>> verse = "and the lord god said unto the serpent .".split()
        >>> default_sentences(Vocabulary(dict.fromkeys(verse)), [verse])[0].predicted
        7
    """
    paper = [parse_sentence(one) for one in PAPER]
    if all(word in vocabulary for sentence in paper for word in sentence.words):
        return paper
    chosen = []
    for words in text:
        known = [at for at, word in enumerate(words) if word != UNKNOWN]
        last = max([at for at in known if words[at].isalpha()] or known, default=0)
        if last and 8 <= len(words) <= 25:
            chosen.append(Sentence(tuple(words), last))
        if len(chosen) == count:
            break
    if not chosen:
        raise PRUError("the validation text has no sentence of 8 to 25 words to show; give one: --sentence")
    return chosen
