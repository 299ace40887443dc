"""Which rows of the text each optimisation step reads, and where its columns begin."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from torch_pru.errors import PRUError, in_words_of
from torch_pru.lm.config import TrainingConfig
from torch_pru.lm.data.columns import columns
from torch_pru.lm.data.corpus import Corpus

SPREAD = 5.0  # standard deviation of a window's length
SHORTEST = 5  # no window is drawn shorter
HALF_RATE = 0.05  # how often a window is drawn around half the usual length
MIN_ROWS = 3  # of a text: the shortest last window has two steps, and the second one a target


def draw_length(usual: int, random_numbers: random.Random) -> int:
    """A window's length: about ``usual``, now and then about half of it; long ones are not capped.

    Example:
        >>> draw_length(70, random.Random(1))
        74
    """
    mean = usual if random_numbers.random() < 1 - HALF_RATE else usual / 2
    return max(SHORTEST, int(random_numbers.gauss(mean, SPREAD)))


def epoch_windows(rows: int, usual: int, seed: int, epoch: int) -> list[tuple[int, int]]:
    """First row and length of each window of an epoch, in the order of the text.

    The lengths are a function of seed and epoch alone, so that a resumed run needs no random state for them.
    Row ``r`` is predicted from row ``r - 1``: a window at ``first`` of length T reads rows ``first`` to
    ``first + T`` (both included). A last window of a single step is left out, as in AWD-LSTM: its TAR would
    be the mean of nothing.

    Args:
        rows: T_total, of the columns (T_total, B).
        usual: the usual length of a window.

    Example:
        >>> windows = epoch_windows(46_479, 70, seed=1, epoch=0)
        >>> windows[0][0], sum(length for _, length in windows), len(windows)
        (0, 46478, 688)
    """
    random_numbers = random.Random(f"windows {seed} {epoch}")
    windows, first = [], 0
    while first <= rows - MIN_ROWS:
        length = min(draw_length(usual, random_numbers), rows - 1 - first)
        windows.append((first, length))
        first += length
    return windows


def column_starts(rows: int, batch: int, seed: int, epoch: int) -> Tensor:
    """(B,) where each column of text begins in an epoch, a function of seed and epoch alone.

    Example:
        >>> column_starts(46_479, 3, seed=1, epoch=0).tolist()
        [6457, 45788, 12548]
    """
    random_numbers = random.Random(f"columns {seed} {epoch}")
    return torch.tensor([random_numbers.randrange(rows) for _ in range(batch)])


def rotate_columns(text: Tensor, starts: Tensor) -> Tensor:
    """The columns of ``text`` (T_total, B), each from its row of ``starts`` (B,) on, and wrapped round.

    Example:
        >>> rotate_columns(torch.tensor([[1, 5], [2, 6], [3, 7]]), torch.tensor([0, 2])).tolist()
        [[1, 7], [2, 5], [3, 6]]
    """
    rows = torch.arange(len(text), device=text.device)[:, None]
    return text.gather(0, (rows + starts) % len(text))


def training_columns(ids: Tensor, batch: int) -> Tensor:
    """A training text (N,) as columns (T_total, B); raises if it is too short for one step."""
    text = columns(ids, batch)
    if len(text) < MIN_ROWS:
        raise PRUError(
            f"batch={batch} makes {len(text)} rows of a training text of {len(ids)} tokens, but a step needs "
            f"at least {MIN_ROWS}; use a smaller batch, or more text"
        )
    return text


def check_length(corpus: Corpus, settings: TrainingConfig) -> None:
    """Raise if the text is too short for ``batch`` or ``valid_batch`` columns."""
    training_columns(corpus.train, settings.batch)
    with in_words_of(batch="valid_batch"):
        columns(corpus.valid, settings.valid_batch)
