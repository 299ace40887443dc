"""Speed and memory of the PRU layer beside ``nn.LSTM`` in the same run.

    python benchmarks/layer.py                 # on the CPU
    python benchmarks/layer.py --device cuda   # on an NVIDIA GPU

First the outputs and gradients of what is timed are checked against float64; where they are off,
nothing is printed but the error.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from timing import captured, interleaved, peak_megabytes, table
from torch import Tensor, nn

from torch_pru import PRU

TOLERANCE = {  # of outputs and gradients, relative to float64 on the same rounded inputs
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-3, 2e-3),
    torch.bfloat16: (4e-3, 1e-2),
}


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


CPU_CASES = [Case("PRU 1400, g=4, K=2", 1400, 4, 2)]
CUDA_CASES = [
    Case("PRU 1400, g=4, K=2", 1400, 4, 2, torch.float16),
    Case("PRU 1400, g=4, K=2", 1400, 4, 2, torch.bfloat16),
    Case("PRU 1200, g=2, K=2", 1200, 2, 2, torch.float16),
    Case("LSTM (g=1, K=1) 1000", 1000, 1, 1, torch.float16),
    Case("LSTM (g=1, K=1) 1024", 1024, 1, 1, torch.float16, batch=24),
    Case("LSTM (g=1, K=1) 1150", 1150, 1, 1, torch.bfloat16),
]


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


def check(case: Case, device: torch.device) -> None:
    """Stop unless outputs and gradients agree with float64 on the same rounded weights and input."""
    torch.manual_seed(0)
    layer, x = case.pru(device), case.input(device)
    exact = copy.deepcopy(layer).double()
    exact.cells[0].backend = "reference"
    weight = torch.randn_like(x)
    results = []
    for module, given in ((layer, x), (exact, x.double())):
        leaf = given.detach().requires_grad_()
        y, _ = module(leaf)
        gradients = torch.autograd.grad((y * weight).sum(), [leaf, *module.parameters()])
        results.append([y, *gradients])
    bounds = [TOLERANCE[case.dtype][0]] + [TOLERANCE[case.dtype][1]] * (len(results[0]) - 1)
    for ours, theirs, bound in zip(*results, bounds, strict=True):
        error = ((ours - theirs).norm() / theirs.norm()).item()
        if not error <= bound:
            sys.exit(
                f"{case.name} {case.dtype}: relative error {error:.1e}, allowed {bound:.0e}; no times shown"
            )


def speed_rows(cases: list[Case], device: torch.device, repeats: int) -> list[tuple[str, ...]]:
    rows = []
    for case in cases:
        check(case, device)
        layers, x = {"PRU": case.pru(device), "nn.LSTM": case.lstm(device)}, case.input(device)
        for what, run, given in (
            ("forward", forward, x),
            ("forward + backward", forward_backward, x),
            ("one token, batch 1", forward, x[:1, :1].contiguous()),
        ):
            calls = {name: functools.partial(run, layer, given) for name, layer in layers.items()}
            size = f"T={given.shape[0]}, B={given.shape[1]}, {str(case.dtype).removeprefix('torch.')}"
            peak = peaks(case, device) if run is forward_backward else ""
            rows.append((case.name, what, size, *times(calls, device, repeats), peak))
    return rows


def times(calls: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> tuple[str, ...]:
    """Milliseconds of PRU and nn.LSTM and their ratio; on a GPU first as CUDA graphs, then call by call."""
    plain = interleaved(calls, device, repeats)
    shown = [(plain, "")]
    if device.type == "cuda":
        graphs = {name: captured(call) for name, call in calls.items()}
        replays = {name: graphs[name] or calls[name] for name in calls}
        mark = "" if all(graphs.values()) else " (nn.LSTM not captured)"
        shown.insert(0, (interleaved(replays, device, repeats), mark))
    cells = []
    for seconds, mark in shown:
        pru, lstm = seconds["PRU"], seconds["nn.LSTM"]
        cells += [f"{pru * 1e3:.3f}", f"{lstm * 1e3:.3f}{mark}", f"{pru / lstm:.2f}"]
    return tuple(cells)


def peaks(case: Case, device: torch.device) -> str:
    megabytes = [peak_megabytes(build_call, kind, case, device, device=device) for kind in ("pru", "lstm")]
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
        for (steps, batch), time, before in zip(sizes[1:], times[1:], times, strict=False):
            value = steps if "steps" in name[:5] else batch
            rows.append((name, str(value), f"{time * 1e3:.2f}", f"{time / before:.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--repeats", default=5, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--growth", action="store_true", help="also show how cost grows with steps and batch")
    arguments = parser.parse_args()
    device = arguments.device
    cases = CUDA_CASES if device.type == "cuda" else CPU_CASES
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    rows = speed_rows(cases, device, arguments.repeats)
    columns = ("PRU ms", "nn.LSTM ms", "ratio")
    if device.type == "cuda":  # a graph shows the device's time; call by call, the host's is in it too
        columns = (*(f"graph: {name}" for name in columns), *(f"call: {name}" for name in columns))
    header = ("layer", "what", "size", *columns, "peak MB, PRU / LSTM")
    print(table(f"PRU beside nn.LSTM on {where}, PyTorch {torch.__version__}", header, rows))
    if arguments.growth:
        rows = growth_rows(cases[0], device, arguments.repeats)
        print(
            table(
                "Cost against size (forward + backward)", ("grows", "to", "ms", "times the one before"), rows
            )
        )


if __name__ == "__main__":
    main()
