"""Whose turn it is among runs that share a device: none has to wait while the host is busy with another."""

from __future__ import annotations

import math
from typing import Any

import pytest

from torch_pru.lm.training import driver


class Simulated:
    """As much of a run as the order of turns needs, on a device that takes its time for a step."""

    ready, order = driver.ActiveRun.ready, driver.ActiveRun.order

    def __init__(self, step: float, waits_every: int) -> None:
        self.step, self.waits_every = step, waits_every
        self.turns = 0
        self.left = self.idle = 0.0  # seconds of work queued, and seconds without work

    def queued(self) -> int:
        return math.ceil(self.left / self.step - 1e-6)

    def _will_wait(self) -> bool:
        return (self.turns + 1) % self.waits_every == 0

    def take_turn(self) -> float:
        """Returns how long the host is busy with it: the waiting turn also reads a loss and writes lines."""
        waits = self._will_wait()
        self.turns += 1
        self.left += self.step
        return self.left + 0.002 if waits else 0.0001

    def spend(self, seconds: float) -> None:
        self.idle += max(0.0, seconds - self.left)
        self.left = max(0.0, self.left - seconds)


@pytest.mark.parametrize("steps", [(0.002, 0.002, 0.002, 0.002), (0.002, 0.010), (0.001, 0.004, 0.030)])
def test_no_run_starves_while_the_host_waits_for_another(
    steps: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    members: list[Any] = [Simulated(step, waits_every=50) for step in steps]
    clock = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        for member in members:
            member.spend(seconds)

    monkeypatch.setattr(driver.time, "sleep", pass_time)
    while clock < 20:
        pass_time(driver.next_run(members).take_turn())
    for member in members:  # in turns of one step each, the quick run would be idle for 80 to 97% of the time
        assert member.idle < 0.06 * clock
        assert member.turns > 0.94 * clock / member.step
