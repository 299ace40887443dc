"""Which words each training step reads: how long its windows are, and where its columns begin."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from small import small_config, small_corpus

from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.trainer import Trainer
from torch_pru.lm.training.windows import column_starts, epoch_windows, rotate_columns


def test_window_lengths() -> None:
    rows = 929_589 // 20
    epochs = [epoch_windows(rows, 70, seed=1, epoch=epoch) for epoch in range(60)]
    lengths = [length for windows in epochs for _, length in windows[:-1]]
    assert statistics.fmean(lengths) == pytest.approx(67.75, abs=0.15)  # rounding, not int(), gives 68.25
    assert statistics.fmean(len(windows) for windows in epochs) == pytest.approx(686, abs=2)
    short = [length for length in lengths if length <= 52]
    assert len(short) / len(lengths) == pytest.approx(0.05, abs=0.005)
    assert statistics.fmean(short) == pytest.approx(34.5, abs=0.4)
    long = [length for length in lengths if length > 52]
    assert statistics.stdev(long) == pytest.approx(5.0, abs=0.15)
    assert sum(length > 80 for length in lengths) / len(lengths) == pytest.approx(0.013, abs=0.003)  # no cap
    assert 70 <= len(set(lengths)) <= 90
    assert min(length for _, length in epoch_windows(100_000, 5, seed=1, epoch=0)[:-1]) == 5


def test_windows_cover_the_text_once_in_order() -> None:
    for rows in range(3, 60):
        expected = 0
        for first, length in epoch_windows(rows, 10, seed=rows, epoch=0):
            assert first == expected
            assert length >= 2  # with one step TAR is the mean of nothing
            expected += length
        assert expected in (rows - 1, rows - 2)
    assert epoch_windows(500, 10, 1, 0) == epoch_windows(500, 10, 1, 0)
    assert epoch_windows(500, 10, 1, 0) != epoch_windows(500, 10, 1, 1)
    assert epoch_windows(500, 10, 1, 0) != epoch_windows(500, 10, 2, 0)


# ---------------------------------------------------------------------- columns that begin elsewhere


def test_columns_begin_anywhere_and_elsewhere_every_epoch() -> None:
    starts = torch.stack([column_starts(1000, 20, seed=1, epoch=epoch) for epoch in range(100)])
    assert starts.shape == (100, 20)
    assert 0 <= starts.min() < 10 < 990 < starts.max() < 1000
    assert starts.double().mean().item() == pytest.approx(500, abs=25)  # four standard deviations
    assert len(starts.unique()) > 800
    assert len(starts.unique(dim=0)) == 100
    assert torch.equal(column_starts(1000, 20, 1, 7), starts[7])
    assert not torch.equal(column_starts(1000, 20, 2, 7), starts[7])


def test_a_rotated_column_has_every_word_once_and_in_order() -> None:
    text = torch.arange(35).view(5, 7).t()  # (7, 5): the words of column b are 7b to 7b + 6
    starts = [0, 6, 3, 1, 5]
    found = rotate_columns(text, torch.tensor(starts))
    assert found.t().tolist() == [
        [7 * column + (start + row) % 7 for row in range(7)] for column, start in enumerate(starts)
    ]


@pytest.mark.parametrize("rotate", [False, True])
def test_what_a_step_reads(rotate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[torch.Tensor] = []
    original = TrainingStep.__call__

    def noting(self: TrainingStep, tokens: torch.Tensor, targets: torch.Tensor, *rest: Any) -> Any:
        assert torch.equal(tokens[1:], targets[:-1])
        read.extend(tokens.clone())
        return original(self, tokens, targets, *rest)

    monkeypatch.setattr(TrainingStep, "__call__", noting)
    trainer = Trainer(
        small_config(unit="lstm", rotate_columns=rotate), small_corpus(), World(torch.device("cpu"))
    )
    text = trainer.text.unrotated.clone()
    for epoch in (0, 3, 3, 1):  # an epoch again, as after a new start in its middle
        trainer.schedule.epoch = epoch
        read.clear()
        trainer.text.rotate(epoch)
        for first, length in trainer._windows():
            trainer._take_step(first, length)
        starts = column_starts(len(text), 4, trainer.config.training.seed, epoch)
        expected = rotate_columns(text, starts) if rotate else text
        assert len(read) >= len(text) - 2
        assert torch.equal(torch.stack(read), expected[: len(read)])
    assert torch.equal(trainer.text.unrotated, text)
