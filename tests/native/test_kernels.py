"""The CPU kernels beside float64: odd shapes, layouts, lengths, directions, threads, instruction sets."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_pru.ops import native
from torch_pru.ops.native.library import library
from torch_pru.ops.native.operators import Arguments, backward, forward, padded
from torch_pru.ops.spec import RecurrenceCall

from . import literal, problems
from .problems import assert_agrees, check, check_bfloat16, draw, outcome, run


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize("seed", range(20))
def test_results_and_gradients(kernels: str, seed: int):
    if not library().choose_kernels(kernels.encode()):
        pytest.skip(f"this processor has no {kernels}")
    check(seed)


@pytest.mark.parametrize("seed", range(20))
def test_products_of_bfloat16(seed: int):
    check_bfloat16(seed)


LARGE = {  # for several threads, one for every way of sharing the work: hidden, groups, batch, steps
    "groups": (256, 4, 3, 5),
    "units": (300, 1, 2, 12),
    "columns": (40, 1, 17, 60),
    "a stretch of one step": (32, 2, 1500, 2),
}


@functools.cache
def large_problem(name: str, reverse: bool) -> tuple[problems.Problem, dict[str, Tensor]]:
    """The problem, and its results and gradients in float64."""
    torch.manual_seed(0)
    hidden, groups, batch, steps = LARGE[name]
    width = hidden // groups
    tensors = {
        "x": torch.randn(steps, batch, hidden),
        "context": torch.randn(4 * hidden, width) / width**0.5,
        "bias": torch.randn(4 * hidden),
        "h0": torch.randn(batch, hidden),
        "c0": torch.randn(batch, hidden),
        "w0": torch.randn(3 * hidden, hidden) / hidden**0.5,
        "w1": torch.randn(hidden, hidden // 2) / hidden**0.5,
    }
    problem = problems.Problem(tensors, [1, 3], None, residual=True, reverse=reverse)
    return problem, outcome(problem.run_literally, problem.leaves(torch.float64))


@pytest.mark.parametrize(("bfloat16", "bound"), [(False, problems.BOUND), (True, problems.BFLOAT16_BOUND)])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_threads(name: str, reverse: bool, threads: int, bfloat16: bool, bound: float):
    problem, expected = large_problem(name, reverse)
    problem = dataclasses.replace(problem, bfloat16=bfloat16)
    torch.set_num_threads(threads)
    assert_agrees(outcome(problem.run, problem.leaves(torch.float32)), expected, bound)


def test_many_rows_are_done_in_stretches():
    """1400 rows at a time: here four stretches, columns that end in each of them, and both directions."""
    torch.manual_seed(0)
    tensors = {
        "x": torch.randn(500, 9, 6),
        "context": torch.randn(24, 3) / 2,
        "bias": None,
        "h0": torch.randn(9, 6),
        "c0": None,
        "w0": torch.randn(16, 6) / 2,
        "w1": torch.randn(8, 3) / 2,
    }
    lengths = [500, 1, 155, 156, 311, 400, 2, 499, 310]
    for reverse in (False, True):
        problem = problems.Problem(tensors, [1, 3], lengths, residual=True, reverse=reverse)
        expected = outcome(problem.run_literally, problem.leaves(torch.float64))
        assert_agrees(outcome(problem.run, problem.leaves(torch.float32)), expected)


def test_called_from_four_python_threads_at_once():
    torch.set_num_threads(2)
    failures = []

    def work(first: int) -> None:
        try:
            for seed in range(first, first + 8):
                check(seed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 + 8 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def in_subprocess(code: str, **environment: str) -> str:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join((str(tests), *sys.path))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_after_a_fork():
    """The threads of an OpenMP pool do not survive a fork: a child must not wait for them."""
    in_subprocess(
        """
import os, signal, torch
from native.problems import run as run_layer
from torch_pru.ops.native.operators import Arguments

torch.set_num_threads(2)
x, weight, context = torch.randn(40, 20, 256), torch.randn(1024, 256), torch.randn(1024, 64)

def run():
    with torch.no_grad():
        out = run_layer(Arguments(x, weight, *[None] * 3, context, *[None] * 4, [1], False, False))[0]
    return out.numpy().tobytes()  # PyTorch's own operations might wait for its threads here

expected = run()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if run() == expected else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert run() == expected
"""
    )


def test_poisoned_memory():
    """Neither results nor scratch memory may be read before they are written."""
    in_subprocess(
        """
import torch
from native import problems
torch.use_deterministic_algorithms(True)  # fills the memory of new tensors with NaN
for seed in range(200, 240):
    problems.check(seed)
    problems.check_bfloat16(seed)
""",
        MALLOC_PERTURB_="1",  # the C library fills its memory with ones: NaN
    )


@pytest.mark.parametrize("seed", [0, 3, 5, 11])
def test_padding_may_hold_anything(seed: int):
    steps, batch, hidden = 5, 4, 12
    torch.manual_seed(seed)
    tensors = {
        "x": torch.randn(steps, batch, hidden),
        "context": torch.randn(4 * hidden, 3),
        "bias": torch.randn(4 * hidden),
        "h0": torch.randn(batch, hidden),
        "c0": torch.randn(batch, hidden),
        "w0": torch.randn(3 * hidden, hidden),
        "w1": torch.randn(hidden, hidden // 2),
    }
    problem = problems.Problem(tensors, [1, 3], [2, 5, 1, 4], residual=True, reverse=bool(seed % 2))
    clean = outcome(problem.run, problem.leaves(torch.float32))
    for column, length in enumerate([2, 5, 1, 4]):
        tensors["x"][length:, column] = torch.nan
    dirty = outcome(problem.run, problem.leaves(torch.float32))
    assert all(torch.equal(dirty[name], clean[name]) for name in clean)


def layer_of(x: Tensor, weight: Tensor, context: Tensor) -> Arguments:
    """A layer of one level, without a bias and states."""
    return Arguments(x, *padded([weight]), context, None, None, None, None, [1], False, False)


def gating_of(gates: Tensor, context: Tensor) -> Arguments:
    """The recurrence alone, without a bias and states."""
    return Arguments(gates, *padded([]), context, None, None, None, None, [], False, False)


def test_not_a_number_goes_through():
    x = torch.randn(3, 2, 16)
    x[1, 1, 3] = torch.nan
    out = run(layer_of(x, torch.randn(64, 16), torch.randn(64, 4)))[0]
    assert out[0].isfinite().all()
    assert out[1:, 0].isfinite().all()
    assert out[1:, 1].isnan().all()


def test_huge_gates():
    """Sigmoid and tanh saturate without an overflow."""
    for size in (30.0, 100.0, 1e4, 3e38):
        gates = torch.tensor([size, -size]).repeat(1, 1, 32)
        context = torch.zeros(64, 16)
        out, _, cn = run(gating_of(gates, context))
        i, _, g, o = gates.double().view(4, 16)
        c = torch.sigmoid(i) * torch.tanh(g)
        torch.testing.assert_close(cn[0].double(), c, rtol=0, atol=5e-7)
        torch.testing.assert_close(out[0, 0].double(), torch.sigmoid(o) * torch.tanh(c), rtol=0, atol=5e-7)


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "baseline"])
def test_accuracy_of_the_gates(kernels: str):
    """Sigmoid to 4e-7 of its value also where it is tiny; tanh also near 0."""
    if not library().choose_kernels(kernels.encode()):
        pytest.skip(f"this processor has no {kernels}")
    z = torch.cat([torch.linspace(-80, 80, 4001), torch.logspace(-20, 0, 400), -torch.logspace(-20, 0, 400)])
    z = z[: len(z) // 16 * 16]
    context = torch.zeros(4 * len(z), 1)
    one = torch.full_like(z, 30.0)  # a gate that is open
    gates = torch.stack([z, -one, one, one]).view(1, 1, -1)
    forgetting = torch.stack([one, -one, z, one]).view(1, 1, -1)
    for given, function in ((gates, torch.sigmoid), (forgetting, torch.tanh)):
        cn = run(gating_of(given, context))[2]
        right = function(z.double())
        assert ((cn[0].double() - right) / right.abs().clamp(min=1e-30)).abs().max() < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 9, 12])
def test_opcheck(seed: int):
    problem = draw(seed)
    wanting = problem.arguments(problem.leaves(torch.float32))
    plain = problem.arguments(problem.tensors)
    for arguments, save in ((wanting, True), (plain, True), (plain, False)):
        checks = torch.library.opcheck(torch.ops.torch_pru.cpu_layer, (*arguments, save))
        assert set(checks.values()) == {"SUCCESS"}
    out, hn, cn, activations, cells = forward(*plain, True)
    grads = [torch.randn_like(result) for result in (out, hn, cn)]
    wanted = [tensor is not None for tensor in plain[:9]]
    given = (*grads, *plain, out, activations, cells, wanted)
    checks = torch.library.opcheck(torch.ops.torch_pru.cpu_layer_backward, given)
    assert set(checks.values()) == {"SUCCESS"}
    assert [grad.numel() > 0 for grad in backward(*given)] == wanted


def test_only_some_gradients():
    problem = draw(12)
    everything = outcome(problem.run, problem.leaves(torch.float32))
    for name in problem.tensors:
        if problem.tensors[name] is None:
            continue
        leaf = problem.tensors[name].detach().clone().requires_grad_()
        assert_agrees(
            outcome_of_one(problem, problem.tensors | {name: leaf}, name),
            {name: everything[name]},
            bound=1e-6,
        )


def outcome_of_one(problem: problems.Problem, tensors: dict, name: str) -> dict:
    results = problem.run(tensors)
    generator = torch.Generator().manual_seed(1)
    factors = [torch.randn(result.shape, generator=generator) for result in results]
    loss = sum((result * factor).sum() for result, factor in zip(results, factors, strict=True))
    return {name: torch.autograd.grad(loss, tensors[name])[0]}


def test_an_empty_batch():
    x = torch.randn(3, 0, 8, requires_grad=True)
    weight = torch.randn(64, 8, requires_grad=True)
    out, hn, cn = run(layer_of(x, weight, torch.randn(64, 4)))
    assert (out.shape, hn.shape, cn.shape) == ((3, 0, 16), (0, 16), (0, 16))
    grads = torch.autograd.grad(out.sum(), [x, weight])
    assert grads[0].shape == (3, 0, 8)
    assert torch.equal(grads[1], torch.zeros(64, 8))


def test_the_piece_recurrence():
    gates, weight, bias = torch.randn(5, 3, 4, 12), torch.randn(2, 4, 6, 6) / 3, torch.randn(4, 12)
    h0, c0 = torch.randn(3, 12), torch.randn(3, 12)
    context = weight.transpose(0, 1).reshape(48, 6)
    doubles = (tensor.double() for tensor in (gates, context, bias.flatten(), h0, c0))
    expected = literal.recurrence(*doubles, [2, 5, 4], True)
    lengths = torch.tensor([2, 5, 4])
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 0.02)):
        tensors = (tensor.to(dtype) for tensor in (gates, weight, bias, h0))
        found = native.recurrence(RecurrenceCall(*tensors, c0, lengths, reverse=True), eager=True)
        assert [tensor.dtype for tensor in found] == [dtype, dtype, torch.float32]
        for mine, right in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.double(), right, rtol=0, atol=bound)
