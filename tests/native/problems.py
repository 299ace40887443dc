"""Random problems for the CPU kernels, and their comparison with the literal computation."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torch_pru.ops.native.operators import Arguments, forward, padded

from . import literal

BOUND = 2e-5  # of outputs and gradients in float32, relative to the largest value
BFLOAT16_BOUND = 2e-2  # where factors of products are rounded


def run(given: Arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The output (T, B, M) and the last states (B, M)."""
    out, hn, cn, _, _ = forward(*given, False)
    return out, hn.squeeze(0), cn.squeeze(0)


@dataclass(frozen=True)
class Problem:
    """A call of ``torch_pru::cpu_layer``."""

    tensors: dict[str, Tensor | None]  # x, context, bias, h0, c0, and w0, w1, … for the levels
    windows: list[int]
    lengths: list[int] | None
    residual: bool
    reverse: bool
    bfloat16: bool = False

    def arguments(self, tensors: dict[str, Tensor | None]) -> Arguments:
        x, context, *others = (tensors[name] for name in ("x", "context", "bias", "h0", "c0"))
        assert x is not None
        assert context is not None
        matrices: list[Any] = [tensors[f"w{level}"] for level in range(len(self.windows))]
        lengths = None if self.lengths is None else torch.tensor(self.lengths)
        settings = (self.windows, self.residual, self.reverse, self.bfloat16)
        return Arguments(x, *padded(matrices), context, *others, lengths, *settings)

    def run(self, tensors: dict[str, Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
        return run(self.arguments(tensors))

    def run_literally(self, tensors: dict[str, Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
        x = tensors["x"]
        assert x is not None
        matrices: list[Any] = [tensors[f"w{level}"] for level in range(len(self.windows))]
        gates = (
            literal.input_gates(x, matrices, self.windows, self.residual)
            if matrices
            else x.unflatten(2, (4, -1))
        )
        others = (tensors[name] for name in ("context", "bias", "h0", "c0"))
        return literal.recurrence(gates, *others, self.lengths, self.reverse)

    def leaves(self, dtype: torch.dtype) -> dict[str, Tensor | None]:
        return {
            name: None if tensor is None else tensor.detach().to(dtype).requires_grad_()
            for name, tensor in self.tensors.items()
        }


def draw(seed: int) -> Problem:
    """Odd sizes of everything, any layout of the input."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    pick = chance.choice
    width, groups = pick([1, 2, 3, 5, 8, 9, 16, 17, 33, 70, 130]), pick([1, 2, 3, 4, 5])
    hidden, batch, steps = width * groups, pick([1, 2, 3, 8, 13, 20]), pick([1, 2, 3, 7])
    levels = pick([0, 1, 2, 3]) if hidden >= 8 else pick([0, 1])
    below = [-(-hidden // 2 ** (level + 1)) for level in range(1, levels)]
    sizes = [hidden - sum(below), *below] if levels else []
    input_groups = pick([1, 2]) if all(size % 2 == 0 for size in sizes) else 1
    residual = levels > 0 and hidden % (2**levels * input_groups) == 0 and pick([True, False])
    features = hidden if residual else 2 ** max(0, levels - 1) * input_groups * pick([1, 3, 7, 20])
    features = features if levels else 4 * hidden
    tensors: dict[str, Tensor | None] = {
        "x": pick([_plain, _batch_first, _slice, _features_apart])(steps, batch, features),
        "context": torch.randn(4 * hidden, width) / width**0.5,
        "bias": pick([torch.randn(4 * hidden), None]),
    }
    tensors |= {name: pick([torch.randn(batch, hidden), None]) for name in ("h0", "c0")}
    for level, size in enumerate(sizes):
        columns = features // 2**level // input_groups
        tensors[f"w{level}"] = torch.randn(4 * size, columns) / columns**0.5
    lengths = pick([None, [chance.randint(1, steps) for _ in range(batch)]])
    windows = [1, *(pick([1, 3, 5]) for _ in sizes[1:])] if sizes else []
    return Problem(tensors, windows, lengths, residual, pick([True, False]))


def _plain(steps: int, batch: int, features: int) -> Tensor:
    return torch.randn(steps, batch, features)


def _batch_first(steps: int, batch: int, features: int) -> Tensor:
    return torch.randn(batch, steps, features).transpose(0, 1)


def _slice(steps: int, batch: int, features: int) -> Tensor:
    return torch.randn(steps, batch + 1, features + 5)[:, 1:, 2 : features + 2]


def _features_apart(steps: int, batch: int, features: int) -> Tensor:
    return torch.randn(features, steps, batch).permute(1, 2, 0)


def outcome(run, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Results and the gradients of a fixed random weighting of them."""
    results = run(tensors)
    generator = torch.Generator().manual_seed(1)
    factors = [torch.randn(result.shape, generator=generator).to(result.dtype) for result in results]
    loss = sum((result * factor).sum() for result, factor in zip(results, factors, strict=True))
    wanted = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    grads = torch.autograd.grad(loss, list(wanted.values()))
    names = ("out", "hn", "cn")
    return dict(zip(names, results, strict=True)) | dict(zip(wanted, grads, strict=True))


def assert_agrees(actual: dict[str, Tensor], expected: dict[str, Tensor], bound: float = BOUND) -> None:
    assert actual.keys() == expected.keys()
    for name, right in expected.items():
        error = (actual[name].double() - right.double()).abs().max() / right.abs().max().clamp(min=1e-6)
        assert error <= bound, f"{name}: {error:.1e}"  # also fails for NaN


def check(seed: int) -> None:
    problem = draw(seed)
    expected = outcome(problem.run_literally, problem.leaves(torch.float64))
    actual = outcome(problem.run, problem.leaves(torch.float32))
    assert_agrees(actual, expected)
    with torch.no_grad():
        without = problem.run(problem.tensors)
    assert all(
        torch.equal(mine, actual[name]) for name, mine in zip(("out", "hn", "cn"), without, strict=True)
    )


def check_bfloat16(seed: int) -> None:
    """Factors are rounded, sums and gates are not; where the processor cannot, it is float32."""
    problem = replace(draw(seed), bfloat16=True)
    problem = replace(problem, tensors=_in_bfloat16(problem.tensors))
    expected = outcome(problem.run_literally, problem.leaves(torch.float64))
    assert_agrees(outcome(problem.run, problem.leaves(torch.float32)), expected, BFLOAT16_BOUND)


def _in_bfloat16(tensors: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if tensor is None else tensor.bfloat16().float() for name, tensor in tensors.items()}
