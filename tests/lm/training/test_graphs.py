"""Captured steps of several processes; without a GPU, the steps only note what happens to their graphs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_config, small_corpus

from torch_pru.errors import PRUError
from torch_pru.lm.training import driver, train, trainer
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.step import TrainingStep

CPU = torch.device("cpu")


class NotedGraphs:
    def __init__(self, events: list[str]) -> None:
        self.events = events

    def release(self) -> None:
        self.events.append("graphs destroyed")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to the graphs and to the processes."""
    found: list[str] = []

    class NotedStep:
        def __init__(self, step: TrainingStep, text: torch.Tensor) -> None:
            self.step, self.text = step, text
            self.graphs = NotedGraphs(found)

        def __call__(self, first: int, length: int, state: Any) -> Any:
            window = self.text[first : first + length + 1].long()
            return self.step(window[:-1], window[1:], state)

    @contextmanager
    def joined_world(device: str) -> Iterator[World]:
        try:
            yield World(CPU)
        finally:
            found.append("processes part")

    monkeypatch.setattr(trainer, "can_capture", lambda model: True)
    monkeypatch.setattr(trainer, "GraphedStep", NotedStep)
    monkeypatch.setattr(driver, "joined_world", joined_world)
    return found


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_process_captures_its_steps(processes: int) -> None:
    for graphs in (True, False):
        one = trainer.Trainer(small_config(graphs=graphs), small_corpus(), World(CPU, 0, processes))
        assert (one.graphed_step is not None) == graphs


@pytest.mark.parametrize("fails", [False, True])
def test_graphs_are_destroyed_before_the_processes_part(
    fails: bool, events: list[str], text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL waits, without a limit, until no graph has its exchanges; an error keeps the trainer alive."""
    config = small_config(corpus=str(text_folder), epochs=1)
    if not fails:
        train(config, tmp_path / "run")
    else:
        monkeypatch.setattr(trainer.Trainer, "_end_epoch", lambda self: lose_connection())
        with pytest.raises(PRUError, match="is lost"):
            train(config, tmp_path / "run")
    assert events == ["graphs destroyed", "processes part"]


def lose_connection() -> None:
    raise PRUError("the connection is lost")
