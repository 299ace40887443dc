"""Interpolated Kneser-Ney bigram: the count-based model that a neural one has to beat."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from torch_pru.errors import PRUError, check_positive


class KneserNeyBigram:
    """Word probabilities from counts of neighboring words, with absolute discounting.

    With c counts and N1+ numbers of distinct neighbors ("." is any word)::

        P(w | v) = (c(v w) - D)+ / c(v .)          +  D N1+(v .) / c(v .)  x  Q(w)
        Q(w)     = (N1+(. w) - d)+ / N1+(. .)      +  d U / N1+(. .)       x  1 / V

    where U counts the words that follow anything. Q says how many different words w follows, not how often it
    occurs. Its share of the uniform 1/V keeps every probability above zero. D and d are n1 / (n1 + 2 n2) of
    their own counts, where n1 and n2 are how many are one and two. After a context never seen, P is Q.

    Args:
        train_ids: (N,) the text that is counted.
        vocabulary_size: V.

    Example:
        >>> import torch
        >>> model = KneserNeyBigram(torch.tensor([0, 1, 2, 0, 1, 1]), vocabulary_size=4)
        >>> round(float(model.probability(np.array([0, 0, 0, 0]), np.array([0, 1, 2, 3])).sum()), 6)
        1.0
    """

    def __init__(self, train_ids: Tensor, vocabulary_size: int) -> None:
        check_positive("vocabulary_size", vocabulary_size)
        ids = _as_array("train_ids", train_ids, vocabulary_size)
        size = vocabulary_size
        self.vocabulary_size = size
        self._pairs, self._pair_counts = np.unique(ids[:-1] * size + ids[1:], return_counts=True)
        first, second = self._pairs // size, self._pairs % size
        self._discount = _discount(self._pair_counts)
        self._context_counts = np.bincount(ids[:-1], minlength=size)  # c(v .)
        self._followers = np.bincount(first, minlength=size)  # N1+(v .)

        predecessors = np.bincount(second, minlength=size)  # N1+(. w)
        discount = _discount(predecessors)
        freed = discount * np.count_nonzero(predecessors)
        self._lower = (np.maximum(predecessors - discount, 0) + freed / size) / len(self._pairs)  # Q

    def probability(self, previous: np.ndarray, word: np.ndarray) -> np.ndarray:
        """P(word | previous), elementwise: (n,) and (n,) ids to (n,) float64."""
        keys = previous * self.vocabulary_size + word
        at = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        counts = np.where(self._pairs[at] == keys, self._pair_counts[at], 0)
        seen = self._context_counts[previous]
        freed = np.where(seen > 0, self._discount * self._followers[previous], 1.0)
        mass = np.maximum(counts - self._discount, 0) + freed * self._lower[word]
        result: np.ndarray = mass / np.maximum(seen, 1)
        return result


def kneser_ney_bigram_perplexity(train_ids: Tensor, test_ids: Tensor, vocabulary_size: int) -> float:
    """Perplexity of ``test_ids`` under an interpolated Kneser-Ney bigram counted on ``train_ids``.

    Every token but the first is scored, given the one before it: those that a language model is scored on.

    Args:
        train_ids: (N,) the text that is counted.
        test_ids: (n,) the text that is scored.
        vocabulary_size: V; all ids lie below it.

    Example:
        >>> import torch
        >>> text = torch.arange(1000) % 10
        >>> kneser_ney_bigram_perplexity(text, text, 10) < 1.1
        True
    """
    model = KneserNeyBigram(train_ids, vocabulary_size)
    ids = _as_array("test_ids", test_ids, vocabulary_size)
    return math.exp(-float(np.log(model.probability(ids[:-1], ids[1:])).mean()))


def _discount(counts: np.ndarray) -> float:
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    # Without a single 1 the estimate is 0 and would leave nothing for unseen words; 1/2 is its usual middle.
    return once / (once + 2 * twice) if once else 0.5


def _as_array(argument: str, ids: Tensor, vocabulary_size: int) -> np.ndarray:
    if ids.dim() != 1 or len(ids) < 2:
        raise PRUError(f"{argument} has shape {tuple(ids.shape)}; give one row of at least 2 ids")
    array = ids.cpu().numpy().astype(np.int64)
    if array.min() < 0 or array.max() >= vocabulary_size:
        raise PRUError(
            f"{argument} has ids from {array.min()} to {array.max()}; "
            f"with vocabulary_size={vocabulary_size} they must lie in 0 to {vocabulary_size - 1}"
        )
    return array
