"""The decoder's loss around its kernels, for which PyTorch's own operations stand in: no GPU needed."""

from __future__ import annotations

import pytest
import torch
from shapes import HOPPER
from torch import Tensor
from torch.nn import functional as F

from torch_pru.errors import PRUError
from torch_pru.ops.cuda import decoder


def losses_and_gradient(logits: Tensor, targets: Tensor, gradient: bool) -> Tensor:
    losses = F.cross_entropy(logits, targets, reduction="none")
    if gradient:
        logits.copy_(logits.softmax(-1) - F.one_hot(targets, logits.shape[1]))
    return losses


def scaled_rows(hidden: Tensor, scale: Tensor, gradient: Tensor) -> Tensor:
    gradient *= scale.unsqueeze(1)
    return torch.cat([hidden, torch.ones(len(hidden), 8)], dim=1) * scale.unsqueeze(1)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "decoder_operand", lambda weight, bias, dtype: (weight, bias))
    monkeypatch.setattr(decoder, "softmax_losses", losses_and_gradient)
    monkeypatch.setattr(decoder, "decoder_rows", scaled_rows)
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype: torch.matmul(a, b))  # a CPU has no out_dtype


@pytest.mark.usefixtures("without_kernels")
def test_gradients_but_none_of_theirs():
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((5, 6), (16, 6), (16,))]
    targets, factors = torch.randint(16, (5,)), torch.rand(5, requires_grad=True)
    loss = decoder._CrossEntropy.apply(*inputs, targets)
    exact = F.cross_entropy(F.linear(*inputs), targets, reduction="none")
    torch.testing.assert_close(loss, exact)
    found = torch.autograd.grad(loss, inputs, factors, create_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(exact, inputs, factors))
    with pytest.raises(PRUError, match="double backward"):
        found[0].square().sum().backward()


def test_the_kernel_is_given_targets_side_by_side(monkeypatch: pytest.MonkeyPatch):
    given: list[Tensor] = []
    monkeypatch.setattr(decoder, "device_of", lambda index: HOPPER)
    monkeypatch.setattr(decoder, "launch_on", lambda launch, device, tensors, sizes: given.extend(tensors))
    targets = torch.arange(12).view(3, 4)[:, 1]
    decoder.softmax_losses(torch.zeros(3, 16, dtype=torch.bfloat16), targets, gradient=False)
    assert given[1].is_contiguous()
    assert given[1].tolist() == [1, 5, 9]
