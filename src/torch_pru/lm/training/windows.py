"""The training text in columns, the rows of it that each step reads, and the rotation of its columns."""

from __future__ import annotations

import random
from functools import lru_cache

import torch
from torch import Tensor

from torch_pru.errors import PRUError, renaming_arguments
from torch_pru.lm.config import TrainingConfig
from torch_pru.lm.data.columns import columns, to_device
from torch_pru.lm.data.corpus import Corpus

LENGTH_DEVIATION = 5.0  # standard deviation of a window's length
MIN_LENGTH = 5  # of all windows but the last
HALF_LENGTH_PROBABILITY = 0.05  # of drawing a window around half the usual length
MIN_ROWS = 3  # of a text: the shortest last window has two steps, and the second one needs a target


def draw_length(usual: int, random_numbers: random.Random) -> int:
    """Draw the length of a window: around ``usual``, sometimes around half of it, without an upper limit."""
    mean = usual if random_numbers.random() < 1 - HALF_LENGTH_PROBABILITY else usual / 2
    return max(MIN_LENGTH, int(random_numbers.gauss(mean, LENGTH_DEVIATION)))


@lru_cache(maxsize=64)  # a run asks again at every report
def epoch_windows(rows: int, usual: int, seed: int, epoch: int) -> tuple[tuple[int, int], ...]:
    """First row and length of each window of an epoch, in the order of the text.

    They depend on seed and epoch alone, so that a resumed run needs no random state for them. Row ``r`` is
    predicted from row ``r - 1``: a window of length T at row ``first`` reads the rows ``first`` to
    ``first + T``, both included. A last window of a single step is left out, as in AWD-LSTM: its TAR would
    be the mean of no elements.

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
    return tuple(windows)


def column_starts(rows: int, batch: int, seed: int, epoch: int) -> Tensor:
    """The row at which each column of the text starts in an epoch, (B,); depends on seed and epoch alone."""
    random_numbers = random.Random(f"columns {seed} {epoch}")
    return torch.tensor([random_numbers.randrange(rows) for _ in range(batch)])


def rotate_columns(text: Tensor, starts: Tensor) -> Tensor:
    """The columns of ``text`` (T_total, B), each rotated to start at its row in ``starts`` (B,).

    Example:
        >>> rotate_columns(torch.tensor([[1, 5], [2, 6], [3, 7]]), torch.tensor([0, 2])).tolist()
        [[1, 7], [2, 5], [3, 6]]
    """
    columns = zip(text.unbind(1), starts.tolist(), strict=True)
    return torch.stack([torch.cat([column[start:], column[:start]]) for column, start in columns], 1)


def training_columns(ids: Tensor, batch: int) -> Tensor:
    """A training text (N,) as columns (T_total, B); raises if it is too short for one step."""
    text = columns(ids, batch)
    if len(text) < MIN_ROWS:
        raise PRUError(
            f"batch={batch} makes {len(text)} rows of a training text of {len(ids)} tokens, but a step needs "
            f"at least {MIN_ROWS}; use a smaller batch, or more text"
        )
    return text


class TrainingText:
    """The columns of the training text that a process reads, as the current epoch reads them.

    Args:
        ids: the training text (N,).
        settings: ``batch``, ``window``, ``seed`` and whether the columns are rotated.
        own: the columns of this process.
        device: where to keep them.

    Attributes:
        columns: token ids (T_total, B), always at the same address, which captured graphs depend on.
        unrotated: the columns in the order of the text.
    """

    def __init__(self, ids: Tensor, settings: TrainingConfig, own: slice, device: torch.device) -> None:
        self.settings, self.own = settings, own
        self.unrotated = to_device(training_columns(ids, settings.batch)[:, own], device)
        self.columns = self.unrotated.clone() if settings.rotate_columns else self.unrotated
        self._epoch = -1  # the epoch whose rotation the columns have

    def windows(self, epoch: int) -> tuple[tuple[int, int], ...]:
        """First row and length of each window of an epoch; see `epoch_windows`."""
        return epoch_windows(len(self.columns), self.settings.window, self.settings.seed, epoch)

    def rotate(self, epoch: int) -> None:
        """Shift the columns if settings say so, so that other words share a step than in other epochs."""
        if not self.settings.rotate_columns or self._epoch == epoch:
            return
        starts = column_starts(len(self.unrotated), self.settings.batch, self.settings.seed, epoch)
        self.columns.copy_(rotate_columns(self.unrotated, starts[self.own]))
        self._epoch = epoch


def check_length(corpus: Corpus, settings: TrainingConfig) -> None:
    """Raise if the text is too short for ``batch`` or ``valid_batch`` columns."""
    training_columns(corpus.train, settings.batch)
    with renaming_arguments(batch="valid_batch"):
        columns(corpus.valid, settings.valid_batch)
