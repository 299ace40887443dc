"""Calls of every GPU wrapper, for a set of shapes and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from filling import fill, waves
from pieces import run, token_model
from shapes import AMPERE, HOPPER
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from torch_pru import PRU
from torch_pru.ops.cuda.plan import Device

FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16

# label: sizes, options, steps, batch, dtype, and what is special
LAYERS: dict[str, tuple[tuple[int, ...], dict[str, Any], int, int, torch.dtype, set[str]]] = {
    "autocast": ((40, 48), {"levels": 2, "groups": 4}, 5, 3, BRAIN, {"autocast"}),
    "half": ((40, 48), {"levels": 2, "groups": 4}, 5, 3, HALF, set()),
    "tf32": ((40, 48), {"levels": 2, "groups": 4}, 5, 3, FLOAT, set()),
    "tf32 states": ((40, 48), {"levels": 2, "groups": 4}, 4, 3, FLOAT, {"states"}),
    "residual": ((48, 48), {"levels": 2, "groups": 4}, 3, 2, BRAIN, {"autocast", "states"}),
    "states in half": ((16, 24), {"levels": 1, "groups": 2}, 3, 2, HALF, {"states"}),
    "no bias": ((16, 24), {"levels": 2, "groups": 2, "bias": False}, 3, 2, BRAIN, {"autocast"}),
    "packed": (
        (20, 24, 2),
        {"levels": 2, "groups": 2, "bidirectional": True},
        6,
        3,
        BRAIN,
        {"autocast", "packed", "states"},
    ),
    "packed tf32": ((20, 24), {"levels": 1, "groups": 2, "bidirectional": True}, 6, 3, FLOAT, {"packed"}),
    "one step": ((20, 24), {"levels": 2, "groups": 2}, 1, 2, HALF, {"states"}),
    "token": ((20, 24), {"levels": 2, "groups": 2}, 1, 2, BRAIN, {"autocast", "inference", "states"}),
    "token tf32": ((20, 24), {"levels": 2, "groups": 2}, 1, 2, FLOAT, {"inference"}),
    "inference": ((20, 24), {"levels": 2, "groups": 2}, 4, 3, HALF, {"inference"}),
    "grid": ((16, 96), {"levels": 2, "groups": 1}, 3, 2, HALF, {"ampere", "states"}),
    "grid tf32": ((16, 96), {"levels": 2, "groups": 2}, 3, 2, FLOAT, {"ampere"}),
    "three levels": (
        (64, 64),
        {"levels": 3, "groups": 4, "pool_window": (5, 3)},
        3,
        2,
        BRAIN,
        {"autocast"},
    ),
    "skip": ((36, 20), {"levels": 3, "groups": 2, "pooling": "skip"}, 3, 2, BRAIN, {"autocast"}),
    "max": ((36, 20), {"levels": 2, "groups": 2, "pooling": "max"}, 3, 2, BRAIN, {"autocast"}),
    "convolution": (
        (36, 20),
        {"levels": 2, "groups": 2, "pooling": "convolution"},
        3,
        2,
        BRAIN,
        {"autocast"},
    ),
    "grouped input": (
        (36, 20),
        {"groups": 2, "input_transform": "grouped", "context_transform": "linear"},
        3,
        2,
        BRAIN,
        {"autocast"},
    ),
    "pyramidal context": (
        (36, 20),
        {"levels": 2, "input_transform": "linear", "context_transform": "pyramidal"},
        3,
        2,
        BRAIN,
        {"autocast"},
    ),
    "input groups": ((32, 32), {"levels": 2, "groups": 2, "input_groups": 2}, 3, 2, BRAIN, {"autocast"}),
    "odd groups": ((10, 14), {"levels": 2, "groups": 2}, 3, 2, BRAIN, {"autocast"}),
    "paper": ((400, 1400), {"levels": 2, "groups": 4}, 2, 20, BRAIN, {"autocast", "states"}),
    "weight drop": (
        (20, 24),
        {"levels": 2, "groups": 2, "weight_drop": 0.5},
        3,
        2,
        BRAIN,
        {"autocast", "states"},
    ),
    "weight drop tf32": ((20, 24), {"levels": 2, "groups": 2, "weight_drop": 0.5}, 3, 2, FLOAT, set()),
}


def run_layer(name: str) -> list[Tensor]:
    """Outputs, states and gradients of one of ``LAYERS``; call it inside a dry run or outside."""
    sizes, options, steps, batch, dtype, special = LAYERS[name]
    pru = fill(PRU(*sizes, init="lstm", **options))
    if "autocast" not in special:
        pru = pru.to(dtype)
    pru.generator = torch.Generator().manual_seed(3)
    x = waves(steps, batch, sizes[0], seed=7).to(dtype).requires_grad_()
    given: Any = x
    if "packed" in special:
        given = pack_padded_sequence(x, torch.tensor([steps, *range(steps - 1, steps - batch, -1)]))
    states = None
    if "states" in special:
        rows = pru.num_layers * (2 if pru.bidirectional else 1)
        shape = (rows, batch, pru.hidden_size)
        kind = FLOAT if "autocast" in special else dtype
        h0, c0 = waves(*shape, seed=8).to(dtype), waves(*shape, seed=9).to(kind)
        states = h0.requires_grad_(), c0.requires_grad_()
    learn = torch.set_grad_enabled("inference" not in special)
    with learn, torch.autocast("cpu", dtype, enabled="autocast" in special):
        y, (h, c) = pru(given, states)
    y = y.data if "packed" in special else y
    results = [y, h, c]
    if "inference" in special:
        return results
    loss = (y.float() * waves(*y.shape, seed=4)).sum() + h.float().square().sum() + c.float().sum()
    inputs = [x, *(states or ()), *pru.parameters()]
    return [*results, *torch.autograd.grad(loss, inputs)]


def device_of(name: str) -> Device:
    return AMPERE if "ampere" in LAYERS[name][-1] else HOPPER


# ---------------------------------------------------------------------- the other pieces


def mask(*shape: int) -> Tensor:
    return (waves(*shape, seed=2) > -0.2).to(torch.uint8)


def drop(start: torch.dtype, end: torch.dtype, columns: int = 4) -> list[Tensor]:
    values = waves(3, columns, 6).to(start).requires_grad_()
    results = []
    for given in (mask(3, columns, 6), mask(1, columns + 2, 6)[:, 1 : columns + 1]):
        out = run("drop", values, given, 0.6, end)
        results += [out, *torch.autograd.grad(out, values, waves(3, columns, 6, seed=5).to(end))]
    return results


def add_rows(width: int, gap: int) -> list[Tensor]:
    table = waves(9, width + gap)[:, :width]
    run("add_rows", table, torch.tensor([3, 0, 3, 8]), waves(4, width, seed=1))
    return [table]


def cross_entropy(dtype: torch.dtype, learn: bool, words: int = 37) -> list[Tensor]:
    hidden, weight, bias = waves(5, 12).to(dtype), waves(words, 12, seed=1), waves(words, seed=2)
    inputs = [tensor.requires_grad_(learn) for tensor in (hidden, weight, bias)]
    with torch.autocast("cpu", dtype):
        losses = run("cross_entropy", *inputs, torch.tensor([0, 36, 5, 5, 9]))
    return [losses, *(torch.autograd.grad(losses, inputs, waves(5, seed=3)) if learn else ())]


def penalties(dtype: torch.dtype, ar: bool = True, tar: bool = True) -> list[Tensor]:
    values = [waves(4, 3, 6, seed=s).to(dtype).requires_grad_() for s in (1, 2)]
    dropped, raw = values[0] if ar else None, values[1] if tar else None
    total = run("penalties", dropped, raw, 2.0 if ar else 0.0, 0.5 if tar else 0.0)
    wanted = [value for value, used in zip(values, (ar, tar), strict=True) if used]
    return [total, *torch.autograd.grad(total * 3, wanted)]


def sgd(count: int, averaged: bool, watched: bool, scale: float | None = None) -> list[Tensor]:
    weights = [waves(4, 3 + n % 5, seed=n) for n in range(count)]
    gradients = [waves(4, 8, seed=-n - 1)[:, : 3 + n % 5] for n in range(count)]
    gradients[::3] = [waves(3 + n % 5, 4, seed=-n - 1).t() for n in range(0, count, 3)]
    averages = [waves(4, 3 + n % 5, seed=n + 0.5) for n in range(count)] if averaged else None
    watch = (torch.tensor(2.5), torch.tensor(6), torch.tensor(-1)) if watched else None
    norm = run(
        "sgd_update",
        weights,
        gradients,
        averages,
        rate=torch.tensor(0.5),
        share=torch.tensor(0.25),
        factor=None if scale is None else torch.tensor(scale),
        watch=watch,
        clip=0.25,
        decay=1e-3,
    )
    return [norm, *weights, *(averages or ()), *(watch or ())]


def dynamic(count: int) -> list[Tensor]:
    seeds = (0, 0.3, 0.6, 0.9)
    drawn = ([waves(2, 3 + n % 4, seed=n + seed) for n in range(count)] for seed in seeds)
    weights, trained, gradients, rms = drawn
    rms = [each.abs() for each in rms]
    update = run("dynamic_update", weights, trained, rms)
    update.prepare(0.1, torch.tensor(0.4), 1e-3)
    update.apply(tuple(gradients), 7)
    return weights


def token(dtype: torch.dtype, bias: bool) -> list[Tensor]:
    embedding = waves(11, 12).to(dtype)
    layers = [fill(PRU(12, 16, levels=1, groups=2, bias=bias, residual=False, init="lstm")),
              fill(PRU(16, 12, levels=1, groups=1, bias=bias, residual=False, init="lstm")),
              fill(PRU(12, 12, levels=1, groups=2, bias=bias, residual=True, init="lstm"))]  # fmt: skip
    model = token_model(embedding, [layer.to(dtype) for layer in layers], waves(11, seed=3))
    state = [(waves(1, size, seed=size).to(dtype), waves(1, size, seed=-size)) for size in (16, 12, 12)]
    scores, state = model.read(torch.tensor([4]), state)
    words = torch.zeros(3, 1, dtype=torch.int64)
    after, state = model.find(words, scores, state)
    return [scores, words, after, *(tensor for pair in state for tensor in pair)]


PIECES: dict[str, Callable[[], list[Tensor]]] = {
    "drop float32": lambda: drop(FLOAT, FLOAT),
    "drop to bfloat16": lambda: drop(FLOAT, BRAIN),
    "drop from float16": lambda: drop(HALF, FLOAT, columns=5),
    "drop float16": lambda: drop(HALF, HALF, columns=1),
    "add_rows packed": lambda: add_rows(8, 4),
    "add_rows odd": lambda: add_rows(7, 0),
    "cross entropy": lambda: cross_entropy(BRAIN, learn=True),
    "cross entropy half": lambda: cross_entropy(HALF, learn=True, words=40),
    "cross entropy, no gradient": lambda: cross_entropy(BRAIN, learn=False),
    "penalties": lambda: penalties(BRAIN),
    "penalties float32": lambda: penalties(FLOAT),
    "AR": lambda: penalties(HALF, tar=False),
    "TAR": lambda: penalties(FLOAT, ar=False),
    "sgd": lambda: sgd(5, averaged=False, watched=True),
    "sgd averaged": lambda: sgd(70, averaged=True, watched=True),
    "sgd scaled": lambda: sgd(3, averaged=True, watched=False, scale=8.0),
    "dynamic": lambda: dynamic(3),
    "dynamic, many": lambda: dynamic(70),
    "token": lambda: token(BRAIN, bias=True),
    "token without bias": lambda: token(HALF, bias=False),
}
