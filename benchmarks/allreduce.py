"""What an NCCL all-reduce of the gradients costs in a training step that is captured as a CUDA graph.

    python benchmarks/allreduce.py --json benchmarks/records/allreduce-cuda.json   # on one NVIDIA GPU

There is one rank, so nothing is sent: this is the cost of the copies and launches, without that of a network.
"none" has no exchange; "copies" only joins the gradients and splits them again; "inside" has the all-reduce
in the graph, as training has it; "around" has one graph before it and one after it. First the weights after a
few steps are compared with those of "none"; if they differ, nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from checking import relative_error
from timing import interleaved
from torch import Tensor
from torch import distributed as dist

from torch_pru.lm.model import Masks, build_model
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import GraphedStep, TrainingStep

WORDS = 10_000
STEPS = 70
KINDS = ("none", "copies", "inside", "around")
CHECKED_STEPS = 4
CLOSE = 1e-2
"""Relative difference of the weights' changes; sums on a GPU may have another order in each run."""


def average(tensors: Sequence[Tensor], exchange: Callable[[Tensor], object]) -> None:
    """What `World.average` does with several processes, in one."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    exchange(flat)
    flat /= 1
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view_as(tensor))


class SplitStep:
    """A step as two CUDA graphs: up to the gradients, and from their average on.

    The exchange ends the capture of the first graph and begins that of the second. It runs between them.
    """

    def __init__(self, build: Callable[[Callable[[Tensor], None]], GraphedStep]) -> None:
        self.graphs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()]
        self.pool, self.flat = torch.cuda.graph_pool_handle(), torch.empty(0)
        self.warm = self.capturing = self.captured = False
        self.step = build(self._exchange)
        self.stream = torch.cuda.Stream()

    def _exchange(self, flat: Tensor) -> None:
        if not self.capturing:
            dist.all_reduce(flat)
            return
        self.flat = flat
        self.graphs[0].capture_end()
        self.graphs[1].capture_begin(pool=self.pool)

    def __call__(self, first: int, length: int, state: Any) -> tuple[Any, Tensor]:
        if not self.warm:
            self.warm = True
            return self.step(first, length, state)
        if not self.captured:
            self._capture(length)
        self.step.first_row.fill_(first)
        self.graphs[0].replay()
        dist.all_reduce(self.flat)
        self.graphs[1].replay()
        return self.step.state, self.step.loss

    def _capture(self, length: int) -> None:
        torch.cuda.synchronize()
        self.graphs[0].register_generator_state(self.step.step.masks.generator)
        self.capturing = True
        with torch.cuda.stream(self.stream):
            self.graphs[0].capture_begin(pool=self.pool)
            self.step._run(length)
            self.graphs[1].capture_end()
        self.capturing, self.captured = False, True
        torch.cuda.synchronize()


def build_call(recipe: str, batch: int, kind: str, device: torch.device) -> tuple[Callable[[], None], Any]:
    """One training step, ready to be called again and again, and its model."""
    config = load_recipe(recipe, {"batch": str(batch), "precision": "bfloat16"})
    torch.manual_seed(1)
    model = build_model(config, WORDS, device).train()
    optimizer = AveragedSGD(model.parameters(), clip=config.training.clip, weight_decay=1e-6)
    masks = Masks(torch.Generator(device).manual_seed(1))
    numbers = torch.Generator().manual_seed(1)
    text = torch.randint(WORDS, (STEPS + 1, batch), generator=numbers).to(device)

    def graphed(exchange: Callable[[Tensor], object] | None = None) -> GraphedStep:
        averaged = None if exchange is None else partial(average, exchange=exchange)
        return GraphedStep(
            TrainingStep(model, optimizer, masks, average=averaged, precision="bfloat16"), text
        )

    step: Any
    if kind == "none":
        step = graphed()
    elif kind == "around":
        step = SplitStep(graphed)
    else:
        step = graphed(dist.all_reduce if kind == "inside" else lambda flat: None)
    state = model.initial_state(batch)

    def call() -> None:
        nonlocal state
        optimizer.prepare_step(config.training.learning_rate)
        state, _ = step(0, STEPS, state)

    return call, model


def check(recipe: str, batch: int, device: torch.device) -> None:
    """Stop unless all kinds train the same model: the average over one rank changes nothing."""
    changes: dict[str, Tensor] = {}
    for kind in KINDS:
        call, model = build_call(recipe, batch, kind, device)
        before = torch.cat([one.detach().flatten().clone() for one in model.parameters()])
        for _ in range(CHECKED_STEPS):
            call()
        torch.cuda.synchronize()
        changes[kind] = torch.cat([one.detach().flatten() for one in model.parameters()]) - before
        error = relative_error(changes[kind], changes["none"])
        if not error <= CLOSE:
            sys.exit(
                f"batch {batch}, {kind}: the weights have a relative error of {error:.1e}; no times shown"
            )


def measure(recipe: str, batch: int, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """A row for each kind, and one for the all-reduce alone."""
    built = {kind: build_call(recipe, batch, kind, device) for kind in KINDS}
    count = sum(one.numel() for one in built["none"][1].parameters())
    flat = torch.zeros(count + 1, device=device)
    calls: dict[str, Callable[[], object]] = {kind: call for kind, (call, _) in built.items()}
    calls["all-reduce alone"] = lambda: dist.all_reduce(flat)
    for _ in range(3):  # eager, captured, replayed
        for call in calls.values():
            call()
    seconds = interleaved(calls, device, repeats)
    return [
        {
            "recipe": recipe,
            "batch": batch,
            "kind": kind,
            "ms": round(1e3 * seconds[kind], 4),
            "more than none, ms": round(1e3 * (seconds[kind] - seconds["none"]), 4)
            if kind in KINDS
            else None,
            "parameters": count,
        }
        for kind in calls
    ]


def main() -> None:
    """Measure all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="ptb-awd-pru-g4")
    parser.add_argument("--batches", default="20,80")
    parser.add_argument("--repeats", type=int, default=21, help="rounds, of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the record to this file")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        sys.exit("benchmarks/allreduce.py needs an NVIDIA GPU and a PyTorch with NCCL; there is none here")
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    rows = []
    try:
        for batch in map(int, arguments.batches.split(",")):
            check(arguments.recipe, batch, device)
            rows += measure(arguments.recipe, batch, device, arguments.repeats)
    finally:
        dist.destroy_process_group()
    for row in rows:
        more = row["more than none, ms"]
        print(
            f"batch {row['batch']:3d} {row['kind']:17s} {row['ms']:8.3f} ms"
            + ("" if more is None else f", {more:+.3f} ms beside none")
        )
    if arguments.json:
        about = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(device),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "repeats": arguments.repeats,
        }
        arguments.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
