"""The decoder with its cross-entropy beside float64."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru import PRUError
from torch_pru.ops import backends
from torch_pru.ops.native import decoder
from torch_pru.ops.native.library import library

from .test_kernels import in_subprocess

BOUND = 1e-5  # of losses and gradients, relative to the largest value, or to 1: terms of that size cancel


def run(*arguments: Tensor) -> Tensor:
    return backends.run("cross_entropy", *arguments, requested="native")


def draw(seed: int, scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Hidden states, weight and bias, all of which want a gradient; and targets."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    rows = chance.choice([32, 33, 64, 131, 700])
    words = chance.choice([2, 15, 16, 17, 63, 64, 65, 130, 1001])
    features = chance.choice([1, 3, 16, 17, 63, 65, 128, 200])
    hidden = torch.randn(rows, features + 2)[:, 1:-1] if seed % 3 else torch.randn(rows, features)
    weight = torch.randn(features, words).t() if seed % 2 else torch.randn(words, features)
    inputs = [hidden, weight * scale / features**0.5, torch.randn(words)]
    return [given.detach().requires_grad_() for given in inputs], torch.randint(words, (rows,))


def exactly(inputs: list[Tensor], targets: Tensor, grads: Tensor) -> list[Tensor]:
    """Losses and gradients in float64."""
    doubles = [given.detach().double().requires_grad_() for given in inputs]
    losses = F.cross_entropy(F.linear(*doubles), targets, reduction="none")
    return [losses, *torch.autograd.grad(losses, doubles, grads.double())]


def assert_close(found: list[Tensor], right: list[Tensor], bound: float = BOUND) -> None:
    for mine, exact in zip(found, right, strict=True):
        assert mine.dtype == torch.float32
        error = (mine.double() - exact).abs().max() / exact.abs().max().clamp(min=1)
        assert error <= bound, f"{error:.1e}"  # also fails for NaN


def check(seed: int, scale: float = 1.0, bound: float = BOUND) -> None:
    inputs, targets = draw(seed, scale)
    grads = torch.randn(len(targets))
    losses = run(*inputs, targets)
    found = [losses, *torch.autograd.grad(losses, inputs, grads)]
    assert_close(found, exactly(inputs, targets, grads), bound)
    with torch.no_grad():
        assert torch.equal(run(*inputs, targets), losses)


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "baseline"])
@pytest.mark.parametrize("seed", range(12))
def test_losses_and_gradients(kernels: str, seed: int):
    if not library().choose_kernels(kernels.encode()):
        pytest.skip(f"this processor has no {kernels}")
    check(seed)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads(threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoder, "WORK_OF_A_THREAD", 1)
    torch.set_num_threads(threads)
    for seed in range(12):
        check(seed)


@pytest.mark.parametrize("size", [1e-3, 30.0, 300.0])
def test_logits_of_any_size(size: float):
    """Some are far above the reference of their row, which then rises, others so far below that p is 0."""
    for seed in range(12):
        check(seed, scale=size, bound=3e-5)


def test_a_rising_logit_rescales_what_was_added_before():
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(40, 8), torch.randn(400, 8), torch.zeros(400)
    bias[70], bias[200], bias[399] = 40.0, 75.0, 500.0
    for highest in (100, 300, 400):
        inputs = [given.detach().requires_grad_() for given in (hidden, weight[:highest], bias[:highest])]
        targets, grads = torch.arange(40) * 2, torch.randn(40)
        losses = run(*inputs, targets)
        found = [losses, *torch.autograd.grad(losses, inputs, grads)]
        assert_close(found, exactly(inputs, targets, grads))


def test_a_gradient_for_one_of_the_inputs_alone():
    inputs, targets = draw(5)
    everything = torch.autograd.grad(run(*inputs, targets).sum(), inputs)
    for index, expected in enumerate(everything):
        given = [each.detach().requires_grad_(index == at) for at, each in enumerate(inputs)]
        [grad] = torch.autograd.grad(run(*given, targets).sum(), given[index])
        torch.testing.assert_close(grad, expected)


def test_not_a_number_stays_in_its_row():
    hidden, weight, bias, targets = torch.randn(40, 8), torch.randn(70, 8), torch.randn(70), torch.arange(40)
    hidden[7, 3], hidden[9, 2] = torch.nan, torch.inf
    losses = run(hidden, weight, bias, targets)
    assert losses.isnan().nonzero().flatten().tolist() == [7, 9]


def test_a_word_that_is_impossible():
    """A bias of minus infinity, as masks have it."""
    torch.manual_seed(0)
    bias = torch.randn(130)
    bias[:65] = -torch.inf
    inputs = [given.requires_grad_() for given in (torch.randn(40, 8), torch.randn(130, 8), bias)]
    targets, grads = torch.arange(40) + 80, torch.randn(40)
    losses = run(*inputs, targets)
    found = [losses, *torch.autograd.grad(losses, inputs, grads)]
    assert_close(found, exactly(inputs, targets, grads))


@pytest.mark.parametrize("target", [-1, 70])
def test_a_target_that_is_no_word(target: int):
    targets = torch.full((40,), target)
    with pytest.raises(IndexError, match=f"target {target} is out of bounds: there are 70 words"):
        run(torch.randn(40, 8), torch.randn(70, 8), torch.randn(70), targets)


def test_which_calls_it_runs():
    def chosen(rows: int, dtype: torch.dtype = torch.float32) -> str:
        inputs = (torch.randn(rows, 8), torch.randn(70, 8), torch.randn(70))
        targets = torch.zeros(rows, dtype=torch.int64)
        return backends.choose("cross_entropy", *(given.to(dtype) for given in inputs), targets).name

    assert chosen(40) == "native"
    assert chosen(40, torch.float64) == chosen(40, torch.bfloat16) == chosen(3) == "reference"
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen(40) == "reference"


def test_opcheck():
    inputs, targets = draw(3)
    assert len(inputs[1]) > decoder.PANEL  # two parts
    for arguments, save in ((inputs, True), ([each.detach() for each in inputs], False)):
        checks = torch.library.opcheck(torch.ops.torch_pru.cpu_cross_entropy, (*arguments, targets, 2, save))
        assert set(checks.values()) == {"SUCCESS"}
    hidden, weight, bias = (each.detach() for each in inputs)
    _, factors, exponentials = torch.ops.torch_pru.cpu_cross_entropy(hidden, weight, bias, targets, 2, True)
    saved = (torch.randn(len(hidden)), hidden, weight, targets, factors, exponentials)
    for wanted in ([True, True, True], [False, True, False]):
        checks = torch.library.opcheck(torch.ops.torch_pru.cpu_cross_entropy_backward, (*saved, wanted))
        assert set(checks.values()) == {"SUCCESS"}


def test_compiled():
    inputs, targets = draw(4)
    compiled = torch.compile(lambda *given: backends.run("cross_entropy", *given).mean(), fullgraph=True)
    found = compiled(*inputs, targets)
    expected = run(*inputs, targets).mean()
    torch.testing.assert_close(found, expected)
    for mine, right in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(mine, right)


def test_a_second_derivative_is_refused():
    inputs, targets = draw(4)
    [grad] = torch.autograd.grad(run(*inputs, targets).sum(), inputs[0], create_graph=True)
    with pytest.raises(PRUError, match="double backward"):
        grad.sum().backward()


def test_poisoned_memory():
    """Neither results nor scratch memory may be read before they are written."""
    in_subprocess(
        """
import torch
from native import test_decoder
torch.use_deterministic_algorithms(True)  # fills the memory of new tensors with NaN
for seed in range(12):
    test_decoder.check(seed)
""",
        MALLOC_PERTURB_="1",  # the C library fills its memory with ones: NaN
    )
