"""The settings that are chosen for a text, a machine and the time there is."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from torch_pru.lm import plan
from torch_pru.lm.config import Config

TEXT = {"tokens": 200_000, "held_out": 10_000, "vocabulary_size": 1_000, "device": "cpu"}


class Machine:
    """A machine of a given speed, which needs a given time to measure it.

    Args:
        speed: tokens per second.
        seconds: that a measurement takes, by the clock that `plan` sees.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, speed: float, seconds: float) -> None:
        self.speed, self.seconds, self.now = speed, seconds, time.monotonic()
        monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(plan, "training_speed", self.measure)

    def measure(self, config: Config, vocabulary_size: int) -> float:
        self.now += self.seconds
        return self.speed


def minutes_chosen(seconds: float) -> float:
    return plan.plan_training("text", **TEXT, seconds=seconds).settings["minutes"]


def test_the_time_that_measuring_takes_is_not_left_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step may compile the kernels, which takes half a minute on a busy machine."""
    Machine(monkeypatch, speed=50_000, seconds=0)
    at_once = minutes_chosen(180)
    Machine(monkeypatch, speed=50_000, seconds=30)
    assert minutes_chosen(180) == pytest.approx(at_once - 0.5, abs=0.02)


def test_time_for_training_is_left_however_long_measuring_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, speed=50_000, seconds=300)
    assert minutes_chosen(180) > 0


def test_a_slow_machine_gets_a_smaller_model(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for speed in (50_000, 500):
        Machine(monkeypatch, speed=speed, seconds=1)
        sizes.append(plan.plan_training("text", **TEXT, seconds=180).settings["hidden"])
    assert sizes == [(256,), (128,)]
