"""Data-parallel training: each process has some columns of the batch, and all take the same steps.

``torchrun --nproc-per-node N -m torch_pru train ...`` starts the processes. They communicate with NCCL on
GPUs and with gloo on CPUs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from torch_pru.errors import PRUError
from torch_pru.lm.device import choose_device
from torch_pru.lm.model import State

WORLDS = itertools.count()
"""Numbers of the process groups that a command joins, one per run; the same in all processes."""


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

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def batch_slice(self, batch: int) -> slice:
        """The columns of the batch that belong to this process."""
        if batch % self.size:
            raise PRUError(
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
        dist.all_gather(pieces, values.contiguous())
        return torch.cat(pieces, 1)

    def largest(self, values: Sequence[float]) -> list[float]:
        """The maximum of each value over the processes, which agree in this way to stop or to save."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor.tolist()

    def from_main(self, value: float) -> float:
        """The value of the main process."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, src=0)
        return tensor.item()

    def barrier(self) -> None:
        """Wait for the other processes."""
        self.largest([0.0])


@contextmanager
def joined_world(device_name: str) -> Iterator[World]:
    """Join the processes that torchrun started, for the length of the context; else one process."""
    device = choose_device(device_name)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, size = next(dist.rendezvous("env://"))
    # torchrun's store outlives a process group: the next one must not find the addresses of the last.
    store = dist.PrefixStore(f"world {next(WORLDS)}", store)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(device, rank, size)
    finally:
        dist.destroy_process_group()
