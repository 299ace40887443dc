"""The small kernels of a training step, beside PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.ops.cross_entropy import linear_cross_entropy

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(
    ("rows", "words", "width"), [(1, 5, 8), (37, 1001, 24), (1400, 10_000, 400), (33, 33_278, 400)]
)
def test_cross_entropy(dtype: torch.dtype, bound: float, rows: int, words: int, width: int) -> None:
    torch.manual_seed(rows)
    hidden, weight = (
        torch.randn(rows, width, device="cuda"),
        torch.randn(words, width, device="cuda") / width**0.5,
    )
    bias, targets = torch.randn(words, device="cuda"), torch.randint(words, (rows,), device="cuda")
    hidden, weight, bias = (tensor.to(dtype).float().requires_grad_() for tensor in (hidden, weight, bias))
    factors = torch.rand(rows, device="cuda") + 0.5

    def outcome(loss: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [loss, *torch.autograd.grad((loss * factors).sum(), inputs)]

    exact_inputs = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight, bias)]
    exact_loss = F.cross_entropy(F.linear(*exact_inputs), targets, reduction="none")
    exact = outcome(exact_loss, exact_inputs)
    with torch.autocast("cuda", dtype):
        loss = linear_cross_entropy(hidden, weight, bias, targets)
    assert loss.dtype == torch.float32
    for ours, theirs in zip(outcome(loss, [hidden, weight, bias]), exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() <= bound * theirs.norm()
    with torch.no_grad(), torch.autocast("cuda", dtype):  # nothing saved, the same number
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, bias, targets), loss)


@pytest.mark.parametrize("averaging", [False, True])
def test_the_fused_update_is_the_plain_one(averaging: bool) -> None:
    torch.manual_seed(1)
    shapes = [(7,), (1,), (1401,), (400, 350), (2, 4, 3, 3)]
    start = [torch.randn(shape, device="cuda") for shape in shapes]
    results = []
    for fused in (True, False):
        weights = [tensor.clone() for tensor in start]
        optimizer = AveragedSGD(weights, clip=0.25, weight_decay=1e-3)
        assert optimizer.fused
        optimizer.fused = fused
        if averaging:
            optimizer.start_averaging()
        generator = torch.Generator("cuda").manual_seed(2)
        for step in range(5):
            optimizer.prepare(3.0 + step)
            scale = 0.001 if step == 3 else 1.0  # once short enough not to be clipped
            gradients = [scale * torch.randn(shape, device="cuda", generator=generator) for shape in shapes]
            optimizer.apply(gradients)
        results.append([*weights, *(optimizer.averages or [])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
