"""Check, then time, the fused recurrence alone (no input transform): forward, and backward, all gradients.

    python benchmarks/kernels.py [--shapes 4x350x20 1x1000x20 ...] [--steps 70] [--dtype float16]
    python benchmarks/kernels.py --without-clusters   # the kernels that GPUs before Hopper run
    python benchmarks/kernels.py --json FILE          # and keep the table as a record

A shape is groups x units x batch. The shapes run in another process, which is stopped if one hangs.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

Row = tuple[str, ...]
HEADER = ("groups x units x batch", "forward", "saving", "backward", "output error", "gradient error")
SHAPES = ("4x350x20", "4x350x80", "4x350x1", "4x100x20", "2x600x20", "2x200x20", "1x400x20", "1x600x20")
SHAPES += ("1x1000x20", "1x1024x24", "1x1150x20", "1x1200x20", "1x1400x20")
LIMIT_SECONDS = 60
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cuda"))


def median_microseconds(work, repeats: int = 20) -> float:
    """Device time of one call, as a captured graph: launch gaps of the host stay out."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000)
    return sorted(times)[repeats // 2]


def worst_errors(problem, dtype) -> tuple[float, float]:
    """Of all outputs, of both forward passes that are timed, and of all gradients; stop where one is off."""
    import torch
    from literal import OUTPUTS, compare, run_fused

    from torch_pru.ops import cuda
    from torch_pru.ops.spec import RecurrenceCall

    results = run_fused(problem)
    inferred = cuda.forward(RecurrenceCall(*problem.inputs.values(), None), False)[: len(OUTPUTS)]
    errors = compare(problem, results)
    inference_errors = compare(problem, results | dict(zip(OUTPUTS, inferred, strict=True)))
    outputs = {name: errors.pop(name) for name in OUTPUTS}
    outputs |= {f"{name} of inference": inference_errors[name] for name in OUTPUTS}
    bounds = (4e-3, 1e-2) if dtype == torch.bfloat16 else (1e-3, 2e-3)
    for kind, bound in zip((outputs, errors), bounds, strict=True):
        off = {name: error for name, error in kind.items() if not error < bound}  # so a NaN is off
        if off:
            sys.exit(f"the numbers are off: {off}")
    return max(outputs.values()), max(errors.values())


def without_clusters() -> None:
    """Plan as for a GPU before Hopper, which has no thread-block clusters."""
    from torch_pru.ops.cuda import plan

    plan.team = lambda device, size: None


def measure(shape: str, steps: int, dtype_name: str) -> Row:
    import torch
    from literal import make_problem

    from torch_pru.ops import cuda
    from torch_pru.ops.spec import RecurrenceCall, SavedRecurrence

    groups, units, batch = (int(n) for n in shape.split("x"))
    dtype = getattr(torch, dtype_name)
    as_read = {"unit_major": dtype != torch.float32}  # the layout that needs no copy
    problem = make_problem(steps, batch, groups, units, dtype, seed=1, **as_read)
    worst_output, worst_gradient = worst_errors(problem, dtype)
    x = problem.inputs
    call = RecurrenceCall(x["gates"], x["weight"], x["bias"], x["h0"], x["c0"], None)
    out, _, _, activations, cells = cuda.forward(call, True)
    kept = SavedRecurrence(x["weight"], x["h0"], x["c0"], out, activations, cells, None, False)
    grads = problem.grads

    def infer():
        cuda.forward(call, False)

    def train():
        cuda.forward(call, True)

    def back():
        cuda.backward(*grads, kept)

    times = (f"{median_microseconds(work):.1f}" for work in (infer, train, back))
    return shape, *times, f"{worst_output:.1e}", f"{worst_gradient:.1e}"


def rows_of(arguments: argparse.Namespace) -> Iterator[Row]:
    """A row for each shape. A process that hangs or fails is replaced by another, which takes the rest."""
    shapes = [*arguments.shapes]
    while shapes:
        rows = [*from_process(arguments, shapes)]
        yield from rows
        del shapes[: len(rows)]


def from_process(arguments: argparse.Namespace, shapes: list[str]) -> Iterator[Row]:
    """Rows of these shapes in order, up to one that ends the process."""
    command = [sys.executable, __file__, "--steps", str(arguments.steps), "--dtype", arguments.dtype]
    command += ["--without-clusters"] * arguments.without_clusters + ["--here", "--shapes", *shapes]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for shape in shapes:
            stop = threading.Timer(LIMIT_SECONDS, process.kill)
            stop.start()
            line = process.stdout.readline()
            stop.cancel()
            if line:
                yield tuple(json.loads(line))
                continue
            errors.seek(0)
            hung = process.wait() == -signal.SIGKILL
            why = f"stopped after {LIMIT_SECONDS} s" if hung else f"failed: {errors.read()[-900:]}"
            yield (shape, why, *[""] * 4)
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument(
        "--without-clusters", action="store_true", help="the kernels that GPUs before Hopper run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    arguments = parser.parse_args()
    if arguments.without_clusters:
        without_clusters()
    if arguments.here:
        for shape in arguments.shapes:
            print(json.dumps(measure(shape, arguments.steps, arguments.dtype)), flush=True)
        return
    import torch
    from timing import place, table, write_record

    if not torch.cuda.is_available():
        sys.exit("the kernels run on an NVIDIA GPU, and there is none here")
    rows = list(rows_of(arguments))
    which = "kernels without clusters" if arguments.without_clusters else "kernels"
    where = place(torch.device("cuda"))
    title = f"The {which}, {arguments.dtype}, T={arguments.steps}, microseconds, on {where}"
    results = (title, HEADER, rows)
    print(table(*results))
    if arguments.json is not None:
        write_record(arguments.json, [results])
    if any(row[-1] == "" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
