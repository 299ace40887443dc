"""The operator behind dropout and weight drop, and the masks it is given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_pru.ops import backends
from torch_pru.ops.dropping import draw_mask

CPU = torch.device("cpu")


def mask_of(*shape: int, keep: float = 0.6) -> Tensor:
    return draw_mask(shape, keep, CPU, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(7,), (5, 3, 7), (2, 4, 6, 6)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_values_and_gradients(shape: tuple[int, ...], shared: bool):
    mask = mask_of(1 if shared else shape[0], *shape[1:])
    values = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = torch.where(mask.bool().expand(shape), values / 0.6, 0.0)
    torch.testing.assert_close(backends.run("drop", values, mask, 0.6, torch.float64), expected)

    def run(values: torch.Tensor) -> torch.Tensor:
        return backends.run("drop", values, mask, 0.6, torch.float64)

    assert torch.autograd.gradcheck(run, values)
    assert torch.autograd.gradgradcheck(run, values)


@pytest.mark.parametrize("wide_first", [False, True])
def test_it_is_computed_in_the_wider_dtype_and_rounded_once(wide_first: bool):
    wide, narrow = torch.float32, torch.bfloat16
    start, end = (wide, narrow) if wide_first else (narrow, wide)
    values, mask = torch.randn(50, 40).to(start).requires_grad_(), mask_of(50, 40)
    out = backends.run("drop", values, mask, 0.6, end)
    assert out.dtype == end
    assert torch.equal(out, (values.float() * (mask.float() / 0.6)).to(end))
    gradient = torch.randn(50, 40).to(end)
    (found,) = torch.autograd.grad(out, values, gradient)
    assert torch.equal(found, (gradient.float() * (mask.float() / 0.6)).to(start))


def test_the_result_is_contiguous_whatever_the_values_are():
    values, mask = torch.randn(6, 5, 4), mask_of(4, 5, 6)
    values = values.transpose(0, 2)
    out = backends.run("drop", values, mask, 0.6, torch.float32)
    assert out.is_contiguous()
    assert torch.equal(out, backends.run("drop", values.contiguous(), mask, 0.6, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_opcheck(dtype: torch.dtype, strided: bool):
    values = torch.randn(2, 3, 4, 4)
    values = (values.transpose(1, 2).contiguous().transpose(1, 2) if strided else values).requires_grad_()
    arguments = (values, mask_of(2, 3, 4, 4), 0.6, dtype, "loop")
    checks = torch.library.opcheck(torch.ops.torch_pru.drop, arguments)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_does_not_depend_on_the_dtype_it_is_drawn_in(dtype: torch.dtype):
    """So that a seed gives the masks it gave when they were drawn in the dtype of the values."""
    like = torch.empty(1000, dtype=dtype)
    drawn = like.bernoulli_(0.6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drawn, mask_of(1000).to(dtype))
    assert abs(mask_of(100_000).float().mean() - 0.6) < 5 * (0.24 / 100_000) ** 0.5
