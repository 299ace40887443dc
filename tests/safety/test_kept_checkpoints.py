"""What is kept is counted in checkpoints that are whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from attack import pru

from torch_pru.lm.checkpoint import Checkpoint, is_whole, load_newest, save_checkpoint, saved_numbers
from torch_pru.lm.files import Folder
from torch_pru.lm.run import RunFolder


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(folder, Checkpoint({"w": torch.full((50,), step)}, {}, {"step": step}))


def damage(checkpoint: Path) -> None:
    content = bytearray((checkpoint / "weights.safetensors").read_bytes())
    content[-3] ^= 1
    (checkpoint / "weights.safetensors").write_bytes(content)


def test_two_are_kept(tmp_path: Path) -> None:
    for step in range(5):
        save(tmp_path, step)
    assert saved_numbers(tmp_path) == [4, 5]


def test_a_save_after_a_fallback_keeps_the_checkpoint_that_was_fallen_back_on(tmp_path: Path) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert load_newest(tmp_path).state == {"step": 1}
    newest = save(tmp_path, 3)
    assert saved_numbers(tmp_path) == [1, 3]  # the damaged one is gone, not the good one
    damage(newest)
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert load_newest(tmp_path).state == {"step": 1}


def test_one_that_was_damaged_after_it_was_written_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, 1)
    damage(save(tmp_path, 2))
    save(tmp_path, 3)
    save(tmp_path, 4)
    assert saved_numbers(tmp_path) == [3, 4]


def test_where_none_is_whole_none_is_removed(tmp_path: Path) -> None:
    for step in (1, 2):
        damage(save(tmp_path, step))
    save(tmp_path, 3)
    assert saved_numbers(tmp_path)[-1] == 3
    assert load_newest(tmp_path).state == {"step": 3}


def test_a_kill_while_an_old_one_is_removed_leaves_none_that_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill would, an error ends the removal when one file of the checkpoint is gone."""
    for step in range(2):
        save(tmp_path, step)
    unlink, killed = os.unlink, []

    def kill_after_one(path: str, **options: object) -> None:
        if len(killed) == 1:
            raise KeyboardInterrupt
        killed.append(path)
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", kill_after_one)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert killed
    assert saved_numbers(tmp_path) == [2, 3]
    limit = 1 << 20
    assert all(is_whole(Folder(tmp_path) / f"{number:06d}", limit) for number in (2, 3))
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000003", "000004"]


def test_a_run_survives_damage_on_both_sides_of_a_resume(interrupted: Path) -> None:
    folder = interrupted / "checkpoints"
    older, newest = saved_numbers(folder)
    damage(folder / f"{newest:06d}")
    assert pru("resume", interrupted)[0] == 0
    last = saved_numbers(folder)[-1]
    damage(folder / f"{last:06d}")
    with pytest.warns(UserWarning, match="trying the checkpoint before it"):
        assert RunFolder.open(interrupted).checkpoint() is not None
    assert older < last


@pytest.mark.parametrize("name", ["1²", "٣٣٣٣٣٣", "7", "0000001", "000001x", ".000009", "1" * 200])
def test_folders_with_other_names_are_no_checkpoints(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert saved_numbers(tmp_path) == ([int(name)] if name == "1" * 200 else [])
    save(tmp_path, 1)
    assert load_newest(tmp_path).state == {"step": 1}
