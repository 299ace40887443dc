"""Weights from elsewhere: ``nn.LSTM`` and the authors' implementation."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from torch_pru import PRU, PRUCell, PRUError, load_reference_weights

from .comparing import paper


def authors_weights(pru: PRU) -> dict[str, Tensor]:
    """Random weights in the authors' shapes for one cell of ``pru``."""
    spec, shapes = pru.specs[0], {}
    groups, width = spec.groups, spec.hidden_size // spec.groups
    for i, (outputs, inputs) in enumerate(
        zip(spec.input.level_sizes, spec.input.level_features, strict=True)
    ):
        shapes[f"pt.pyramid.{i}.weight"] = (4 * outputs, inputs)
        shapes[f"pt.pyramid.{i}.bias"] = (4 * outputs,)
    shapes |= {"glt.W": (groups, width, 4 * width), "glt.bias": (groups, 4 * width)}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_from_lstm_copies_and_shares_nothing():
    lstm = nn.LSTM(5, 7, 2)
    pru = PRU.from_lstm(lstm)
    x = torch.randn(3, 2, 5)
    expected = lstm(x)[0].detach().clone()
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.zero_()
    torch.testing.assert_close(pru(x)[0], expected)


def test_a_state_of_nn_lstm_is_told_of_from_lstm():
    pru, lstm = nn.ModuleDict({"rnn": PRU(8, 8, levels=2, groups=4)}), nn.ModuleDict({"rnn": nn.LSTM(8, 8)})
    with (
        pytest.warns(UserWarning, match=r"nn\.LSTM.*see PRU\.from_lstm"),
        pytest.raises(RuntimeError, match=r"size mismatch for rnn\.weight_hh_l0"),
    ):
        pru.load_state_dict(lstm.state_dict(), strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pru.load_state_dict(pru.state_dict())


def test_from_lstm_takes_everything_over():
    lstm = nn.LSTM(5, 7, 2, False, True, 0.25, True, dtype=torch.float64).eval()
    pru = PRU.from_lstm(lstm)
    assert not pru.training
    for name in (
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
    ):
        assert getattr(pru, name) == getattr(lstm, name)
    assert {parameter.dtype for parameter in pru.parameters()} == {torch.float64}
    assert not any(spec.residual for spec in pru.specs)
    assert sum(p.numel() for p in pru.parameters()) == sum(p.numel() for p in lstm.parameters())
    assert all(parameter.requires_grad for parameter in pru.parameters())
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(pru(x)[0], lstm(x)[0], rtol=0, atol=1e-12)


def test_from_lstm_of_equal_sizes_has_no_residual():
    lstm = nn.LSTM(6, 6, 2)
    x = torch.randn(3, 2, 6)
    torch.testing.assert_close(PRU.from_lstm(lstm)(x)[0], lstm(x)[0])


def test_from_lstm_then_training_stays_together():
    lstm = nn.LSTM(5, 7, dtype=torch.float64)
    pru, x = PRU.from_lstm(lstm), torch.randn(4, 3, 5, dtype=torch.float64)
    for rnn in (lstm, pru):
        optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            rnn(x)[0].square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(pru(x)[0], lstm(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_weights_go_into_the_layer_of_that_index_alone(index: int):
    pru = PRU(16, 16, 4, levels=2, groups=4)
    before = {name: value.clone() for name, value in pru.state_dict().items()}
    weights = authors_weights(pru)
    load_reference_weights(pru, weights, index)
    alone = PRUCell(16, 16, levels=2, groups=4)
    load_reference_weights(alone, weights)
    for name, value in pru.state_dict().items():
        mine = f"_l{index}" in name
        expected = alone.state_dict()[name.replace(f"_l{index}", "")] if mine else before[name]
        assert torch.equal(value, expected), name


def test_numpy_arrays_and_flat_biases_are_taken_too():
    pru, other = PRU(16, 16, levels=2, groups=4), PRU(16, 16, levels=2, groups=4)
    weights = authors_weights(pru)
    load_reference_weights(pru, weights)
    load_reference_weights(
        other, {**{name: w.numpy() for name, w in weights.items()}, "glt.bias": weights["glt.bias"].flatten()}
    )
    x = torch.randn(3, 2, 16)
    assert torch.equal(pru(x)[0], other(x)[0])


def test_weights_go_into_a_parametrized_layer_too():
    plain, parametrized = PRU(16, 16, levels=2, groups=4), PRU(16, 16, levels=2, groups=4)
    parametrizations.weight_norm(parametrized, "weight_ih_l0_k1")
    parametrizations.spectral_norm(parametrized, "weight_hh_l0")
    weights = authors_weights(plain)
    before = {name: weight.clone() for name, weight in weights.items()}
    for pru in (plain, parametrized):
        load_reference_weights(pru, weights)
    torch.testing.assert_close(parametrized.weight_ih_l0_k1, plain.weight_ih_l0_k1)
    stored = parametrized.parametrizations.weight_hh_l0.original
    torch.testing.assert_close(stored, plain.weight_hh_l0)
    nn.init.zeros_(stored)
    assert all(torch.equal(weight, before[name]) for name, weight in weights.items())


def test_a_layer_without_bias_wants_none():
    pru = PRU(16, 16, bias=False, levels=2, groups=4)
    weights = {name: w for name, w in authors_weights(pru).items() if not name.endswith("bias")}
    load_reference_weights(pru, weights)
    with pytest.raises(PRUError, match=r"unknown \['glt.bias'"):
        load_reference_weights(pru, authors_weights(pru))


def test_bad_mappings_are_refused_and_nothing_is_half_loaded():
    pru = PRU(16, 16, levels=2, groups=4)
    before = {name: value.clone() for name, value in pru.state_dict().items()}
    good = authors_weights(pru)
    lacking = {name: weight for name, weight in good.items() if name != "glt.W"}
    for mapping, match in (
        (lacking, r"lacks \['glt\.W'\]"),
        ({**good, "glt.w": good["glt.W"]}, r"unknown \['glt\.w'\]"),
        ({**good, "glt.W": good["glt.W"][:2]}, r"mapping\['glt\.W'\] has shape \(2, 4, 16\)"),
        (
            {**good, "pt.pyramid.0.weight": good["pt.pyramid.0.weight"].t()},
            r"pt\.pyramid\.0\.weight.*\(16, 48\)",
        ),
        ({**good, "glt.W": good["glt.W"].transpose(1, 2)}, r"glt\.W.*\(4, 16, 4\).*\(4, 4, 16\)"),
        ({**good, "glt.bias": good["glt.bias"][:2]}, r"glt\.bias.*\(2, 16\); expected 64 elements"),
    ):
        with pytest.raises(PRUError, match=match):
            load_reference_weights(pru, mapping)
        for name, value in pru.state_dict().items():
            assert torch.equal(value, before[name]), match


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"input_transform": "linear"}, "input_transform='pyramidal'"),
        ({"input_groups": 2}, "input_groups=1"),
        ({"context_transform": "pyramidal"}, "context_transform='grouped'"),
    ],
    ids=str,
)
def test_other_units_than_the_authors_are_refused(options: dict, wanted: str):
    with pytest.raises(PRUError, match=f"the authors' unit has .*{wanted}"):
        load_reference_weights(PRU(16, 16, **paper(options)), {})


@pytest.mark.parametrize("index", [-1, 2, 99])
def test_indices_outside_are_refused(index: int):
    with pytest.raises(PRUError, match=rf"index={index} .* 0 to 1"):
        load_reference_weights(PRU(16, 16, 2, levels=2, groups=4), {}, index)


def test_an_index_for_a_cell_is_refused():
    cell = PRUCell(16, 16, levels=2, groups=4)
    with pytest.raises(PRUError, match="index=1"):
        load_reference_weights(cell, authors_weights(PRU(16, 16, levels=2, groups=4)), 1)


def test_from_lstm_draws_nothing_and_leaves_frozen_what_is() -> None:
    lstm = nn.LSTM(8, 12, num_layers=2)
    lstm.weight_hh_l1.requires_grad_(False)
    state = torch.get_rng_state()
    pru = PRU.from_lstm(lstm)
    assert torch.equal(torch.get_rng_state(), state)
    frozen = [name for name, weight in pru.named_parameters() if not weight.requires_grad]
    assert frozen == ["weight_hh_l1"]
