"""Runs that are stopped from outside: by a signal, by a listener that fails, by a full disk."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small import small_config

from torch_pru import PRUError
from torch_pru.lm.config import Config
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import Interrupted, TrainingProgress, resume, train
from torch_pru.lm.training.journal import Journal
from torch_pru.lm.training.progress import StopRequest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


@pytest.fixture
def config(text_folder: Path) -> Config:
    return small_config(unit="lstm", corpus=str(text_folder), epochs=2)


def state_of(path: Path) -> dict[str, Any]:
    found = RunFolder.open(path).checkpoint()
    assert found is not None
    return found.state


def at_the_end(action: Callable[[], None]) -> Callable[..., None]:
    """A listener that acts in the last report of a run."""

    def listen(report: TrainingProgress) -> None:
        if report.ended and report.epoch == report.epochs:
            action()

    return listen


def test_a_signal_at_the_end_of_a_run_is_not_lost(config: Config, tmp_path: Path) -> None:
    """Who trains the next one after it must not begin."""
    listener = at_the_end(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted, match=r"stopped by Ctrl-C; the run in .*alone is finished") as caught:
        train(config, tmp_path / "alone", progress=listener)
    assert caught.value.code == 130
    with pytest.raises(Interrupted, match=r"stopped by Ctrl-C; the run in .*together is finished"):
        train([config], [tmp_path / "together"], progress=listener)
    assert state_of(tmp_path / "alone")["finished"]
    assert state_of(tmp_path / "together")["finished"]


class ListenerError(Exception):
    """What a listener raises."""


CLOSED_PIPE = SystemExit(1)  # rich leaves so


@pytest.mark.parametrize("error", [ListenerError("enough"), CLOSED_PIPE])
def test_a_run_saves_before_the_error_of_its_listener_leaves(
    error: BaseException, config: Config, tmp_path: Path
) -> None:
    heard: list[TrainingProgress] = []

    def listen(report: TrainingProgress) -> None:
        heard.append(report)
        raise error

    with pytest.raises(type(error)) as caught:
        train(config, tmp_path / "alone", progress=listen)
    assert caught.value is error
    assert len(heard) == 1
    assert state_of(tmp_path / "alone")["global_step"] == config.training.log_steps + 1
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(type(error)) as caught:
        train([config, config], folders, progress=listen)
    assert caught.value is error
    assert all(state_of(folder)["global_step"] >= config.training.log_steps for folder in folders)
    assert state_of(resume(tmp_path / "alone").path)["finished"]


def test_a_listener_that_fails_in_the_last_report_leaves_a_finished_run(
    config: Config, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ListenerError

    with pytest.raises(ListenerError):
        train(config, tmp_path / "run", progress=at_the_end(fail))
    assert state_of(tmp_path / "run")["finished"]


@pytest.fixture
def _nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_nohup")
def test_nohup_is_heeded() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.number == 0


def test_a_full_disk_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full on this system")
    journal = Journal(tmp_path, offset=0, step=0)
    close_events, closed = journal._events.close, []

    def full() -> None:
        close_events()
        closed.append("events")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journal._events, "close", full)
    journal._file.close()
    monkeypatch.setattr(journal, "_file", open("/dev/full", "ab"))  # noqa: SIM115 (the journal closes it)
    with pytest.raises(PRUError, match=r"cannot write .*metrics.jsonl: No space left"):
        journal.write({"kind": "steps", "step": 1, "loss": 6.0}, {"seconds": 1.0})
    journal.close()
    assert closed == ["events"]
