from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from torch_pru.errors import PRUError
from torch_pru.lm.data import kneser_ney_bigram_perplexity
from torch_pru.lm.data.kneser_ney import KneserNeyBigram


def slow_probability(train: list[int], size: int, previous: int, word: int) -> float:
    """The formulas, word for word, with dictionaries."""
    bigrams = Counter(itertools.pairwise(train))

    def discount(counts: list[int]) -> float:
        n1, n2 = counts.count(1), counts.count(2)
        return n1 / (n1 + 2 * n2) if n1 else 0.5

    before = {w: sum(1 for pair in bigrams if pair[1] == w) for w in range(size)}
    d = discount([n for n in before.values() if n])
    used = sum(1 for n in before.values() if n)
    lower = max(before[word] - d, 0) / len(bigrams) + d * used / len(bigrams) / size
    context = sum(count for pair, count in bigrams.items() if pair[0] == previous)
    if context == 0:
        return lower
    big_d = discount(list(bigrams.values()))
    followers = sum(1 for pair in bigrams if pair[0] == previous)
    return max(bigrams[previous, word] - big_d, 0) / context + big_d * followers / context * lower


def random_text(seed: int, length: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(length, generator=generator) ** 2 * size).long()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("length", "size"), [(3, 5), (40, 6), (150, 12)])
def test_equals_the_formulas(seed: int, length: int, size: int) -> None:
    train, test = random_text(seed, length, size - 1), random_text(seed + 100, 30, size)
    pairs = list(itertools.pairwise(test.tolist()))
    log = sum(math.log(slow_probability(train.tolist(), size, v, w)) for v, w in pairs)
    expected = math.exp(-log / len(pairs))
    assert kneser_ney_bigram_perplexity(train, test, size) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("train", [[0, 0], [0, 1, 2], [0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 2, 3, 2, 3, 3]])
def test_each_context_sums_to_one_and_nothing_is_zero(train: list[int]) -> None:
    size = 6  # words 4 and 5 never occur
    model = KneserNeyBigram(torch.tensor(train), size)
    previous, word = np.divmod(np.arange(size * size), size)
    table = model.probability(previous, word).reshape(size, size)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-12)
    assert (table > 0).all()


def test_int32_text_does_not_overflow() -> None:
    size = 100_000  # the square of it is beyond int32
    text = random_text(0, 5000, size)
    expected = kneser_ney_bigram_perplexity(text, text, size)
    assert kneser_ney_bigram_perplexity(text.int(), text.int(), size) == expected


def test_bad_ids_are_refused() -> None:
    good = torch.tensor([0, 1, 2])
    with pytest.raises(PRUError, match=r"test_ids has ids from 0 to 9; .*vocabulary_size=3"):
        kneser_ney_bigram_perplexity(good, torch.tensor([0, 9]), 3)
    with pytest.raises(PRUError, match=r"train_ids has shape \(1,\)"):
        kneser_ney_bigram_perplexity(good[:1], good, 3)
