"""Speed and memory of the PRU layer beside ``nn.LSTM`` in the same run.

    python benchmarks/layer.py                 # on the CPU
    python benchmarks/layer.py --json FILE     # and keep the tables as a record
    python benchmarks/layer.py --suite cells --suite packed    # other uses on a CPU; see suites.py
    python benchmarks/layer.py --suite few --one-thread-time   # CPU time of one thread: on a busy machine
    python benchmarks/layer.py --device cuda   # on an NVIDIA GPU
    python benchmarks/layer.py --device cuda --flashrnn   # and beside FlashRNN, where it is installed

First the outputs and gradients of what is timed are checked against float64; where they are off,
nothing is printed but the error. FlashRNN has as many heads as the PRU has groups. It is timed on whole
windows only: for another batch size it would compile its kernels again.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import flash
import torch
from checking import in_plain_code, relative_error
from suites import SUITES, Measure
from timing import captured, host_seconds, interleaved, peak_megabytes, table, write_record
from torch import Tensor, nn

from torch_pru import PRU

TOLERANCE = {  # of outputs and gradients, relative to float64 on the same rounded inputs
    ("cpu", torch.float32): (1e-4, 1e-4),
    ("cpu", torch.bfloat16): (4e-3, 1e-2),
    ("cuda", torch.float32): (1e-3, 2e-3),  # TF32: as many bits as float16
    ("cuda", torch.float16): (1e-3, 2e-3),
    ("cuda", torch.bfloat16): (4e-3, 1e-2),
}
FLASHRNN_TOLERANCE = 10  # times ours: it keeps cells and gates, and adds up gradients, in 16 bits


@dataclass(frozen=True)
class Case:
    """A layer of one width at one size of input, and its rival."""

    name: str
    width: int
    groups: int
    levels: int
    dtype: torch.dtype = torch.float32
    batch: int = 20
    steps: int = 70

    def pru(self, device: torch.device) -> PRU:
        residual = "auto" if self.levels > 1 else False  # one level and one group: an LSTM
        init = "orthogonal" if self.levels > 1 else "lstm"  # weights of a trained model's size
        options = {"levels": self.levels, "groups": self.groups, "residual": residual, "init": init}
        return PRU(self.width, self.width, **options).to(device, self.dtype)

    def lstm(self, device: torch.device) -> nn.LSTM:
        return nn.LSTM(self.width, self.width).to(device, self.dtype)

    def input(self, device: torch.device) -> Tensor:
        return torch.randn(self.steps, self.batch, self.width).to(device, self.dtype)


CPU_CASES = [
    Case("PRU 1400, g=4, K=2", 1400, 4, 2),
    Case("PRU 1024, g=4, K=2", 1024, 4, 2),
    Case("PRU 256, g=4, K=2", 256, 4, 2),
    Case("PRU 128, g=4, K=2", 128, 4, 2),
    Case("PRU 64, g=4, K=2", 64, 4, 2),
    Case("PRU 32, g=4, K=2", 32, 4, 2),
    Case("PRU 256, g=4, K=2, batch 4", 256, 4, 2, batch=4, steps=100),
    Case("PRU 256, g=4, K=2, batch 1", 256, 4, 2, batch=1, steps=100),
    Case("LSTM (g=1, K=1) 1000", 1000, 1, 1),
]
CUDA_CASES = [
    Case("PRU 1400, g=4, K=2", 1400, 4, 2, torch.float16),
    Case("PRU 1400, g=4, K=2", 1400, 4, 2, torch.bfloat16),
    Case("PRU 1400, g=4, K=2", 1400, 4, 2, torch.float32),
    Case("PRU 512, g=4, K=2", 512, 4, 2, torch.float16, batch=32),
    Case("PRU 512, g=4, K=2", 512, 4, 2, torch.bfloat16, batch=32),
    Case("PRU 512, g=4, K=2", 512, 4, 2, torch.float32, batch=32),
    Case("PRU 256, g=4, K=2", 256, 4, 2, torch.float16, batch=32),
    Case("PRU 256, g=4, K=2", 256, 4, 2, torch.float32, batch=32),
    Case("PRU 1200, g=2, K=2", 1200, 2, 2, torch.float16),
    Case("LSTM (g=1, K=1) 1000", 1000, 1, 1, torch.float16),
    Case("LSTM (g=1, K=1) 1024", 1024, 1, 1, torch.float16, batch=24),
    Case("LSTM (g=1, K=1) 1024", 1024, 1, 1, torch.bfloat16, batch=24),
    Case("LSTM (g=1, K=1) 1150", 1150, 1, 1, torch.bfloat16),
    Case("PRU 1400, g=4, K=2, large batch", 1400, 4, 2, torch.float16, batch=128),
    Case("PRU 2048, g=8, K=2, large batch", 2048, 8, 2, torch.float16, batch=256, steps=128),
]
# FlashRNN's fused kernels do not serve heads of 350: a case of 352, the same for all three.
FLASHRNN_CASES = [Case("PRU 1408, g=4, K=2", 1408, 4, 2, torch.bfloat16)]


def one_token(x: Tensor) -> Tensor:
    """The first step of the first column of x (T, B, M)."""
    return x[:1, :1].contiguous()


def forward(layer: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        layer(x)


def forward_backward(layer: nn.Module, x: Tensor) -> None:
    x = x.detach().requires_grad_()
    y, _ = layer(x)
    torch.autograd.grad(y, [x, *layer.parameters()], torch.ones_like(y))


def build_call(kind: str, case: Case, device: torch.device) -> Callable[[], None]:
    """A forward and backward pass, ready to run (in another process, for its memory)."""
    layer = case.pru(device) if kind == "pru" else case.lstm(device)
    return functools.partial(forward_backward, layer, case.input(device))


def relative_errors(layer: nn.Module, exact: nn.Module, x: Tensor) -> list[float]:
    """Of the output, then of each gradient, beside float64 on the same rounded weights and input."""
    weight = torch.randn_like(x)
    results = []
    for module, given in ((layer, x), (exact, x.double())):
        leaf = given.detach().requires_grad_()
        y, _ = module(leaf)
        gradients = torch.autograd.grad((y * weight).sum(), [leaf, *module.parameters()])
        results.append([y, *gradients])
    return [relative_error(ours, right) for ours, right in zip(*results, strict=True)]


@torch.no_grad()
def inference_error(layer: nn.Module, exact: nn.Module, x: Tensor) -> float:
    """Of the output where no gradient is wanted: other code may make it."""
    return relative_error(layer(x)[0], exact(x.double())[0])


def excess(errors: list[float], case: Case, device: torch.device) -> tuple[float, float]:
    """The error that is largest for what is allowed of it, and its ratio to that."""
    output, gradient = TOLERANCE[device.type, case.dtype]
    allowed = [output] + [gradient] * (len(errors) - 1)
    ratios = [error / bound for error, bound in zip(errors, allowed, strict=True)]
    worst = max(range(len(ratios)), key=lambda at: math.inf if math.isnan(ratios[at]) else ratios[at])
    return errors[worst], ratios[worst]


def check(case: Case, device: torch.device) -> None:
    """Stop unless outputs and gradients agree with float64, in all three uses that are timed."""
    torch.manual_seed(0)
    layer, x = case.pru(device), case.input(device)
    exact = in_plain_code(copy.deepcopy(layer).double())
    for errors in (
        relative_errors(layer, exact, x),
        [inference_error(layer, exact, x)],
        [inference_error(layer, exact, one_token(x))],
    ):
        error, ratio = excess(errors, case, device)
        if not ratio <= 1:
            allowed = f"{ratio:.1f} times what is allowed"
            sys.exit(f"{case.name} {case.dtype}: relative error {error:.1e}, {allowed}; no times shown")


def flashrnn_layer(case: Case, device: torch.device) -> tuple[flash.FlashLSTM | None, str]:
    """A layer on the first of FlashRNN's kernels that serve the case with the right numbers, and a remark."""
    remarks = []
    for backend, kernels in flash.KERNELS.items():
        torch.manual_seed(0)
        layer = flash.FlashLSTM(case.width, case.groups, case.batch, backend).to(device, case.dtype)
        exact = copy.deepcopy(layer).double()
        exact.backend = "reference"
        try:
            with flash.logged():
                error, ratio = excess(relative_errors(layer, exact, case.input(device)), case, device)
        except Exception as failure:  # of its compiler, its solver, a launch: it says which
            remarks.append(f"{kernels}: {flash.reason(failure, layer)}")
            flash.forget_failure(device)
            continue
        if ratio <= FLASHRNN_TOLERANCE:
            return layer, "; ".join([*remarks, f"{kernels}: relative error {error:.0e}"])
        remarks.append(f"{kernels}: relative error {error:.0e}, too large to be timed")
    return None, "; ".join(remarks)


def speed_rows(
    cases: list[Case], rivals: tuple[str, ...], device: torch.device, repeats: int
) -> list[tuple[str, ...]]:
    rows = []
    for case in cases:
        check(case, device)
        layers, x = {"PRU": case.pru(device), "nn.LSTM": case.lstm(device)}, case.input(device)
        if "FlashRNN" in rivals:
            layers["FlashRNN"], remark = flashrnn_layer(case, device)
        for what, run, given in (
            ("forward", forward, x),
            ("forward + backward", forward_backward, x),
            ("one token, batch 1", forward, one_token(x)),
        ):
            calls = {
                name: functools.partial(run, layer, given)
                for name, layer in layers.items()
                if layer is not None and (given is x or name != "FlashRNN")
            }
            size = f"T={given.shape[0]}, B={given.shape[1]}, {str(case.dtype).removeprefix('torch.')}"
            peak = peaks(case, layers.get("FlashRNN"), device) if run is forward_backward else ""
            row = (case.name, what, size, *times(calls, rivals, device, repeats), peak)
            if "FlashRNN" in rivals:
                row = (*row, remark if given is x else "not compiled for this batch")
            rows.append(row)
    return rows


def times(
    calls: dict[str, functools.partial[None]], rivals: tuple[str, ...], device: torch.device, repeats: int
) -> list[str]:
    """Milliseconds of each rival and PRU's share of nn.LSTM's.

    On a GPU as CUDA graphs, then call by call, then what the host alone needs for a call.
    """
    measured = [(interleaved(calls, device, repeats), calls)]
    if device.type == "cuda":
        graphs = {name: captured(call) if can_be_graph(call) else None for name, call in calls.items()}
        replays = {name: graphs[name] or call for name, call in calls.items()}
        measured.insert(0, (interleaved(replays, device, repeats), graphs))
        measured.append((host_seconds(calls, repeats), calls))
    cells = []
    for seconds, meant in measured:
        for name in rivals:
            mark = "" if meant.get(name) else " (not captured)"
            cells.append(f"{seconds[name] * 1e3:.3f}{mark}" if name in seconds else "")
        cells.append(f"{seconds['PRU'] / seconds['nn.LSTM']:.2f}")
    return cells


def can_be_graph(call: functools.partial[None]) -> bool:
    """Not where FlashRNN waits for the device: anywhere but in the forward pass of its fused kernels."""
    layer = call.args[0]
    return not isinstance(layer, flash.FlashLSTM) or (call.func is forward and layer.backend == "cuda_fused")


def peaks(case: Case, flashrnn: nn.Module | None, device: torch.device) -> str:
    megabytes = [peak_megabytes(build_call, kind, case, device, device=device) for kind in ("pru", "lstm")]
    if flashrnn is not None:  # compiled in this process: not built anew
        build = functools.partial(functools.partial, forward_backward)
        megabytes.append(peak_megabytes(build, flashrnn, case.input(device), device=device))
    return " / ".join(f"{value:.0f}" for value in megabytes)


def growth_rows(case: Case, device: torch.device, repeats: int) -> list[tuple[str, ...]]:
    """Forward and backward at doubled lengths and batches: cost must not grow faster than they do."""
    layer = case.pru(device)

    def seconds(steps: int, batch: int) -> float:
        x = torch.randn(steps, batch, case.width, device=device, dtype=case.dtype)
        return interleaved({"": functools.partial(forward_backward, layer, x)}, device, repeats)[""]

    rows = []
    for name, sizes in (
        ("steps T, batch 20", [(t, 20) for t in (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)]),
        ("batch B, 20 steps", [(20, b) for b in (1, 2, 4, 8, 16, 32, 64, 128, 256)]),
    ):
        times = [seconds(*size) for size in sizes]
        for (steps, batch), taken, before in zip(sizes[1:], times[1:], times, strict=False):
            value = steps if "steps" in name[:5] else batch
            rows.append((name, str(value), f"{taken * 1e3:.2f}", f"{taken / before:.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--growth", action="store_true", help="also show how cost grows with steps and batch")
    parser.add_argument("--flashrnn", action="store_true", help="also FlashRNN; compiles for minutes")
    parser.add_argument("--only", default="", help="only layers whose name contains this, say 1408")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only these rows")
    parser.add_argument(
        "--one-thread-time",
        action="store_true",
        help="with --suite: CPU time on one thread, not wall-clock time",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    arguments = parser.parse_args()
    if arguments.suite:
        run_suites(arguments)
        return
    device, rivals = arguments.device, ("PRU", "nn.LSTM")
    torch.backends.cuda.matmul.allow_tf32 = True  # the PRU's input transform; nn.LSTM's rounds so by default
    cases = CUDA_CASES if device.type == "cuda" else CPU_CASES
    if arguments.flashrnn:
        if device.type != "cuda" or not flash.installed():
            parser.error("--flashrnn needs --device cuda and FlashRNN: pip install flashrnn")
        flash.prepare()
        cases, rivals = [*cases, *FLASHRNN_CASES], (*rivals, "FlashRNN")
    cases = [case for case in cases if arguments.only in case.name]
    if not cases:
        parser.error(f"--only {arguments.only}: no layer has that in its name")
    rows = speed_rows(cases, rivals, device, arguments.repeats)
    columns = (*(f"{name} ms" for name in rivals), "PRU / nn.LSTM")
    if device.type == "cuda":  # a graph shows the device's time; a call takes the longer of device and host
        columns = tuple(f"{how}: {name}" for how in ("graph", "call", "host") for name in columns)
    remark = ("FlashRNN's kernels",) if arguments.flashrnn else ()
    sizes = ("layer", "what", "size", *columns)
    title = f"PRU beside {' and '.join(rivals[1:])} on {name_of(device)}, PyTorch {torch.__version__}"
    tables = [(title, (*sizes, "peak MB, " + " / ".join(rivals), *remark), rows)]
    if arguments.growth:
        header = ("grows", "to", "ms", "times the one before")
        rows = growth_rows(cases[0], device, arguments.repeats)
        tables.append(("Cost against size (forward + backward)", header, rows))
    for shown in tables:
        print(table(*shown))
    if arguments.json is not None:
        write_record(arguments.json, tables)


KEEP_MEMORY = "MALLOC_TRIM_THRESHOLD_"
"""Of glibc: how much free memory it keeps. By default it returns large results to the system."""


def run_suites(arguments: argparse.Namespace) -> None:
    """Print the tables of suites, and add them to a record."""
    device, one_thread = arguments.device, arguments.one_thread_time
    if one_thread:
        torch.set_num_threads(1)
    clock = time.thread_time if one_thread else time.perf_counter
    measure = Measure(
        arguments.repeats, clock, device, torch.float32 if device.type == "cpu" else torch.float16
    )
    where = name_of(device)
    if one_thread:
        where = "one CPU thread, CPU time"
    if KEEP_MEMORY in os.environ:
        where += ", malloc keeps its memory"
    for name in arguments.suite:
        title, header, rows = SUITES[name]
        shown = (f"{title}, on {where}, PyTorch {torch.__version__}", header, rows(measure))
        print(table(*shown), flush=True)
        if arguments.json is not None:
            write_record(arguments.json, [shown])


def name_of(device: torch.device) -> str:
    """The GPU, or the number of threads on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} CPU threads"


if __name__ == "__main__":
    main()
