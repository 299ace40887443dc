"""The fast tokenizer numbers text as the run's own tokenizer does."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra torch-pru[hf]")

from transformers import AutoTokenizer

from torch_pru import PRUError
from torch_pru.hf.tokenization import fast_tokenizer
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.data.tokenizer import TOKENIZERS, Tokenizer

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "My brother\u2019s keeper? \u201cNo,\u201d said he; it's 3,141.59 \u2014 half-way there, isn't it?",
    "two\nlines\r\nand\n\na blank one\n",
    "tabs\tand \u3000wide\u00a0spaces \x1c odd\x85ones",
    "Crème brûlée, cafe\u0301, Straße, ΟΔΟΣ, привет мир",
    "العَرَبِيَّة हिन्दी में 道可道，非常道。",
    "a <unk> word",
    "",
    "   ",
]


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """Every other token of the texts: the rest is unknown."""
    tokens = sorted({token for text in TEXTS for token in tokenizer(text)} - {"<eos>", "<unk>"})
    return Vocabulary(["<eos>", "<unk>", *tokens[::2]])


@pytest.mark.parametrize(
    ("name", "text"),
    # To Transformers <unk> is always one token, to the tokenizer of characters it is five.
    [(name, text) for name in TOKENIZERS for text in TEXTS if name != "characters" or "<unk>" not in text],
)
def test_ids_are_those_of_the_run(name: str, text: str):
    tokenizer = Tokenizer(name)
    vocabulary = vocabulary_of(tokenizer)
    found = fast_tokenizer(tokenizer, vocabulary)(text).input_ids
    assert found == [0, *vocabulary.encode(tokenizer(text)).tolist()]


def test_batches_are_padded_on_the_left_and_masked():
    tokenizer = Tokenizer("spaces")
    fast = fast_tokenizer(tokenizer, Vocabulary(["<eos>", "<unk>", "god", "said"]))
    batch = fast(["god", "god said god"], padding=True)
    assert batch["input_ids"] == [[0, 0, 0, 2], [0, 2, 3, 2]]
    assert batch["attention_mask"] == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert fast.decode([0, 2, 3], skip_special_tokens=True) == "god said"


def test_characters_are_decoded_to_text(tmp_path: Path):
    tokenizer = Tokenizer("characters")
    fast = fast_tokenizer(tokenizer, Vocabulary(["<eos>", *tokenizer("abc d")]))
    fast.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.decode(loaded("ab dc").input_ids, skip_special_tokens=True) == "ab dc"
    assert loaded("ab dc").input_ids == fast("ab dc").input_ids


def test_a_vocabulary_without_eos_is_refused():
    with pytest.raises(PRUError, match="no '<eos>'"):
        fast_tokenizer(Tokenizer("spaces"), Vocabulary(["god"]))
