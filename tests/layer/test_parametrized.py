"""Weights that ``torch.nn.utils.parametrize`` computes: once in a forward pass, and trained as any other."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from torch_pru import PRU, GroupedLinear, PRUCell, PRUError, PyramidalTransform
from torch_pru.initialize import assign

from .comparing import assert_all_close, gradients, paper

LAYERS = [
    {},
    {"weight_drop": 0.5},
    {"num_layers": 2, "bidirectional": True},
    {"input_groups": 3},  # groups of different sizes
    {"input_transform": "grouped", "context_transform": "linear"},
    {"context_transform": "pyramidal"},
    {"context_transform": "pyramidal", "pooling": "max"},
    {"context_transform": "pyramidal", "pooling": "convolution", "weight_drop": 0.5},
]


class Dropped(nn.Module):
    """DropConnect as a parametrization, which notes how often it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = 0

    def forward(self, weight: Tensor) -> Tensor:
        self.computed += 1
        return nn.functional.dropout(weight, 0.5)


def weights_of(module: nn.Module) -> list[str]:
    """The names of all weights and biases."""
    return [name for name, _ in module.named_parameters() if name.startswith(("weight", "bias"))]


def drop_everything(module: nn.Module) -> list[Dropped]:
    """Parametrize all weights and biases of a module."""
    found = []
    for name in weights_of(module):
        found.append(Dropped())
        parametrize.register_parametrization(module, name, found[-1])
    for dropped in found:
        dropped.computed = 0  # registering looks at the result
    return found


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_a_layer_computes_each_once(options: dict):
    pru = PRU(12, 12, **paper(options))
    everything, rows = drop_everything(pru), len(pru.specs)
    pru(torch.randn(4, 20, 12), (torch.zeros(rows, 20, 12), torch.zeros(rows, 20, 12)))
    assert [dropped.computed for dropped in everything] == [1] * len(everything)


@pytest.mark.parametrize("make", [PRUCell, GroupedLinear, PyramidalTransform])
def test_parts_of_a_layer_compute_each_once(make: type[nn.Module]):
    module = make(12, 12)
    everything = drop_everything(module)
    module(torch.randn(3, 12))
    assert [dropped.computed for dropped in everything] == [1] * len(everything)


@pytest.mark.parametrize("make", [PRU, PRUCell, GroupedLinear, PyramidalTransform])
@pytest.mark.parametrize("norm", [True, False], ids=["weight_norm", "dropped"])
def test_an_input_is_compared_with_what_they_are_computed_from(make: type[nn.Module], norm: bool):
    module = make(12, 12)
    for name in weights_of(module):
        if norm:
            parametrizations.weight_norm(module, name)
        else:
            parametrize.register_parametrization(module, name, Dropped())
    with pytest.raises(PRUError, match=r"input dtype \(torch.float64\) does not match weight dtype"):
        module(torch.randn(3, 12, dtype=torch.float64))


@pytest.mark.parametrize("init", ["authors", "orthogonal", "lstm"])
def test_they_are_drawn_anew(init: str):
    pru = PRU(8, 8, init=init, pooling="convolution", levels=2, groups=4)
    for name in ("weight_hh_l0", "pool_ih_l0_k2"):
        parametrizations.weight_norm(pru, name)
    before = pru.weight_hh_l0, pru.pool_ih_l0_k2
    pru.reset_parameters()
    for drawn, old in zip((pru.weight_hh_l0, pru.pool_ih_l0_k2), before, strict=True):
        assert not torch.isclose(drawn, old).any()
    if init == "authors":
        by_group = pru.weight_hh_l0.unflatten(0, (4, 4, 2)).transpose(0, 1)
        torch.testing.assert_close(by_group.flatten(1).norm(dim=1), torch.ones(4))
    pru(torch.randn(3, 2, 8))[0].sum().backward()


def test_a_bias_is_drawn_anew_or_refused():
    pru = PRU(8, 8, levels=2, groups=4)
    nn.init.ones_(pru.bias_hh_l0)
    parametrizations.weight_norm(pru, "bias_hh_l0")
    pru.reset_parameters()
    assert not pru.parametrizations.bias_hh_l0.original1.any()
    pru = PRU(8, 8, levels=2, groups=4)
    parametrize.register_parametrization(pru, "weight_hh_l0", Dropped())
    wrong = r"weight_hh_l0 cannot be set: .*Dropped does not implement right_inverse"
    with pytest.raises(PRUError, match=wrong):
        assign(pru, "weight_hh_l0", torch.zeros(32, 2))


@pytest.mark.parametrize("weight_drop", [0.0, 0.5])
@pytest.mark.parametrize("pooling", ["average", "max", "convolution"])
def test_weight_norm_of_a_pyramidal_context(pooling: str, weight_drop: float):
    """Its gradients are those of the plain weight, handed on to direction and length."""
    plain = PRU(
        8, 8, init="lstm", context_transform="pyramidal", pooling=pooling, weight_drop=weight_drop, levels=2
    )
    normed = copy.deepcopy(plain)
    x, states = torch.randn(4, 3, 8), (torch.randn(1, 3, 8), torch.randn(1, 3, 8))
    parametrizations.weight_norm(normed, "weight_hh_l0_k1")
    found = []
    for pru in (plain, normed):
        pru.generator = torch.Generator().manual_seed(1)
        y, _ = pru(x, states)
        found.append((y, gradients([y], **dict(pru.named_parameters()))))
    (y, expected), (y_normed, actual) = found
    torch.testing.assert_close(y_normed, y)
    kept = normed.parametrizations.weight_hh_l0_k1
    length, direction = kept.original0, kept.original1
    weight = length * direction / direction.square().sum(1, keepdim=True).sqrt()
    parts = torch.autograd.grad(weight, (length, direction), expected.pop("weight_hh_l0_k1"))
    for number, part in enumerate(parts):
        expected[f"parametrizations.weight_hh_l0_k1.original{number}"] = part
    assert_all_close(actual, expected)
