"""Training on several processes of one machine: time per step, and where it goes.

    python benchmarks/scaling.py --json benchmarks/records/scaling-cpu.json

Every row trains the same global batch: one process with one or two threads, or several processes with one
thread each that exchange gradients over gloo. "alone" is the same share of the batch without any exchange, in
as many processes at the same time: what is lost to the memory that they share. "overlapped" starts the
exchange of each gradient inside the backward pass; "after" exchanges all of them together behind it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing

from torch_pru.lm.dropout import Masks
from torch_pru.lm.model import build_model
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep, penalties

WORDS = 10_000
STEPS = 35
CPU = torch.device("cpu")


class TimedWorld(World):
    """Measures the exchange of gradients, with the time that the processes wait for each other."""

    seconds: list[float]

    def average(self, tensors: Any) -> None:
        start = time.perf_counter()
        if self.exchanges:
            super().average(tensors)
        self.seconds.append(time.perf_counter() - start)


def measure(rank: int, job: dict[str, Any], results: Any) -> None:
    """One process: median seconds per step and per exchange."""
    torch.set_num_threads(job["threads"])
    size, batch = job["processes"], job["batch"]
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        dist.init_process_group("gloo", rank=rank, world_size=size)
    config = load_recipe(job["recipe"], {"batch": str(batch), "device": "cpu", "precision": "float32"})
    model = build_model(config, WORDS, CPU)
    optimizer = AveragedSGD(model.named_parameters(), clip=0.25, weight_decay=1e-6)
    world = TimedWorld(CPU, rank, size)
    object.__setattr__(world, "seconds", [])
    object.__setattr__(world, "exchanges", job["kind"] != "alone")
    share = world.batch_slice(batch)
    masks = Masks(torch.Generator().manual_seed(1), batch, share.start)
    step = TrainingStep(model, optimizer, masks, world)
    text = torch.randint(WORDS, (STEPS + 1, share.stop - share.start))
    state = model.initial_state(share.stop - share.start)
    optimizer.prepare_step(0.01)

    def train_once() -> None:
        nonlocal state
        if job["kind"] in ("after", "overlapped"):
            backward_once(model, masks, text, state, overlapped=job["kind"] == "overlapped")
        else:
            state, _ = step(text[:-1], text[1:], state)

    times = []
    for _ in range(job["repeats"] + 2):
        start = time.perf_counter()
        train_once()
        times.append(time.perf_counter() - start)
    exchange = world.seconds[2:]
    results.put(
        {
            "rank": rank,
            "step": statistics.median(times[2:]),
            "exchange": statistics.median(exchange) if exchange else 0.0,
            "parameters": sum(one.numel() for one in optimizer.params),
        }
    )
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def backward_once(model: Any, masks: Masks, text: Any, state: Any, *, overlapped: bool) -> None:
    """Forward and backward pass, and the exchange of gradients during it or after it."""
    works = []
    handles = [
        one.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
        for one in (model.parameters() if overlapped else ())
    ]
    hidden = model.hidden(text[:-1], state, masks)
    loss = model.nll(hidden.dropped, text[1:], masks).mean() + penalties(hidden, model.regularisation)
    loss.backward()
    if overlapped:
        for work in works:
            work.wait()
    else:
        flat = torch.cat([one.grad.reshape(-1) for one in model.parameters()])
        dist.all_reduce(flat)
    for handle in handles:
        handle.remove()
    for one in model.parameters():
        one.grad = None


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The slowest process of a job."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    job["port"] = 20_000 + os.getpid() % 10_000
    multiprocessing.spawn(measure, (job, results), nprocs=job["processes"])
    found = [results.get() for _ in range(job["processes"])]
    return job | max(found, key=lambda one: one["step"])


def main() -> None:
    """Measure all rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="ptb-sweep")
    parser.add_argument("--batches", default="20,80")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for batch in map(int, arguments.batches.split(",")):
        for kind, processes, threads in [
            ("train", 1, 1),
            ("train", 1, 2),
            ("train", 2, 1),
            ("train", 4, 1),
            ("alone", 2, 1),
            ("alone", 4, 1),
            ("after", 2, 1),
            ("overlapped", 2, 1),
        ]:
            job = {"kind": kind, "processes": processes, "threads": threads, "batch": batch}
            row = run(job | {"recipe": arguments.recipe, "repeats": arguments.repeats})
            rows.append(row)
            print(
                f"batch {batch:3d} {kind:10s} {processes} x {threads}: {1e3 * row['step']:7.1f} ms per step, "
                f"{STEPS * batch / row['step']:7.0f} tokens/s, exchange {1e3 * row['exchange']:6.1f} ms",
                flush=True,
            )
    if arguments.json:
        about = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
        arguments.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
