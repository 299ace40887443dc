"""The update where gradients are views, share memory or are scaled, and the list that the kernels read."""

from __future__ import annotations

import math

import pytest
import torch
from small import NO_DROPOUT, small_masks, small_model, step_along

from torch_pru.lm.training.optimizer import AveragedSGD, NonFiniteCheck
from torch_pru.lm.training.step import TrainingStep
from torch_pru.ops import backends
from torch_pru.ops.cuda import updates


@pytest.mark.parametrize("factor", [None, 4.0])
def test_two_weights_may_have_one_gradient(factor: float | None) -> None:
    weights = [torch.zeros(2), torch.zeros(2)]
    optimizer = AveragedSGD(weights, clip=0.25, weight_decay=0.0)
    gradient = torch.tensor([3.0, 4.0]) * (factor or 1.0)
    optimizer.prepare_step(1.0)
    step_along(optimizer, [gradient, gradient], grad_scale=None if factor is None else torch.tensor(factor))
    for weight in weights:
        torch.testing.assert_close(weight, -torch.tensor([3.0, 4.0]) * 0.25 / math.sqrt(50))


def test_a_one_level_layer_has_two_biases_with_one_gradient() -> None:
    """Both move by it, scaled once: the loss falls with the input bias as with the context bias."""
    model = small_model(unit="fused-lstm", **NO_DROPOUT).double().train()
    biases = {
        name: value
        for name, value in model.named_parameters()
        if name.startswith("layers.0") and "bias" in name
    }
    before = {name: value.detach().clone() for name, value in biases.items()}
    optimizer = AveragedSGD(model.parameters(), clip=1e-3, weight_decay=0.0)
    optimizer.prepare_step(1.0)
    tokens = torch.randint(0, 40, (9, 4))
    TrainingStep(model, optimizer, small_masks())(tokens, tokens, model.initial_state(4))
    moved = [biases[name].detach() - before[name] for name in biases]
    assert len(moved) == 2
    assert moved[0].abs().max() > 1e-6  # clipped twice it would be a thousandth of that
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.inf)])
def test_the_watch_keeps_the_first_bad_step(loss: float, norm: float) -> None:
    weight = torch.zeros(1)
    optimizer = AveragedSGD([weight], clip=0.25)
    steps, first_bad = torch.tensor(6), torch.tensor(-1)
    weight.grad = torch.ones(1)
    optimizer.step(check=NonFiniteCheck(torch.tensor(1.0), steps, first_bad))
    assert (steps.item(), first_bad.item()) == (7, -1)
    weight.grad = torch.tensor([norm])
    for _ in range(2):
        optimizer.step(check=NonFiniteCheck(torch.tensor(loss), steps, first_bad))
    assert (steps.item(), first_bad.item()) == (9, 8)


def test_rows_of_a_gradient() -> None:
    product, biases = torch.empty(33, 16), torch.empty(4, 700)
    assert updates._rows(torch.empty(3, 4, 5)) == (60, 60)
    assert updates._rows(product[:, :8]) == (8, 16)
    assert updates._rows(product[:, -1]) == (1, 16)
    assert updates._rows(biases[:, 523:].unsqueeze(0)) == (177, 700)
    assert updates._rows(torch.empty(6, 4, 5)[:, :2]) == (10, 20)
    assert updates._rows(torch.empty(3, 4, 6)[:, :, :5]) == (5, 6)
    assert updates._rows(torch.empty(()).expand(7)) == (1, 0)
    assert updates._rows(torch.empty(4, 5).t()) is None
    assert updates._rows(torch.empty(4, 6, 5)[:, :2, :3]) is None


def test_the_words_of_the_list() -> None:
    weights = [torch.zeros(updates.CHUNK + 1), torch.zeros(0), torch.zeros(3, 4)]
    gradients = [torch.zeros(updates.CHUNK + 1), torch.zeros(0), torch.zeros(3, 9)[:, :4]]
    words = updates._entries(weights, gradients, None)
    assert len(words) == 2 + 7 * updates.ENTRIES
    assert 8 * (len(words) + 11) <= 4096  # what a kernel's argument may take
    assert words[:2] == [3, 3]
    assert [words[2 + 7 * index + 3 :][:4] for index in range(3)] == [
        [updates.CHUNK + 1, updates.CHUNK + 1, updates.CHUNK + 1, 0],
        [0, 1, 1, 2],
        [12, 4, 9, 2],
    ]


def test_rows_are_added_wherever_their_token_is() -> None:
    table, tokens, rows = torch.randn(6, 12)[:, :8], torch.tensor([4, 1, 4, 4, 0]), torch.randn(5, 8)
    expected = table.clone()
    for token, row in zip(tokens.tolist(), rows, strict=True):
        expected[token] += row
    backends.run("add_rows", table, tokens, rows)
    torch.testing.assert_close(table, expected)


def test_rows_are_added_in_their_order_whatever_the_threads() -> None:
    """A run with several threads is to be repeated to the last bit, too."""
    generator = torch.Generator().manual_seed(1)
    tokens, rows = torch.arange(1400) % 7, torch.randn(1400, 400, generator=generator)
    expected = torch.zeros(7, 400)
    for token, row in zip(tokens.tolist(), rows, strict=True):
        expected[token] += row
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        table = torch.zeros(7, 400)
        backends.run("add_rows", table, tokens, rows)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(table, expected)
