"""How weights are first drawn: the authors' scheme, orthogonal gates, and nn.LSTM's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_pru import PRU, GroupedLinear, PyramidalTransform, initialize

from .comparing import paper


def assert_orthogonal(matrix: Tensor) -> None:
    """Rows or columns, whichever are fewer, are orthonormal."""
    matrix = matrix.double()
    product = matrix @ matrix.t() if matrix.shape[0] <= matrix.shape[1] else matrix.t() @ matrix
    torch.testing.assert_close(product, torch.eye(len(product), dtype=torch.float64), rtol=0, atol=1e-5)


def by_group(weight: Tensor, groups: int) -> Tensor:
    """(4·M, n) as (g, 4, M/g, n)."""
    return weight.unflatten(0, (4, groups, -1)).transpose(0, 1)


def biases(pru: PRU) -> list[Tensor]:
    return [parameter for name, parameter in pru.named_parameters() if name.startswith("bias")]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_authors_context_groups_have_norm_1_and_are_orthogonal_to_each_other(groups: int):
    pru = PRU(24, 24, groups=groups, levels=2)
    rows = by_group(pru.weight_hh_l0, groups).flatten(1)
    assert rows.shape == (groups, 4 * 24 * 24 // groups**2)
    torch.testing.assert_close(rows @ rows.t(), torch.eye(groups), rtol=0, atol=1e-5)


def test_authors_input_levels_are_orthogonal_over_the_four_gates():
    pru = PRU(24, 40, levels=3, groups=4)
    for weight in (pru.weight_ih_l0_k1, pru.weight_ih_l0_k2, pru.weight_ih_l0_k3):
        assert_orthogonal(weight)


def test_authors_grouped_levels_are_orthogonal_group_by_group():
    pru = PRU(24, 40, levels=2, input_groups=2, groups=4)
    for weight in (pru.weight_ih_l0_k1, pru.weight_ih_l0_k2):
        for group in by_group(weight, 2):
            assert_orthogonal(group.flatten(0, 1))


@pytest.mark.parametrize("transform", ["linear", "grouped", "pyramidal"])
def test_orthogonal_is_each_gate_of_each_group(transform: str):
    pru = PRU(
        24, 24, init="orthogonal", **paper({"input_transform": transform, "context_transform": transform})
    )
    groups = 4 if transform == "grouped" else 1
    weights = [weight for name, weight in pru.named_parameters() if name.startswith("weight")]
    assert len(weights) == (4 if transform == "pyramidal" else 2)
    for weight in weights:
        for group in by_group(weight, groups):
            for gate in group:
                assert_orthogonal(gate)


@pytest.mark.parametrize("init", ["authors", "orthogonal"])
def test_two_biases_a_gate_and_both_zero(init: str):
    pru = PRU(24, 24, 2, init=init, levels=2, groups=4)
    assert sum(bias.numel() for bias in biases(pru)) == 2 * 2 * 4 * 24
    assert all((bias == 0).all() for bias in biases(pru))


def test_lstm_is_uniform_within_its_bound():
    pru, lstm = PRU(64, 64, groups=2, init="lstm", levels=2), nn.LSTM(64, 64)
    bound = 1 / math.sqrt(64)
    for rnn in (pru, lstm):
        for parameter in rnn.parameters():
            assert parameter.abs().max() <= bound
            assert parameter.abs().max() > 0.9 * bound
            assert abs(parameter.std() - bound / math.sqrt(3)) < 0.1 * bound


@pytest.mark.parametrize("init", ["authors", "orthogonal", "lstm"])
def test_kernels_are_normal_under_every_scheme(init: str):
    drawn = [
        PRU(8, 16, init=init, pooling="convolution", pool_window=7, levels=2, groups=4) for _ in range(40)
    ]
    kernels = torch.cat([pru.pool_ih_l0_k2.detach() for pru in drawn])
    assert abs(kernels.mean()) < 0.25
    assert 0.8 < kernels.std() < 1.2
    assert kernels.abs().max() > 1.5  # not uniform within a bound


@pytest.mark.parametrize("init", ["authors", "orthogonal", "lstm"])
@pytest.mark.parametrize("pooling", ["average", "convolution"])
def test_reset_parameters_draws_every_weight_anew(init: str, pooling: str):
    pru = PRU(8, 8, 2, init=init, pooling=pooling, context_transform="pyramidal", levels=2)
    before = {name: value.clone() for name, value in pru.state_dict().items()}
    pru.reset_parameters()
    for name, value in pru.state_dict().items():
        assert not torch.equal(value, before[name]) or (name.startswith("bias") and init != "lstm"), name


class WithoutFloat64(TorchDispatchMode):
    """A stand-in for devices that lack it, as Apple's: the meta device refuses to hold float64."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **keywords or {})
        held = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_meta]
        if any(x.dtype == torch.float64 for x in held):
            raise TypeError("this device has no float64")
        return result


@pytest.mark.parametrize("init", ["authors", "orthogonal", "lstm"])
def test_a_device_without_float64(init: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(initialize, "FLOAT64_DEVICES", ("cpu", "cuda"))
    with WithoutFloat64():
        pru = PRU(
            8, 16, 2, init=init, context_transform="pyramidal", pooling="convolution", device="meta", levels=2
        )
    assert {parameter.device.type for parameter in pru.parameters()} == {"meta"}


def test_the_global_seed_decides():
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(PRU(8, 8, levels=2, groups=4).state_dict()["weight_hh_l0"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(("kind", "number"), [(GroupedLinear, 4), (PyramidalTransform, 2)])
def test_transforms_alone_start_as_nn_linear(kind: type[GroupedLinear | PyramidalTransform], number: int):
    torch.manual_seed(1)
    module = kind(32, 64, number)
    units = 0
    for name, parameter in module.named_parameters():
        if name.startswith("weight"):
            bound = 1 / math.sqrt(parameter.shape[1])
            bias = module.bias[units : units + len(parameter)]
            units += len(parameter)
            assert 0.8 * bound < parameter.abs().max() <= bound
            assert 0.8 * bound < bias.abs().max() <= bound
    assert units == 64
