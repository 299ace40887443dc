"""Second derivatives of layers on compiled kernels, beside those of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from torch_pru import PRU
from torch_pru.ops import native, reference
from torch_pru.ops.spec import RecurrenceCall

LAYERS = [
    {"levels": 2, "groups": 4},
    {"levels": 3, "groups": 2, "pooling": "skip", "bidirectional": True},
    {"levels": 1, "groups": 1, "residual": True, "num_layers": 2},
    {"levels": 2, "groups": 4, "input_groups": 2, "bias": False},
]


def derivatives(layer: PRU, x: Tensor, lengths: list[int] | None, only_input: bool) -> list[Tensor]:
    """The first and the second derivatives of a function of all results; one tensor is both h_0 and c_0."""
    directions = 2 if layer.bidirectional else 1
    state = torch.linspace(-1, 1, layer.num_layers * directions * x.shape[1] * layer.hidden_size)
    state = state.view(-1, x.shape[1], layer.hidden_size).to(x.dtype).requires_grad_()
    y, (h, c) = layer(x if lengths is None else pack_padded_sequence(x, lengths), (state, state))
    loss = (y if lengths is None else y.data).square().sum() + h.cos().sum() + c.sin().sum()
    tensors = [x] if only_input else [x, state, *layer.parameters()]
    first = torch.autograd.grad(loss, tensors, create_graph=True)
    return [*first, *torch.autograd.grad(sum(grad.square().sum() for grad in first), tensors)]


@pytest.mark.parametrize("only_input", [True, False])
@pytest.mark.parametrize("lengths", [None, [6, 4, 1]])
@pytest.mark.parametrize("options", LAYERS)
def test_they_are_those_of_the_reference(options: dict, lengths: list[int] | None, only_input: bool) -> None:
    torch.manual_seed(0)
    fast = PRU(16, 16, **options)
    exact = PRU(16, 16, **options, backend="reference").double()
    exact.load_state_dict(fast.state_dict())
    x = torch.randn(6, 3, 16)
    assert fast.backend_for(x) == ("native", None)
    found = derivatives(fast, x.clone().requires_grad_(), lengths, only_input)
    expected = derivatives(exact, x.double().requires_grad_(), lengths, only_input)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


def test_a_frozen_weight_and_an_unused_result() -> None:
    layer = PRU(16, 16, levels=2, groups=4)
    layer.weight_hh_l0.requires_grad_(False)
    x = torch.randn(5, 2, 16, requires_grad=True)
    _, (h, _) = layer(x)
    [grad] = torch.autograd.grad(h.sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert layer.weight_hh_l0.grad is None
    assert layer.weight_ih_l0_k1.grad.abs().sum() > 0


def test_the_recurrence_alone() -> None:
    def second(recurrence) -> Tensor:
        torch.manual_seed(2)
        gates = torch.randn(4, 2, 4, 8, requires_grad=True)
        weight = torch.randn(2, 4, 4, 4, requires_grad=True)
        out, _, _ = recurrence(RecurrenceCall(gates, weight, None, None, None, None, True), eager=True)
        [grad] = torch.autograd.grad(out.square().sum(), gates, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), weight)[0]

    torch.testing.assert_close(second(native.recurrence), second(reference.recurrence))
