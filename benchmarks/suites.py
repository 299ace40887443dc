"""Suites of rows for ``benchmarks/layer.py --suite``: what a CPU does besides one window of text."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timing import interleaved
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torch_pru import PRU, PRUCell

CPU = torch.device("cpu")
BOTH = ("forward", "forward + backward")
COMPARED = ("what", "size", "PRU ms", "nn.LSTM ms", "PRU / nn.LSTM")
Row = tuple[str, ...]


@dataclass(frozen=True)
class Measure:
    """How a suite takes its times."""

    repeats: int
    clock: Callable[[], float]
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def seconds(self, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
        return interleaved(calls, self.device, self.repeats, self.clock)

    def row(self, what: str, size: str, mine: Callable[[], object], other: Callable[[], object]) -> Row:
        taken = self.seconds({"mine": mine, "other": other})
        ratio = taken["mine"] / taken["other"]
        return what, size, *(f"{taken[name] * 1e3:.3f}" for name in ("mine", "other")), f"{ratio:.2f}"

    def rows(
        self, size: str, mine: nn.Module, other: nn.Module, *inputs: Any, autocast: bool = False
    ) -> list[Row]:
        """A forward pass, and one with backward, of two modules."""
        run = functools.partial(run_module, inputs=inputs, autocast=autocast)
        return [
            self.row(what, size, functools.partial(run, mine, what), functools.partial(run, other, what))
            for what in BOTH
        ]


def run_module(module: nn.Module, what: str, inputs: tuple[Any, ...], autocast: bool = False) -> None:
    """One pass over inputs, which may be pairs of states; with gradients of all of them and the weights."""
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    if what == "forward":
        with torch.no_grad(), context:
            module(*inputs)
        return
    leaves: list[Tensor] = []
    with context:
        results = list(tensors_of(module(*(as_leaves(given, leaves) for given in inputs))))
    result = results if isinstance(module, PRUCell | nn.LSTMCell) else results[:1]
    torch.autograd.grad(result, [*leaves, *module.parameters()], [torch.ones_like(one) for one in result])


def as_leaves(given: Any, leaves: list[Tensor]) -> Any:
    if isinstance(given, PackedSequence):
        return given
    if isinstance(given, tuple):
        return tuple(as_leaves(one, leaves) for one in given)
    leaves.append(given.detach().requires_grad_())
    return leaves[-1]


def tensors_of(results: Any) -> Iterator[Tensor]:
    if isinstance(results, PackedSequence):
        yield results.data
    elif isinstance(results, Tensor):
        yield results
    else:
        for one in results:
            yield from tensors_of(one)


def layers(width: int, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[PRU, nn.LSTM]:
    """A PRU with the structure that it has by default, and the LSTM of its width."""
    torch.manual_seed(0)
    pru = PRU(width, width, init="orthogonal", **options)
    return pru.to(dtype), nn.LSTM(width, width, **options).to(dtype)


def cells(measure: Measure) -> list[Row]:
    rows = []
    for width, batch in ((32, 1), (32, 16), (64, 16), (256, 1), (256, 16)):
        pair = (PRUCell(width, width, levels=2, groups=4), nn.LSTMCell(width, width))
        x, h, c = (torch.randn(batch, width) for _ in range(3))
        rows += measure.rows(f"{width} units, B={batch}", *pair, x, (h, c))
    return rows


def bfloat16(measure: Measure) -> list[Row]:
    rows = []
    for width in (32, 64, 128, 256, 512, 1400):
        x = torch.randn(70, 20, width)
        weights, autocast = layers(width, torch.bfloat16), layers(width)
        rows += measure.rows(f"{width} units, weights", *weights, x.bfloat16())
        rows += measure.rows(f"{width} units, autocast", *autocast, x, autocast=True)
    return rows


WIDTHS = (32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 132, 160, 200, 255, 256, 257, 320, 384, 511, 512)
"""Across every threshold: of vectors, panels, groups and threads."""


def sweep(steps: int, batch: int, measure: Measure) -> list[Row]:
    rows = []
    for width in WIDTHS:
        x = torch.randn(steps, batch, width)
        rows += measure.rows(f"{width} units, T={steps}, B={batch}", *layers(width), x)
    return rows


def few_steps(measure: Measure) -> list[Row]:
    rows = []
    for steps in range(1, 8):
        for batch in (1, 20):
            rows += measure.rows(
                f"32 units, T={steps}, B={batch}", *layers(32), torch.randn(steps, batch, 32)
            )
    return rows


def packed(measure: Measure) -> list[Row]:
    """Two layers in both directions over sequences of 10 to 70 steps."""
    rows = []
    for width, batch in ((32, 20), (64, 20), (256, 20), (256, 64)):
        pair = [
            layer.to(measure.device)
            for layer in layers(width, measure.dtype, num_layers=2, bidirectional=True)
        ]
        lengths = torch.randint(10, 71, (batch,)).tolist()
        sequences = [torch.randn(length, width).to(measure.device, measure.dtype) for length in lengths]
        x = pack_sequence(sequences, enforce_sorted=False)
        rows += measure.rows(f"{width} units, B={batch}", *pair, x)
    return rows


def growth(measure: Measure) -> list[Row]:
    rows = []
    for width in (32, 64, 256, 512):
        pru, _ = layers(width)
        for name, small, large in (("T", (100, 20), (1000, 20)), ("B", (20, 64), (20, 256))):
            at = 0 if name == "T" else 1
            for what in BOTH:
                calls = [
                    functools.partial(run_module, pru, what, (torch.randn(*size, width),))
                    for size in (large, small)
                ]
                for call in calls:  # the first calls with large tensors wait for the system's memory
                    for _ in range(10):
                        call()
                size = f"{width} units, {name}={large[at]} / {name}={small[at]}"
                rows.append(measure.row(what, size, *calls))
    return rows


def compiled(measure: Measure) -> list[Row]:
    rows = []
    for width in (32, 64, 256):
        pru, _ = layers(width)
        x = torch.randn(70, 20, width)
        size = f"{width} units, T=70, B=20"
        with torch.no_grad():
            traced = torch.jit.trace(pru, (x,), check_trace=False)
        forms = {"compiled": torch.compile(pru), "traced": traced}
        for name, module in forms.items():
            for what in BOTH if name == "compiled" else BOTH[:1]:
                run = functools.partial(run_module, module, what, (x,))
                run()
                eager = functools.partial(run_module, pru, what, (x,))
                rows.append(measure.row(f"{name}, {what}", size, run, eager))
        rows += [new_length(forms["compiled"], width, steps) for steps in (83, 90)]
    return rows + compiled_product(measure)


def compiled_product(measure: Measure) -> list[Row]:
    """What a call of anything compiled costs: one small product, which a compiler cannot make faster."""
    product, x = nn.Linear(32, 32), torch.randn(20, 32)
    module, size = torch.compile(product), "nn.Linear, 32 units, B=20"
    rows = []
    for what in BOTH:
        calls = [functools.partial(run_linear, one, what, x) for one in (module, product)]
        calls[0]()
        rows.append(measure.row(f"compiled, {what}", size, *calls))
    return rows


def run_linear(module: Callable[[Tensor], Tensor], what: str, x: Tensor) -> None:
    """A pass of a module without states."""
    if what == "forward":
        with torch.no_grad():
            module(x)
        return
    given = x.detach().requires_grad_()
    y = module(given)
    torch.autograd.grad(y, [given], torch.ones_like(y))


def new_length(module: Callable[[Tensor], object], width: int, steps: int) -> Row:
    """The first call at another length, which may compile again."""
    start = time.perf_counter()
    with torch.no_grad():
        module(torch.randn(steps, 20, width))
    taken = f"{(time.perf_counter() - start) * 1e3:.0f}"
    return "compiled, first call at this length", f"{width} units, T={steps}, B=20", taken, "", ""


Suite = tuple[str, tuple[str, ...], Callable[[Measure], list[Row]]]
SUITES: dict[str, Suite] = {
    "cells": ("PRUCell beside nn.LSTMCell", COMPARED, cells),
    "bfloat16": ("bfloat16, T=70, B=20", COMPARED, bfloat16),
    "few": ("Few steps", COMPARED, few_steps),
    "packed": ("Packed, two layers, both directions", COMPARED, packed),
    "growth": ("Cost against size", ("what", "size", "larger ms", "smaller ms", "ratio"), growth),
    "compiled": ("Compiled and traced beside eager", ("what", "size", "ms", "eager ms", "ratio"), compiled),
} | {
    f"sweep-{steps}-{batch}": (
        f"Widths, T={steps}, B={batch}",
        COMPARED,
        functools.partial(sweep, steps, batch),
    )
    for steps in (100, 500)
    for batch in (1, 4)
}
