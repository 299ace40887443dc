"""DropConnect on the context weights: one mask a forward pass, none in eval, nothing left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_pru import PRU

from .comparing import paper

CONTEXTS = [
    {"context_transform": "grouped"},
    {"context_transform": "linear"},
    {"context_transform": "pyramidal", "pooling": "average"},
    {"context_transform": "pyramidal", "pooling": "skip"},
    {"context_transform": "pyramidal", "pooling": "max"},
    {"context_transform": "pyramidal", "pooling": "convolution"},
]
contexts = pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: "-".join(context.values()))


def pair(rate: float, **options: object) -> tuple[PRU, PRU]:
    """A layer with weight drop, and one with the same weights and none."""
    dropping = PRU(8, 8, init="lstm", weight_drop=rate, **paper(options))
    plain = PRU(8, 8, init="lstm", **paper(options))
    plain.load_state_dict(dropping.state_dict())
    return dropping, plain


def context_weights(pru: PRU) -> list[Tensor]:
    return [weight for name, weight in pru.named_parameters() if name.startswith("weight_hh")]


def seeded(pru: PRU, seed: int) -> PRU:
    pru.generator = torch.Generator().manual_seed(seed)
    return pru


@contexts
def test_the_mask_changes_the_output_and_eval_is_unaffected(context: dict):
    dropping, plain = pair(0.5, **context)
    x, states = torch.randn(3, 2, 8), (torch.randn(1, 2, 8), torch.randn(1, 2, 8))
    assert not torch.allclose(dropping(x, states)[0], plain(x, states)[0])
    assert not torch.equal(dropping(x, states)[0], dropping(x, states)[0])  # a new mask each time
    assert torch.equal(dropping.eval()(x, states)[0], plain.eval()(x, states)[0])
    assert torch.equal(plain.train()(x, states)[0], plain(x, states)[0])


@contexts
def test_the_weights_themselves_are_untouched(context: dict):
    dropping, plain = pair(0.5, **context)
    names = set(dropping.state_dict())
    dropping(torch.randn(3, 2, 8))[0].sum().backward()
    assert set(dropping.state_dict()) == names
    for name, value in plain.state_dict().items():
        assert torch.equal(dropping.state_dict()[name], value)


@contexts
@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_the_masks_of_a_pass_are_zeros_and_one_scale(context: dict, rate: float):
    """Some mask of zeros and 1/(1 - rate) explains the whole pass: the one drawn from the generator."""
    dropping, plain = pair(rate, **context, num_layers=2)
    x, states = torch.randn(4, 2, 8), (torch.randn(2, 2, 8), torch.randn(2, 2, 8))
    y, _ = seeded(dropping, 7)(x, states)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in context_weights(plain):
            mask = torch.empty_like(weight).bernoulli_(1 - rate, generator=generator)
            assert 0 < mask.mean() < 1
            weight.mul_(mask / (1 - rate))
    torch.testing.assert_close(y, plain(x, states)[0])


def test_one_mask_serves_all_steps():
    """With the input's part and the cell state held still, equal steps of equal states come out equal."""
    dropping, _ = pair(0.5, residual=False, bias=False)
    state = torch.randn(1, 1, 8), torch.zeros(1, 1, 8)
    one_column = seeded(dropping, 3)(torch.zeros(2, 1, 8), state)[0]
    columns = seeded(dropping, 3)(torch.zeros(2, 5, 8), tuple(part.expand(1, 5, 8) for part in state))[0]
    torch.testing.assert_close(columns, one_column.expand(2, 5, 8))  # nor does it differ by column
    middle = seeded(dropping, 3)(torch.zeros(1, 1, 8), state)[1]
    again = seeded(dropping, 3)(torch.zeros(1, 1, 8), middle)[
        0
    ]  # the second step, with the mask of the first
    torch.testing.assert_close(again[0], one_column[1])


@contexts
def test_the_gradient_reaches_the_weight_through_the_mask(context: dict):
    dropping, _ = pair(0.5, **context)
    seeded(dropping, 5)(torch.randn(4, 3, 8), (torch.randn(1, 3, 8),) * 2)[0].square().sum().backward()
    generator = torch.Generator().manual_seed(5)
    for weight in context_weights(dropping):
        kept = torch.empty_like(weight).bernoulli_(0.5, generator=generator) == 1
        assert (weight.grad[~kept] == 0).all()
        assert (weight.grad[kept] != 0).float().mean() > 0.8  # max pooling passes some inputs by


def kept(pru: PRU) -> list[Tensor]:
    """Which weights a pass kept, by layer and direction: those that have a gradient."""
    pru.zero_grad()
    rows = len(pru.specs)
    y, (h, c) = pru(torch.randn(2, 3, 8), (torch.randn(rows, 3, 8), torch.randn(rows, 3, 8)))
    (y.square().sum() + h.sum() + c.sum()).backward()
    return [weight.grad != 0 for weight in context_weights(pru)]


def test_the_mean_over_masks_is_the_weight():
    """Weights kept are scaled by 1/(1 - rate), see above; so 1 - rate of the passes must keep each."""
    dropping, _ = pair(0.4)
    share = torch.stack([kept(dropping)[0] for _ in range(400)]).float().mean(0)
    deviation = (0.4 * 0.6 / 400) ** 0.5
    assert (share - 0.6).abs().max() < 5 * deviation
    assert abs(share.mean() - 0.6) < 5 * deviation / share.numel() ** 0.5


def test_the_generator_makes_it_reproducible_and_leaves_the_global_one_alone():
    dropping, _ = pair(0.5)
    x = torch.randn(3, 2, 8)
    before = torch.get_rng_state()
    first, second = seeded(dropping, 1)(x)[0], seeded(dropping, 1)(x)[0]
    other = seeded(dropping, 2)(x)[0]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_generator_the_global_seed_decides():
    dropping, _ = pair(0.5)
    x, found = torch.randn(3, 2, 8), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(dropping(x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_each_layer_and_direction_has_its_own_mask():
    dropping, _ = pair(0.5, num_layers=2, bidirectional=True)
    masks = kept(dropping)
    assert len(masks) == 4
    assert all(not torch.equal(masks[i], masks[j]) for i in range(4) for j in range(i))


def test_the_input_weights_are_never_dropped():
    dropping, plain = pair(0.5)
    x = torch.randn(1, 2, 8)  # one step from zero states: the context contributes its bias alone
    torch.testing.assert_close(dropping(x)[0], plain(x)[0])
