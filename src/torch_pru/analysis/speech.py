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
"""The universal tags, and what they are called."""

BLOCK = 50  # sentences between two reports of progress

HOW_TO_GET = (
    "get NLTK's tagger with `python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset`, "
    "or name the folder that has it in NLTK_DATA"
)


def load_tagger() -> Any:
    """NLTK, once its tagger is known to work; otherwise an error that says how to get it.

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
        raise PRUError(f"parts of speech need tagger data that is not here; {HOW_TO_GET}") from None
    return nltk


def sentences_of(ids: Tensor, vocabulary: Vocabulary) -> list[list[str]]:
    """The sentences of a text (N,): the words between one ``<eos>`` and the next, empty ones left out.

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
    """The universal tag that each word type has most often; of equals, the one it has first.

    ``<unk>`` stands for many words and is not one: it is left out, though the tagger sees it.

    Args:
        sentences: lists of words.
        progress: called with the sentences done and those there are.

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
