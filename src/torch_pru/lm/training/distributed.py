"""Data-parallel training: each process has some columns of the batch, and all take the same steps.

``torchrun --nproc-per-node N -m torch_pru train ...`` starts the processes. They communicate with NCCL on
GPUs and with gloo on CPUs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from torch_pru.errors import PRUError, SharedError
from torch_pru.lm.device import choose_device
from torch_pru.lm.model import State
from torch_pru.lm.training.peers import PeerWatch, meet

WORLDS = itertools.count()
"""Numbers of the process groups that a command joins, one per run; the same in all processes."""

TIMEOUT = timedelta(minutes=5)
"""How long a process waits for the others in an exchange over gloo."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them.

    Example:
        >>> world = World(torch.device("cpu"))
        >>> world.main, world.batch_slice(20)
        (True, slice(0, 20, None))
    """

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
