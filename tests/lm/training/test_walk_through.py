"""The walk-through in CONTRIBUTING.md names the files of a training step in the order in which they run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from small import small_config, small_corpus

import torch_pru
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.trainer import Trainer

PACKAGE = Path(torch_pru.__file__).parent
GUIDE = Path(__file__).parents[3] / "CONTRIBUTING.md"


def files_named() -> list[str]:
    """The files that the items of the section's numbered list begin with."""
    section = GUIDE.read_text(encoding="utf-8").split("## One batch through a training step")[1]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", section.split("\n## ")[0], re.MULTILINE)


def files_run(trainer: Trainer) -> list[str]:
    """The files of ``lm`` whose functions a step calls, in order."""
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE / "lm"):
            seen[path.relative_to(PACKAGE).as_posix()] = None

    first, length = trainer._windows()[0]
    sys.setprofile(note)
    try:
        trainer._take_step(first, length)
    finally:
        sys.setprofile(None)
    return list(seen)


@pytest.mark.skipif(not GUIDE.exists(), reason="not run from a checkout")
def test_the_files_of_a_step_are_named_in_order() -> None:
    config = small_config(input_dropout=0.3, weight_drop=0.3, activation=2.0, temporal=1.0)
    trainer = Trainer(config, small_corpus(), World(torch.device("cpu")))
    trainer.model.train()
    assert files_named() == files_run(trainer)
