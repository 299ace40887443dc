"""What a process learns of the others: that they take part, have its versions, and are alive."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch.distributed as dist

from torch_pru.errors import SharedError
from torch_pru.lm.training import distributed
from torch_pru.lm.training.distributed import PeerWatch, meet


def in_threads(*calls: Any) -> list[Any]:
    """Call all functions at the same time; their results, or the errors that they raised."""
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return results


def test_entries_of_processes_that_have_ended_are_not_used() -> None:
    store = dist.HashStore()
    in_threads(lambda: meet(store, 0, 2), lambda: meet(store, 1, 2))
    store.set("entry 1", '{"id": "a dead process", "host": "", "versions": ""}')
    first, second = in_threads(
        lambda: meet(store, 0, 2),
        lambda: time.sleep(0.3) or meet(store, 1, 2),  # later than rank 0
    )
    first.set("a", "1")
    assert second.get("a") == b"1"
    assert not store.check(["a"])


def test_versions_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    store, local = dist.HashStore(), threading.local()

    def with_version(rank: int, version: str) -> dist.Store:
        local.version = version
        return meet(store, rank, 3)

    monkeypatch.setattr(distributed, "versions", lambda: local.version)
    errors = in_threads(
        lambda: with_version(0, "torch-pru 0.1"),
        lambda: with_version(1, "torch-pru 0.1"),
        lambda: with_version(2, "torch-pru 0.2"),
    )
    assert all(isinstance(error, SharedError) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert "rank 2 on" in str(errors[0])
    assert "has torch-pru 0.2, and rank 0 on" in str(errors[0])


def test_a_silent_process_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    store = dist.HashStore()
    with PeerWatch(store, 0, 3, interval=0.05, patience=0.2) as watch, PeerWatch(store, 1, 3, interval=0.05):
        time.sleep(0.4)
        assert capfd.readouterr().err == ""  # nobody waits
        with watch.waiting():
            time.sleep(0.6)
        with watch.waiting():
            pass
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("pru: rank 2 has not answered for 0 s: it is suspended")


class StuckStore:
    """A store whose server is suspended: calls do not return."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def clone(self) -> StuckStore:
        return self

    def set_timeout(self, timeout: object) -> None:
        pass  # which has no effect on calls other than wait()

    def set(self, key: str, value: str) -> None:
        pass

    def check(self, keys: list[str]) -> bool:
        self.released.wait(20)
        raise RuntimeError("the connection was closed")


def test_a_store_that_does_not_answer_is_the_first_process(capfd: pytest.CaptureFixture[str]) -> None:
    store: Any = StuckStore()
    with PeerWatch(store, 1, 2, interval=0.05, patience=0.2) as watch:
        with watch.waiting():
            time.sleep(0.6)
        store.released.set()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("pru (rank 1): rank 0 has not answered for 0 s: it is suspended")


def test_the_others_wait_for_a_value_of_the_first(capfd: pytest.CaptureFixture[str]) -> None:
    store = dist.HashStore()
    with (
        PeerWatch(store, 0, 2, interval=0.05, patience=0.2) as first,
        PeerWatch(store, 1, 2, interval=0.05, patience=0.2) as second,
    ):
        values = in_threads(
            lambda: time.sleep(0.6) or [first.from_main(0.1), first.from_main(float("nan"))],
            lambda: [second.from_main(7.0), second.from_main(7.0)],
        )
        assert values[1][0] == 0.1
        assert values[1][1] != values[1][1]
    assert capfd.readouterr().err == ""  # it was busy, not silent
    with PeerWatch(dist.HashStore(), 1, 2, interval=0.05, patience=0.2) as second:
        second.LOST = 0.4
        with pytest.raises(RuntimeError, match="rank 0 has not answered for 0 s; this process gives up"):
            second.from_main(7.0)


def test_a_process_that_was_asked_to_stop_does_not_wait_long() -> None:
    stopping = threading.Event()
    with PeerWatch(dist.HashStore(), 1, 2, interval=0.05, patience=0.2) as second:
        second.stopping = stopping.is_set
        threading.Timer(0.6, stopping.set).start()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="rank 0 has not answered for"):
            second.from_main(7.0)
        assert 0.5 < time.monotonic() - start < 20  # of 300 without the request
