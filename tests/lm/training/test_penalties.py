"""AR and TAR by a literal computation, on every device that there is."""

from __future__ import annotations

import pytest
import torch
from small import small_config
from torch import Tensor

from torch_pru.lm.model import Hidden
from torch_pru.lm.training.step import penalties

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
dtypes = pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)]
)
rates = pytest.mark.parametrize("rates", [(2.0, 1.0), (0.0, 1.0), (2.0, 0.0), (0.0, 0.0)], ids=str)
shapes = pytest.mark.parametrize("shape", [(2, 1, 1), (5, 3, 7), (9, 4, 24), (70, 20, 400)], ids=str)


def outputs(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(shape, generator=generator).to(device=device, dtype=dtype).requires_grad_() for _ in "ab"
    ]


def penalties_of(raw: Tensor, dropped: Tensor, activation: float, temporal: float) -> Tensor | float:
    regularization = small_config(activation=activation, temporal=temporal).regularization
    return penalties(Hidden(raw, dropped, []), regularization)


def literal(raw: Tensor, dropped: Tensor, activation: float, temporal: float) -> tuple[Tensor, ...]:
    """The sum in float64, and the gradients of 1.7 times it with respect to raw and dropped."""
    raw, dropped = (x.detach().double().requires_grad_() for x in (raw, dropped))
    total = activation * (dropped * dropped).mean()
    changes = [(raw[t] - raw[t - 1]).square().sum() for t in range(1, len(raw))]
    total = total + temporal * torch.stack(changes).sum() / (len(changes) * raw[0].numel())
    return total, *torch.autograd.grad(1.7 * total, (raw, dropped))


@devices
@dtypes
@rates
@shapes
def test_the_sum_and_both_gradients(device, dtype, bound, rates, shape) -> None:
    raw, dropped = outputs(shape, dtype, device)
    total, *expected = literal(raw, dropped, *rates)
    found = penalties_of(raw, dropped, *rates)
    if rates == (0.0, 0.0):
        assert found == 0.0
        return
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), total, rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(1.7 * found, (raw, dropped), allow_unused=True)
    for rate, ours, theirs in zip(rates[::-1], gradients, expected, strict=True):
        assert (ours is None) == (rate == 0.0)
        if ours is not None:
            assert ours.dtype == dtype
            assert (ours - theirs).norm() <= bound * theirs.norm()


@devices
@dtypes
def test_any_strides(device, dtype, bound) -> None:
    raw, dropped = (x.detach() for x in outputs((6, 5, 11), dtype, device))
    strided = [x.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_() for x in (raw, dropped)]
    plain = [x.requires_grad_() for x in (raw, dropped)]
    results = []
    for inputs in (strided, plain):
        total = penalties_of(*inputs, 2.0, 1.0)
        results.append((total, *torch.autograd.grad(total, inputs)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=1e-6)


@devices
def test_output_without_dropout_has_both_terms(device) -> None:
    """The raw and the dropped output are then one tensor."""
    (raw, _) = outputs((5, 3, 7), torch.float32, device)
    total, *expected = literal(raw, raw, 2.0, 1.0)
    found = penalties_of(raw, raw, 2.0, 1.0)
    torch.testing.assert_close(found.double(), total, rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(1.7 * found, raw)
    torch.testing.assert_close(gradient.double(), sum(expected), rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bit_identical_from_run_to_run(dtype) -> None:
    inputs = outputs((70, 20, 400), dtype, "cuda")
    first = None
    for _ in range(5):
        total = penalties_of(*inputs, 2.0, 1.0)
        again = (total, *torch.autograd.grad(total, inputs))
        first = first or again
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, again, strict=True))
