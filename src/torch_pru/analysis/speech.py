"""Parts of speech, from NLTK's tagger."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.data.text import EOS, UNKNOWN
from torch_pru.lm.data.vocabulary import Vocabulary

CATEGORIES = {
    "NOUN": "noun",
    "VERB": "verb",
    "ADJ": "adjective",
    "ADV": "adverb",
    "PRON": "pronoun",
    "DET": "determiner",
    "ADP": "adposition",
    "CONJ": "conjunction",
    "PRT": "particle",
    "NUM": "number",
    ".": "punctuation",
    "X": "other",
}
"""The universal tags and their names."""

BLOCK = 50  # sentences between two progress updates

HOW_TO_GET = (
    "get NLTK's tagger with `python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset`, "
    "or set NLTK_DATA to the folder that has it"
)


def load_tagger() -> Any:
    """Import NLTK and check that its tagger works. Raises an error that says how to get it otherwise.

    Example:
        >>> load_tagger().pos_tag(["text"], tagset="universal")             # doctest: +SKIP
        [('text', 'NOUN')]
    """
    try:
        import nltk
    except ImportError:
        raise PRUError("parts of speech need NLTK; pip install 'torch-pru[analysis]'") from None
    try:
        nltk.pos_tag(["text"], tagset="universal")
    except LookupError:
        raise PRUError(f"the data of NLTK's tagger is missing; {HOW_TO_GET}") from None
    return nltk


def sentences_of(ids: Tensor, vocabulary: Vocabulary) -> list[list[str]]:
    """The sentences of a text (N,), split at ``<eos>``, without empty ones.

    Example:
        >>> import torch
        >>> sentences_of(torch.tensor([1, 0, 0, 1, 1]), Vocabulary(["<eos>", "amen"]))
        [['amen'], ['amen', 'amen']]
    """
    sentences: list[list[str]] = [[]]
    for word in map(vocabulary.word, ids.tolist()):
        if word == EOS:
            sentences.append([])
        else:
            sentences[-1].append(word)
    return [sentence for sentence in sentences if sentence]


def majority_tags(
    sentences: Sequence[list[str]], *, progress: Callable[[int, int], None] | None = None
) -> dict[str, str]:
    """The most frequent universal tag of each word type; in a tie, the one that occurs first.

    ``<unk>`` is left out of the result, because it stands for many words, but the tagger sees it.

    Args:
        sentences: lists of words.
        progress: called with the number of sentences done and in total.

    Example:
        >>> majority_tags([["the", "old", "man", "sang"]])                  # doctest: +SKIP
        {'the': 'DET', 'old': 'ADJ', 'man': 'NOUN', 'sang': 'VERB'}
    """
    nltk = load_tagger()
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for start in range(0, len(sentences), BLOCK):
        block = sentences[start : start + BLOCK]
        for sentence in nltk.pos_tag_sents(block, tagset="universal"):
            for word, tag in sentence:
                seen[word][tag] += 1
        if progress is not None:
            progress(start + len(block), len(sentences))
    return {word: tags.most_common(1)[0][0] for word, tags in seen.items() if word != UNKNOWN}
