"""The transforms as modules of their own, the sizes of levels, and the paper's parameter counts."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from torch_pru import PRU, GroupedLinear, PRUError, PyramidalTransform
from torch_pru import pooling as pooling_module
from torch_pru.options import split_levels

from .comparing import paper

POOLINGS = ("average", "max", "skip", "convolution")


@pytest.mark.parametrize(
    ("outputs", "levels", "split", "sizes"),
    [
        (1400, 2, "halving", (1050, 350)),
        (1000, 2, "halving", (750, 250)),
        (600, 4, "halving", (337, 150, 75, 38)),
        (600, 4, "equal", (150, 150, 150, 150)),
        (64, 1, "halving", (64,)),
        (1, 1, "halving", (1,)),
        (4, 2, "halving", (3, 1)),
        (5, 2, "halving", (3, 2)),
        (8, 3, "halving", (5, 2, 1)),
        (9, 3, "halving", (4, 3, 2)),
        (16, 4, "halving", (9, 4, 2, 1)),
    ],
)
def test_sizes_of_levels(outputs: int, levels: int, split: str, sizes: tuple[int, ...]):
    assert split_levels(outputs, levels, split) == sizes
    transform = PyramidalTransform(8, outputs, levels, level_split=split)
    assert tuple(transform.level_sizes) == sizes
    shapes = [tuple(weight.shape) for name, weight in transform.named_parameters() if "weight" in name]
    assert shapes == [(size, 8 // 2**level) for level, size in enumerate(sizes)]


@pytest.mark.parametrize("levels", range(1, 6))
def test_any_size_from_two_to_the_levels_is_shared_out_whole(levels: int):
    for outputs in range(2**levels, 2**levels + 40):
        sizes = split_levels(outputs, levels)
        assert sum(sizes) == outputs
        assert min(sizes) >= 1


def test_pooling_by_hand():
    x = torch.tensor([1.0, 2.0, 3.0, -6.0, 5.0, 4.0, -7.0, -8.0])
    views = {
        "average": [[1.0, -1 / 3, 1.0, -11 / 3], [2 / 9, -1.0]],  # the padding is counted
        "max": [[2.0, 3.0, 5.0, 4.0], [3.0, 5.0]],
        "skip": [[1.0, 3.0, 5.0, -7.0], [1.0, 5.0]],
    }
    for pooling, expected in views.items():
        first, *below = PyramidalTransform(8, 8, 3, pooling=pooling).pyramid(x)
        assert torch.equal(first, x)
        for view, numbers in zip(below, expected, strict=True):
            torch.testing.assert_close(view, torch.tensor(numbers))


def test_max_of_negative_numbers_is_not_the_padding():
    x = -torch.arange(1.0, 9.0)
    assert PyramidalTransform(8, 8, pooling="max").pyramid(x)[1].tolist() == [-1, -2, -4, -6]


def test_convolution_by_hand():
    transform = PyramidalTransform(4, 4, pooling="convolution")
    kernel = torch.tensor([0.5, -1.0, 2.0])
    with torch.no_grad():
        transform.pool_k2.copy_(kernel)
    view = transform.pyramid(torch.tensor([1.0, 2.0, 3.0, 4.0]))[1]
    torch.testing.assert_close(view, torch.tensor([-1.0 + 4.0, 1.0 - 3.0 + 8.0]).tanh())
    deeper = PyramidalTransform(8, 8, 3, pooling="convolution")
    assert (deeper.pool_k2.shape, deeper.pool_k3.shape) == ((3,), (3,))


def test_a_window_for_each_level():
    x = torch.randn(5, 16)
    views = PyramidalTransform(16, 16, 3, pool_window=(5, 1)).pyramid(x)
    by_hand = F.pad(x, (2, 2)).unfold(-1, 5, 2).mean(-1)
    torch.testing.assert_close(views[1], by_hand)
    torch.testing.assert_close(views[2], by_hand[:, ::2])


@pytest.mark.parametrize("pooling", ["average", "skip"])
@pytest.mark.parametrize(("levels", "groups"), [(1, 1), (3, 1), (1, 4), (3, 2), (3, 3)])
def test_one_matrix_does_the_same(levels: int, groups: int, pooling: str):
    options = {"groups": groups, "pooling": pooling}
    transform = PyramidalTransform(16, 20, levels, **options, dtype=torch.float64)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    weight = transform.dense_weight()
    assert weight.shape == (20, 16)
    torch.testing.assert_close(F.linear(x, weight, transform.bias), transform(x))
    assert PyramidalTransform(16, 20, levels, bias=False).bias is None


def test_a_grouped_transform_has_the_weight_of_a_grouped_convolution():
    transform, x = GroupedLinear(8, 12, 4), torch.randn(5, 8)
    assert (transform.weight.shape, transform.bias.shape) == ((12, 2), (12,))
    convolved = F.conv1d(x.unsqueeze(-1), transform.weight.unsqueeze(-1), transform.bias, groups=4)
    torch.testing.assert_close(transform(x), convolved.squeeze(-1))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_do_not_mix(groups: int):
    transform = GroupedLinear(8, 12, groups)
    x = torch.randn(8, requires_grad=True)
    for unit in range(12):
        (gradient,) = torch.autograd.grad(transform(x)[unit], x)
        group = unit // (12 // groups)
        mine = slice(group * 8 // groups, (group + 1) * 8 // groups)
        assert (gradient[mine] != 0).all()
        assert (gradient != 0).sum() == 8 // groups


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("shape", [(16,), (3, 16), (2, 3, 16), (0, 16)])
def test_any_leading_dimensions(shape: tuple[int, ...], pooling: str):
    plain = PyramidalTransform(16, 12, 3, pooling=pooling)
    assert plain(torch.randn(shape)).shape == (*shape[:-1], 12)
    assert GroupedLinear(16, 12)(torch.randn(shape)).shape == (*shape[:-1], 12)


def test_one_level_is_a_linear_transform():
    transform = PyramidalTransform(9, 5, levels=1)
    x = torch.randn(3, 9)
    torch.testing.assert_close(transform(x), F.linear(x, transform.weight, transform.bias))


def count(**options: object) -> int:
    return sum(parameter.numel() for parameter in PRU(600, 600, device="meta", **paper(options)).parameters())


BIASES = 2 * 4 * 600
LINEAR = 4 * 600 * 600
# 337 of 600, 150 of 300, 75 of 150, 38 of 75
PYRAMID = 4 * (337 * 600 + 150 * 300 + 75 * 150 + 38 * 75)


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"input_transform": "linear", "context_transform": "linear"}, 2 * LINEAR),
        ({"input_transform": "grouped", "context_transform": "grouped", "groups": 4}, 2 * LINEAR // 4),
        ({"context_transform": "grouped", "groups": 4, "levels": 4}, PYRAMID + LINEAR // 4),
        ({"context_transform": "linear", "levels": 4}, PYRAMID + LINEAR),
        ({"context_transform": "pyramidal", "levels": 4}, 2 * PYRAMID),
        ({"context_transform": "linear", "levels": 4, "residual": False}, PYRAMID + LINEAR),
        ({"context_transform": "linear", "levels": 4, "pooling": "convolution"}, PYRAMID + LINEAR + 3 * 3),
    ],
    ids=str,
)
def test_parameters_of_the_ablation_rows(options: dict, weights: int):
    assert count(**options) == weights + BIASES


def test_savings_that_the_paper_reports():
    """Grouped levels alone reach its 77% and 0.64 M; equal levels its 53%."""
    two = count(levels=2, groups=4, input_groups=4) - BIASES
    assert 1 - two / (2 * LINEAR) == pytest.approx(0.766, abs=0.001)
    three = count(levels=3, groups=4, input_groups=4) - BIASES
    assert three == pytest.approx(0.641e6, abs=0.001e6)
    equal = sum(
        p.numel() for p in PyramidalTransform(600, 600, 4, bias=False, level_split="equal").parameters()
    )
    assert 1 - equal / 600**2 == pytest.approx(0.53, abs=0.005)


@pytest.mark.parametrize(
    ("vocabulary", "hidden", "groups", "millions"),
    [
        (10_000, 1000, 1, 18.97),
        (10_000, 1200, 2, 18.51),
        (10_000, 1400, 4, 18.90),
        (33_278, 1000, 1, 28.30),
        (33_278, 1200, 2, 27.85),
        (33_278, 1400, 4, 28.23),
    ],
)
def test_parameters_of_the_language_models(vocabulary: int, hidden: int, groups: int, millions: float):
    sizes = (400, hidden, hidden, 400)
    layers = [PRU(n, m, groups=groups, device="meta", levels=2) for n, m in itertools.pairwise(sizes)]
    total = vocabulary * 400 + vocabulary + sum(p.numel() for layer in layers for p in layer.parameters())
    assert total / 1e6 == pytest.approx(millions, abs=0.006)


def test_every_pooling_has_a_case_and_is_documented():
    assert pooling_module.POOLINGS == POOLINGS
    for name in POOLINGS:
        assert pooling_module.subsample(torch.randn(2, 8), name, 3, torch.randn(3)).shape == (2, 4)
        for layer in (PRU, PyramidalTransform):
            assert f'``"{name}"``' in str(layer.__doc__)
    with pytest.raises(PRUError, match="no case for pooling='median'"):
        pooling_module.subsample(torch.randn(2, 8), "median", 3)
