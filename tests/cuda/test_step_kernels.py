"""The small kernels of a training step, beside PyTorch's own operations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torch_pru.lm.training.optimizer import AveragedSGD, NonFiniteCheck
from torch_pru.ops import backends

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(
    ("rows", "words", "width"),
    [(1, 5, 8), (9, 33, 12), (37, 1001, 24), (1400, 10_000, 400), (33, 33_278, 400), (3, 120_001, 16)],
)
def test_cross_entropy(dtype: torch.dtype, bound: float, rows: int, words: int, width: int) -> None:
    torch.manual_seed(rows)
    hidden, weight = (
        torch.randn(rows, width, device="cuda"),
        torch.randn(words, width, device="cuda") / width**0.5,
    )
    bias = torch.randn(words, device="cuda")
    targets = torch.randint(words, (rows, 2), device="cuda")[:, 1]  # not side by side
    hidden, weight, bias = (tensor.to(dtype).float().requires_grad_() for tensor in (hidden, weight, bias))
    factors = torch.rand(rows, device="cuda") + 0.5

    def outcome(loss: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [loss, *torch.autograd.grad((loss * factors).sum(), inputs)]

    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    exact_loss = F.cross_entropy(F.linear(*exact_inputs), targets, reduction="none")
    exact = outcome(exact_loss, exact_inputs)
    with torch.autocast("cuda", dtype):
        loss = backends.run("cross_entropy", hidden, weight, bias, targets)
    assert loss.dtype == torch.float32
    for ours, theirs in zip(outcome(loss, [hidden, weight, bias]), exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() <= bound * theirs.norm()
    with torch.no_grad(), torch.autocast("cuda", dtype):  # nothing saved, the same number
        torch.testing.assert_close(backends.run("cross_entropy", hidden, weight, bias, targets), loss)


def test_a_logit_that_is_not_a_number_makes_the_loss_so() -> None:
    hidden, bias = torch.ones(2, 8, device="cuda"), torch.zeros(1000, device="cuda")
    weight, targets = torch.zeros(1000, 8, device="cuda"), torch.tensor([3, 4], device="cuda")
    weight[700] = math.nan
    with torch.autocast("cuda", torch.bfloat16):
        assert backends.run("cross_entropy", hidden, weight, bias, targets).isnan().all()


# ---------------------------------------------------------------------------------------------- the update


def many_gradients() -> list[torch.Tensor]:
    """Odd sizes, rows apart, one tensor for two weights, a transposed one, one that begins off 16 bytes."""
    generator = torch.Generator("cuda").manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", generator=generator)

    shapes = [(7,), (1,), (1401,), (400, 350), (2, 4, 3, 3), (1000, 1023)]
    product, biases = draw(333, 48), draw(4, 700)
    views = [product[:, :40], product[:, -1], product[1:, 1:4], biases, biases[:, :523], biases[:, 523:]]
    return [*(draw(*shape) for shape in shapes), *views, draw(30, 50).t(), draw(102)[1:]]


def step_along(optimizer: AveragedSGD, gradients: list[torch.Tensor], **options: Any) -> torch.Tensor:
    for parameter, gradient in zip(optimizer.params, gradients, strict=True):
        parameter.grad = gradient
    return optimizer.step(**options)


def taken(
    gradients: list[torch.Tensor], dtype: torch.dtype, averaging: bool, factor: float | None
) -> tuple[list[torch.Tensor], torch.Tensor, NonFiniteCheck]:
    """Weights and averages after five steps, the last norm and the watch; float64 takes the plain path."""
    generator = torch.Generator("cuda").manual_seed(1)
    weights = [
        torch.randn(gradient.shape, device="cuda", generator=generator).to(dtype) for gradient in gradients
    ]
    optimizer = AveragedSGD(weights, clip=0.25, weight_decay=1e-3)
    assert (optimizer._update is backends.module("cuda").sgd_update) == (dtype == torch.float32)
    if averaging:
        optimizer.start_averaging()
    numbers = [torch.tensor(value, device="cuda") for value in (3.0, 0, -1)]
    check, scale = NonFiniteCheck(*numbers), None if factor is None else torch.tensor(factor, device="cuda")
    for step in range(5):
        optimizer.prepare_step(3.0 + step)
        short = 1e-5 if step == 3 else 1.0  # once short enough not to be clipped
        given = [short * gradient for gradient in gradients] if step == 3 else gradients
        norm = step_along(
            optimizer, [gradient.to(dtype) for gradient in given], grad_scale=scale, check=check
        )
    return [*weights, *(optimizer.averages or [])], norm, check


@pytest.mark.parametrize("averaging", [False, True])
@pytest.mark.parametrize("factor", [None, 8.0])
@pytest.mark.parametrize("times", [1, 6])  # 14 weights, and more than one launch has room for
def test_the_fused_update_is_the_plain_one(averaging: bool, factor: float | None, times: int) -> None:
    gradients = many_gradients() * times
    before = [gradient.clone() for gradient in gradients]
    ours, norm, check = taken(gradients, torch.float32, averaging, factor)
    exact, exact_norm, _ = taken(gradients, torch.float64, averaging, factor)
    assert abs(norm - exact_norm) <= 1e-6 * exact_norm
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-6)
    assert all(map(torch.equal, gradients, before))  # they may be one tensor, and are never written to
    assert (check.step_count.item(), check.first_bad_step.item()) == (5, -1)
    again, norm_again, _ = taken(gradients, torch.float32, averaging, factor)
    assert all(map(torch.equal, ours, again))
    assert torch.equal(norm, norm_again)


def test_the_norm_of_very_many_elements_loses_nothing() -> None:
    gradient = torch.full((40_000_000,), 0.1, device="cuda")
    optimizer = AveragedSGD([torch.zeros_like(gradient)], clip=1.0, weight_decay=0.0)
    optimizer.prepare_step(1.0)
    assert step_along(optimizer, [gradient]).item() == pytest.approx(0.1 * math.sqrt(40_000_000), rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_gradient_is_noted(value: float) -> None:
    gradients = [torch.ones(5000, device="cuda"), torch.ones(3, device="cuda")]
    weights = [torch.ones_like(gradient) for gradient in gradients]
    optimizer = AveragedSGD(weights, clip=0.25, weight_decay=0.0)
    check = NonFiniteCheck(*(torch.tensor(number, device="cuda") for number in (3.0, 0, -1)))
    for step in range(1, 5):
        optimizer.prepare_step(1.0)
        if step == 2:
            gradients[0][4321] = value
        norm = step_along(optimizer, gradients, check=check)
        assert norm.isfinite() == (step < 2)
        assert (check.step_count.item(), check.first_bad_step.item()) == (step, -1 if step < 2 else 2)
    assert (~weights[0].isfinite()).nonzero().tolist() == [[4321]]
    assert weights[1].isfinite().all()


def test_a_bad_loss_is_noted() -> None:
    optimizer = AveragedSGD([torch.ones(3, device="cuda")], clip=0.25, weight_decay=0.0)
    check = NonFiniteCheck(*(torch.tensor(number, device="cuda") for number in (math.inf, 6, -1)))
    optimizer.prepare_step(1.0)
    step_along(optimizer, [torch.ones(3, device="cuda")], check=check)
    assert (check.step_count.item(), check.first_bad_step.item()) == (7, 7)


def test_an_overflow_of_scaled_gradients_is_a_step_along_zero() -> None:
    weight = torch.ones(5000, device="cuda")
    optimizer = AveragedSGD([weight], clip=0.25, weight_decay=0.5)
    check = NonFiniteCheck(*(torch.tensor(number, device="cuda") for number in (3.0, 0, -1)))
    gradient = torch.ones(5000, device="cuda")
    gradient[17] = math.inf
    optimizer.prepare_step(1.0)
    norm = step_along(optimizer, [gradient], grad_scale=torch.tensor(4096.0, device="cuda"), check=check)
    assert (weight == 0.5).all()  # decay alone
    assert norm.isinf()
    assert (check.step_count.item(), check.first_bad_step.item()) == (1, -1)


# ---------------------------------------------------------------------------------------------- the lookup


@pytest.mark.parametrize(
    ("positions", "words", "width"),
    [(1, 5, 8), (37, 9, 7), (1400, 10_000, 400), (5600, 33_278, 400), (5600, 1, 400), (300, 40, 1032)],
)
def test_the_gradient_of_a_lookup(positions: int, words: int, width: int) -> None:
    """With the mask of word types that stands behind the lookup, added to what is there."""
    torch.manual_seed(positions)
    # A few words are frequent, as in a text.
    tokens = (words * torch.rand(positions, device="cuda") ** 3).long().clamp_(max=words - 1)
    mask = torch.empty(words, 1, device="cuda").bernoulli_(0.9).div_(0.9)
    upstream = torch.randn(positions, width, device="cuda")
    storage = torch.randn(words, width + 8, device="cuda")
    beside, table = storage[:, width:].clone(), storage[:, :width]

    weight = torch.zeros(words, width, device="cuda", dtype=torch.float64, requires_grad=True)
    values = F.embedding(tokens, weight) * mask[tokens]
    exact = table.double() + torch.autograd.grad(values, weight, upstream.double())[0]

    vectors = torch.zeros(positions, width, device="cuda", requires_grad=True)
    (rows,) = torch.autograd.grad(vectors * mask[tokens], vectors, upstream)
    again = storage.clone()[:, :width]
    backends.run("add_rows", table, tokens, rows)
    assert (table - exact).norm() <= 1e-5 * exact.norm()
    assert torch.equal(storage[:, width:], beside)
    backends.run("add_rows", again, tokens, rows)
    assert torch.equal(again, table)
