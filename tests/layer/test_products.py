"""The products of the input transform: few rows without a gradient go another way, unnoticed."""

from __future__ import annotations

import pytest
import torch

from torch_pru import PRU, PyramidalTransform
from torch_pru.ops import gates

from .comparing import assert_all_close, gradients

POOLINGS = ("average", "max", "skip", "convolution")


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("rows", [1, 3, 64, 65])
def test_few_rows_without_gradients(pooling: str, rows: int):
    """As when a token is generated."""
    pru = PRU(16, 16, levels=3, pooling=pooling, init="lstm", groups=4)
    x = torch.randn(1, rows, 16)
    expected = pru(x)[0].detach()
    with torch.no_grad():
        torch.testing.assert_close(pru(x)[0], expected, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(pru(x)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a PyTorch with oneDNN")
def test_a_token_does_not_wait_for_the_slower_library(monkeypatch: pytest.MonkeyPatch):
    pru, x = PRU(16, 16, levels=2, groups=4), torch.randn(1, 1, 16)
    monkeypatch.setattr(gates.F, "linear", None)
    with torch.no_grad():
        pru(x)
    pru.requires_grad_(False)(x)


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_parameter_trained_and_all_others_frozen(pooling: str, rows: int):
    """A gradient that a bias or a kernel alone asks for counts too."""
    pru, x = PRU(8, 8, pooling=pooling, init="lstm", levels=2, groups=4), torch.randn(1, rows, 8)
    states = torch.randn(1, rows, 8), torch.randn(1, rows, 8)
    expected = gradients([pru(x, states)[0]], **dict(pru.named_parameters()))
    for name, parameter in pru.named_parameters():
        pru.requires_grad_(False)
        parameter.requires_grad_(True)
        assert expected[name].abs().sum() > 0
        assert_all_close(gradients([pru(x, states)[0]], **{name: parameter}), {name: expected[name]})


@pytest.mark.parametrize("rows", [3, 100])
def test_all_parameters_frozen_and_the_input_asked_for(rows: int):
    pru, x = PRU(8, 8, init="lstm", levels=2, groups=4), torch.randn(1, rows, 8, requires_grad=True)
    expected = gradients([pru(x)[0]], x=x)
    pru.requires_grad_(False)
    assert_all_close(gradients([pru(x)[0]], x=x), expected)


def test_the_input_is_not_written_to():
    """The residual is added in place, but not in the place of the input."""
    x = torch.randn(3, 2, 8)
    before = x.clone()
    PyramidalTransform(8, 8)(x)
    PRU(8, 8, levels=1, groups=1, residual=True)(x)
    with torch.no_grad():
        PRU(8, 8, residual=True, levels=2, groups=4)(x)
    assert torch.equal(x, before)
