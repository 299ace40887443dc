"""Data-parallel training: each process has some columns of the batch, and all take the same steps.

``torchrun --nproc-per-node N -m torch_pru train ...`` starts the processes. They communicate with NCCL on
GPUs and with gloo on CPUs. Through a store that they share, they meet and notice that one of them is silent.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

import torch_pru
from torch_pru.errors import PRUError, SharedError
from torch_pru.lm.device import choose_device
from torch_pru.lm.model import State

WORLDS = itertools.count()
"""Numbers of the process groups that a command joins, one per run; the same in all processes."""

TIMEOUT = timedelta(minutes=5)
"""How long a process waits for the others in an exchange over gloo."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1
    peers: PeerWatch | None = field(default=None, compare=False)

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.peers is None else self.peers.waiting()

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def batch_slice(self, batch: int) -> slice:
        """The columns of the batch that belong to this process."""
        if batch % self.size:
            raise SharedError(
                f"batch={batch} cannot be divided among {self.size} processes; use a multiple of {self.size}"
            )
        share = batch // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one dtype by their mean over the processes, with one all-reduce.

        All processes have the same number of columns, so this is the mean over the whole batch.
        """
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._waiting():
            dist.all_reduce(flat)
        flat /= self.size
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def gather_state(self, state: State) -> State:
        """The states (1, b, M) of all processes as the state (1, B, M) of the whole batch."""
        if self.size == 1:
            return state
        return [(self._gather(h), self._gather(c)) for h, c in state]

    def _gather(self, values: Tensor) -> Tensor:
        pieces = [torch.empty_like(values) for _ in range(self.size)]
        with self._waiting():
            dist.all_gather(pieces, values.contiguous())
        return torch.cat(pieces, 1)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The maximum of each value over the processes, which agree in this way to stop or to save."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self._waiting():
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
            return tensor.tolist()

    def from_main(self, value: float) -> float:
        """The value of the main process, for which the others wait as long as it takes.

        It may read or validate a text before it calls this. So the value is passed through the store, which
        has no time limit, unlike an exchange between processes.
        """
        return value if self.peers is None else self.peers.from_main(value)

    def give_up_when(self, stopping: Callable[[], bool]) -> None:
        """Do not wait long for a silent main process once ``stopping()`` is true."""
        if self.peers is not None:
            self.peers.stopping = stopping

    @contextmanager
    def errors_of_main(self) -> Iterator[None]:
        """Raise an error that the main process raises in this context in the other processes, too."""
        try:
            yield
        except PRUError:
            self.from_main(1.0)
            raise
        if self.from_main(0.0):
            raise SharedError("rank 0 has reported an error")

    def barrier(self) -> None:
        """Wait for the other processes."""
        self.largest([0.0])


@contextmanager
def joined_world(device_name: str) -> Iterator[World]:
    """Join the processes that torchrun started, for the length of the context; else one process."""
    device = choose_device(device_name)
    if environment_number("WORLD_SIZE", 1) == 1:
        yield World(device)
        return
    check_environment()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, size = next(dist.rendezvous("env://"))
    with lost_connections_reported():
        store = meet(dist.PrefixStore(f"world {next(WORLDS)}", store), rank, size)
        backend, timeout = ("nccl", None) if device.type == "cuda" else ("gloo", TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        try:
            with PeerWatch(store, rank, size) as peers:
                yield World(device, rank, size, peers)
        finally:
            dist.destroy_process_group()


@contextmanager
def lost_connections_reported() -> Iterator[None]:
    """Raise a `PRUError` where gloo, NCCL or the store report that another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise PRUError(
            "another process of the run has ended or does not answer, and training cannot continue without "
            "it; everything up to the last checkpoint is saved, and pru resume continues from there (under "
            "torchrun --max-restarts, the run is resumed without further action)"
        ) from error


def environment_number(name: str, default: int) -> int:
    """An integer among torchrun's environment variables."""
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise PRUError(f"{name}={text!r} must be an integer; torchrun sets it") from None


def check_environment() -> None:
    """Refuse several processes that do not know of each other."""
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise PRUError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} without {', '.join(missing)}: start several processes "
            f"with torchrun, or unset WORLD_SIZE"
        )
    for name in ("RANK", "MASTER_PORT"):
        environment_number(name, 0)


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether gloo or NCCL reports that another process is gone, or did not answer in time."""
    if isinstance(error, PRUError):
        return False
    words = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def meet(store: dist.Store, rank: int, size: int) -> dist.Store:
    """Wait for the other processes, and return a part of the store that is new to all of them.

    torchrun's store outlives its processes. After a restart it still has the addresses of processes that have
    ended, and the restart counts of two machines may differ, so the processes themselves agree on a prefix.
    The first one deletes the entries of earlier processes and collects those of the present ones, which renew
    theirs until it has.

    Raises:
        SharedError: if the processes have different versions of this package or of PyTorch.
    """
    own = {"id": uuid.uuid4().hex, "host": socket.gethostname(), "versions": versions()}
    entries = [f"entry {number}" for number in range(1, size)]
    if rank == 0:
        for entry in entries:
            store.delete_key(entry)
        members = [own, *(json.loads(store.get(entry)) for entry in entries)]
        store.set("members", json.dumps(members))
    else:
        members = []
        while own not in members:
            store.set(f"entry {rank}", json.dumps(own))
            time.sleep(0.02)
            members = json.loads(store.get("members")) if store.check(["members"]) else []
    fresh = dist.PrefixStore(members[0]["id"], store)
    for number, member in enumerate(members):
        if member["versions"] != members[0]["versions"]:
            wait_until_read(fresh, rank, size)
            raise SharedError(
                f"rank {number} on {member['host']} has {member['versions']}, and rank 0 on "
                f"{members[0]['host']} has {members[0]['versions']}; install the same everywhere"
            )
    return fresh


def wait_until_read(store: dist.Store, rank: int, size: int) -> None:
    """Let the first process, which may serve the store, end after the others have read it."""
    if rank > 0:
        store.set(f"read {rank}", "")
        return
    with suppress(RuntimeError):  # another process may have ended
        store.wait([f"read {other}" for other in range(1, size)], timedelta(seconds=10))


def versions() -> str:
    """What must be the same on all machines."""
    return f"torch-pru {torch_pru.__version__}, torch {torch.__version__}"


class PeerWatch:
    """Reports when another process stops answering, and passes values from the first process to the others.

    A thread raises a counter in the store every few seconds. While this process waits for the others, the
    thread also looks at their counters; of a process that is suspended, or whose machine is lost, the counter
    stands still. That is reported once, and waiting continues: a suspended process may continue, too.

    The first process may serve the store itself. While it is suspended, calls to the store do not return, so
    a second thread counts how often the first one got no answer.

    Args:
        store: shared by the processes.
        rank: of this process.
        size: number of processes.
        interval: seconds between two looks.
        patience: seconds that a counter may stand still.
    """

    LOST = 300.0
    """Seconds after which a silent main process is given up; gloo has a limit of its own.

    When this process was asked to stop, as torchrun does if another one has ended, ``patience`` is enough.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, interval: float = 3.0, patience: float = 12.0
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.interval, self.patience = interval, patience
        self.values = 0  # passed by `from_main` so far
        self.stopping: Callable[[], bool] = lambda: False  # whether this process was asked to stop
        self._waits = False
        self._counters: dict[int, bytes] = {}  # of the other processes, at the last look
        self._still: dict[int, int] = {}  # looks since the counter of a process has changed
        self._answers = 0  # how often the store has answered
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._run, daemon=True)
        self._counting = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> PeerWatch:
        self._looking.start()
        self._counting.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._counting.join()
        self._looking.join(2 * self.interval)  # the store may not answer

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around an exchange with the other processes."""
        self._waits = True
        yield
        self._waits = False

    def from_main(self, value: float) -> float:
        """The value of the main process, for which the others wait as long as it takes."""
        key = f"value {self.values}"
        self.values += 1
        if self.rank == 0:
            self.store.set(key, value.hex())
            return value
        with self.waiting():
            pause = 0.001
            while not self.store.check([key]):
                time.sleep(pause)
                pause = min(0.1, 2 * pause)
                silence = self._silence(0)
                if silence > (self.patience if self.stopping() else self.LOST):
                    raise PRUError(f"rank 0 has not answered for {silence:.0f} s; this process gives up")
            return float.fromhex(self.store.get(key).decode())

    def _run(self) -> None:
        store: dist.Store = self.store.clone()  # type: ignore[attr-defined]  # not in the stubs
        store.set_timeout(timedelta(seconds=self.interval))
        counter = 0
        while not self._ended.wait(self.interval):
            counter += 1
            try:
                store.set(f"counter {self.rank}", str(counter))
                self._look(store)
                self._answers += 1
            except RuntimeError:  # the store is gone, with the first process or its machine
                continue

    def _count(self) -> None:
        """While this process waits, a store that does not answer counts as silence of the first process."""
        answers = 0
        while not self._ended.wait(self.interval):
            if self._waits and self._answers == answers:
                self._silent(0)
            answers = self._answers

    def _look(self, store: dist.Store) -> None:
        if not self._waits:
            self._counters, self._still = {}, {}
            return
        for peer in range(self.size):
            key = f"counter {peer}"
            counter = store.get(key) if store.check([key]) else b""
            if self._counters.get(peer) == counter:
                self._silent(peer)
            else:
                self._counters[peer], self._still[peer] = counter, 0

    def _silence(self, peer: int) -> float:
        """Seconds since a process was alive. Looks are counted, since this one may have been suspended."""
        return self._still.get(peer, 0) * self.interval

    def _silent(self, peer: int) -> None:
        """A process has been silent since the last look; report that when it has been for too long."""
        before = self._silence(peer)
        self._still[peer] = self._still.get(peer, 0) + 1
        if self._ended.is_set() or not before < self.patience <= self._silence(peer):
            return
        who = f"pru (rank {self.rank})" if self.rank else "pru"
        print(
            f"{who}: rank {peer} has not answered for {self._silence(peer):.0f} s: it is suspended, or its "
            f"machine cannot be reached; everything up to the last checkpoint is saved: let it continue, or "
            f"stop all processes and use pru resume",
            file=sys.stderr,
            flush=True,
        )
