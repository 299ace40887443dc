"""Training on several processes of one machine: time per step, and where it goes; a model of several GPUs.

    python benchmarks/scaling.py --json benchmarks/records/scaling-cpu.json
    python benchmarks/scaling.py --show benchmarks/records/scaling-cpu.json  # the tables of docs/scaling.md

All processes of a row train one batch together and exchange gradients over gloo. In each round every kind of
step is taken once, after a barrier, and the slowest process counts:

"train" is a whole step. "alone" is the same without the exchange. "exchange" is only the exchange. "after" is
the forward and the backward pass, and an all-reduce of the joined gradients behind them; "overlapped" starts
the all-reduce of each gradient within the backward pass.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import table
from torch import Tensor, multiprocessing
from torch import distributed as dist

from torch_pru.lm.model import Masks, build_model
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep, penalties

RECIPE = "ptb-sweep"
WORDS = 10_000
STEPS = 35
CPU = torch.device("cpu")
BATCHES = (20, 80, 640)
SMALLER = (5, 10, 40)
"""Batches that one process trains, too, for the line through its times."""

ALL_REDUCE = Path(__file__).parent / "records" / "allreduce-cuda.json"
NETWORKS = {"8 GPUs, NVLink": (300e9, 5e-6), "8 machines, 100 Gbit/s": (10e9, 20e-6)}
"""Assumed, not measured: bytes per second in each direction, and seconds for a message."""


def measure(rank: int, job: dict[str, Any], results: Any) -> None:
    """One process of a row: seconds of each kind of step in each round."""
    torch.set_num_threads(job["threads"])
    size = job["processes"]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    calls = build_calls(rank, size, job["batch"])
    warm_up = torch.tensor(sum(timed(call) for call in calls.values()))
    dist.all_reduce(warm_up, op=dist.ReduceOp.MAX)
    rounds = min(25, max(3, round(job["seconds"] / warm_up.item())))
    times = [{kind: timed(call) for kind, call in calls.items()} for _ in range(rounds)]
    results.put(times)
    dist.barrier()
    dist.destroy_process_group()


def timed(call: Callable[[], object]) -> float:
    """Seconds of a call that all processes begin at the same time."""
    dist.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def build_calls(rank: int, size: int, batch: int) -> dict[str, Callable[[], object]]:
    """The kinds of steps of one process."""
    config = load_recipe(RECIPE, {"batch": str(batch), "device": "cpu", "precision": "float32"})
    torch.manual_seed(1)
    model = build_model(config, WORDS, CPU).train()
    optimizer = AveragedSGD(model.named_parameters(), clip=0.25, weight_decay=1e-6)
    optimizer.prepare_step(0.01)
    world = World(CPU, rank, size)
    share = world.batch_slice(batch)
    masks = Masks(torch.Generator().manual_seed(1), batch, share.start)
    text = torch.randint(WORDS, (STEPS + 1, share.stop - share.start))
    state = model.initial_state(share.stop - share.start)
    gradients = [torch.zeros_like(one) for one in model.parameters()]
    steps = {
        kind: TrainingStep(model, optimizer, masks, average=average)
        for kind, average in (("train", world.average if size > 1 else None), ("alone", None))
    }
    calls: dict[str, Callable[[], object]] = {"train": lambda: steps["train"](text[:-1], text[1:], state)}
    if size > 1:
        calls["alone"] = lambda: steps["alone"](text[:-1], text[1:], state)
        calls["exchange"] = lambda: world.average(gradients)
    if size == 2:
        calls["after"] = lambda: pass_once(model, masks, text, state, overlapped=False)
        calls["overlapped"] = lambda: pass_once(model, masks, text, state, overlapped=True)
    return calls


def pass_once(model: Any, masks: Masks, text: Tensor, state: Any, *, overlapped: bool) -> None:
    """Forward and backward pass, and the exchange of gradients during it or after it."""
    works: list[Any] = []
    handles = [
        one.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
        for one in (model.parameters() if overlapped else ())
    ]
    hidden = model.hidden(text[:-1], state, masks)
    loss = model.nll(hidden.dropped, text[1:], masks).mean() + penalties(hidden, model.regularization)
    loss.backward()
    if overlapped:
        for work in works:
            work.wait()
    else:
        dist.all_reduce(torch.cat([one.grad.reshape(-1) for one in model.parameters()]))
    for handle in handles:
        handle.remove()
    for one in model.parameters():
        one.grad = None


def run(processes: int, threads: int, batch: int, seconds: float) -> list[dict[str, Any]]:
    """The rows of some processes: the median over the rounds of what the slowest process took."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    row = {"processes": processes, "threads": threads, "batch": batch}
    job = row | {"seconds": seconds, "port": 20_000 + os.getpid() % 10_000}
    children = multiprocessing.spawn(measure, (job, results), nprocs=processes, join=False)
    while not children.join():
        pass
    found = [results.get() for _ in range(processes)]
    rounds = list(zip(*found, strict=True))
    return [
        {"kind": kind, **row, "ms": round(1e3 * statistics.median(slowest), 2), "rounds": len(rounds)}
        for kind in found[0][0]
        for slowest in [[max(one[kind] for one in times) for times in rounds]]
    ]


def measure_all(seconds: float) -> list[dict[str, Any]]:
    """All rows."""
    jobs = [
        *((1, 1, batch) for batch in SMALLER),
        *((n, threads, batch) for batch in BATCHES for n, threads in ((1, 1), (1, 2), (2, 1), (4, 1))),
    ]
    rows = []
    for processes, threads, batch in jobs:
        for row in run(processes, threads, batch, seconds):
            rows.append(row)
            print(*row.values(), flush=True)
    return rows


def line_through(points: dict[int, float]) -> Callable[[float], float]:
    """The time of a step without an exchange as a line over the columns of the batch."""
    slope, start = statistics.linear_regression(list(points), list(points.values()))
    return lambda columns: start + slope * columns


def predicted(
    work: Callable[[float], float], batch: int, processes: int, exchange: float, cores: int
) -> float:
    """The model: the work on a share of the batch, and then the exchange. Nothing overlaps.

    Processes that outnumber the cores take turns.
    """
    return max(1.0, processes / cores) * work(batch / processes) + exchange


def ring(size: float, processes: int, bandwidth: float, latency: float) -> float:
    """Seconds of an all-reduce in a ring: each process sends nearly twice the bytes, in 2 (n - 1) parts."""
    parts = 2 * (processes - 1)
    return parts / processes * size / bandwidth + parts * latency


Record = dict[str, Any]


def find(record: Record, kind: str, processes: int, batch: int, threads: int = 1) -> float:
    """Milliseconds of a row."""
    wanted = {"kind": kind, "processes": processes, "batch": batch, "threads": threads}
    [row] = [row for row in record["rows"] if wanted.items() <= row.items()]
    return float(row["ms"])


def measured_table(record: Record) -> str:
    """Time per step and its parts, beside one process with one thread."""
    rows = []
    for batch in BATCHES:
        one = find(record, "train", 1, batch)
        both = find(record, "train", 1, batch, threads=2)
        rows.append((f"{batch}", "1", f"{one:.0f} ms", "", "", "1.00", "1.00", ""))
        rows.append((f"{batch}", "1, 2 threads", f"{both:.0f} ms", "", "", *speed_up(one, both, 2), ""))
        for processes in (2, 4):
            step = find(record, "train", processes, batch)
            alone, exchange = (find(record, kind, processes, batch) for kind in ("alone", "exchange"))
            work = line_through({size: find(record, "train", 1, size) for size in (*SMALLER, 20, 80)})
            model = predicted(work, batch, processes, exchange, record["about"]["cores"])
            parts = (f"{alone:.0f} ms", f"{exchange:.0f} ms")
            rows.append(
                (
                    *(f"{batch}", f"{processes}", f"{step:.0f} ms", *parts),
                    *(*speed_up(one, step, processes), f"{model:.0f} ms ({model / step - 1:+.0%})"),
                )
            )
    header = ("batch", "processes", "step", "without exchange", "exchange", "speed-up", "efficiency", "model")
    return table("CPU", header, rows)


def speed_up(one: float, step: float, processes: int) -> tuple[str, str]:
    """How many times as fast, and that per process."""
    return f"{one / step:.2f}", f"{one / step / processes:.2f}"


def two_cores_table(record: Record) -> str:
    """Two processes beside one with two threads; the exchange behind the backward pass and within it."""
    rows = []
    for batch in BATCHES:
        one = find(record, "train", 1, batch, threads=2)
        two, after, during = (find(record, kind, 2, batch) for kind in ("train", "after", "overlapped"))
        rows.append((f"{batch}", f"{one / two:.2f}", f"{after:.0f} ms", f"{during:.0f} ms"))
    header = ("batch", "2 processes / 1 with 2 threads", "exchange after the backward pass", "within it")
    return table("two cores", header, rows)


def all_reduce_table(record: Record) -> str:
    """The exchange over NCCL with one rank, in a captured step and around it."""
    rows = []
    for batch in (20, 80):
        ms = {row["kind"]: row["ms"] for row in record["rows"] if row["batch"] == batch}
        rows.append((f"{batch}", *(f"{ms[kind]:.2f} ms" for kind in ("none", "copies", "inside", "around"))))
    header = ("batch", "no exchange", "copies only", "all-reduce in the graph", "between two graphs")
    return table("all-reduce", header, rows)


def model_table(record: Record) -> str:
    """What the model says of 8 GPUs and of 8 machines with one GPU each."""
    ms = {(row["kind"], row["batch"]): row["ms"] for row in record["rows"]}
    work = line_through({batch: ms["none", batch] for batch in (20, 80)})
    copies = statistics.mean(ms["inside", batch] - ms["none", batch] for batch in (20, 80))
    size = 4 * record["rows"][0]["parameters"]
    rows = []
    for batch in BATCHES:
        processes = max(n for n in range(1, 9) if batch % n == 0)
        cells = []
        for network in NETWORKS.values():
            exchange = copies + 1e3 * ring(size, processes, *network)
            step = predicted(work, batch, processes, exchange, cores=processes)
            cells += [f"{step:.1f} ms", *speed_up(work(batch), step, processes)]
        rows.append((f"{batch}", f"{processes}", f"{work(batch):.1f} ms", *cells))
    names = [(name, "speed-up", "efficiency") for name in NETWORKS]
    return table("model", ("batch", "processes", "one GPU", *sum(names, ())), rows)


def show(record: Record) -> str:
    """All tables of the page: of this record, and of that of the GPU."""
    on_gpu = json.loads(ALL_REDUCE.read_text())
    return "\n".join(
        [measured_table(record), two_cores_table(record), all_reduce_table(on_gpu), model_table(on_gpu)]
    )


def main() -> None:
    """Measure all rows, or show the tables of a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=12, help="for each batch and number of processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record to this file")
    parser.add_argument("--show", type=Path, metavar="FILE", help="show the tables of this record")
    arguments = parser.parse_args()
    if arguments.show:
        print(show(json.loads(arguments.show.read_text())))
        return
    about = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    about |= {"recipe": RECIPE, "words": WORDS, "steps": STEPS}
    record = {"about": about, "rows": measure_all(arguments.seconds)}
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
