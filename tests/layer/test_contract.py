"""The contract of ``nn.LSTM``: a PRU made from one takes and gives what it takes and gives."""

from __future__ import annotations

import typing
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from torch_pru import PRU, PRUCell

from .comparing import assert_all_close, gradients, paper

STACKS = [
    {},
    {"num_layers": 2},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "bias": False},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
    {"proj_size": 3},
    {"proj_size": 4, "num_layers": 2, "bidirectional": True, "bias": False},
    {"proj_size": 1, "num_layers": 3, "bidirectional": True, "batch_first": True},
]
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def pair(**stack: object) -> tuple[nn.LSTM, PRU]:
    lstm = nn.LSTM(5, 7, **stack)
    return lstm, PRU.from_lstm(lstm)


def rows(lstm: nn.LSTM) -> int:
    return lstm.num_layers * (2 if lstm.bidirectional else 1)


def states(lstm: nn.LSTM, *batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows(lstm), *batch, lstm.proj_size or 7), torch.randn(rows(lstm), *batch, 7)


def assert_same(actual: tuple, expected: tuple) -> None:
    (y, (h, c)), (y_expected, (h_expected, c_expected)) = actual, expected
    if isinstance(y_expected, PackedSequence):
        assert isinstance(y, PackedSequence)
        assert torch.equal(y.batch_sizes, y_expected.batch_sizes)
        for name in ("sorted_indices", "unsorted_indices"):
            mine, theirs = getattr(y, name), getattr(y_expected, name)
            assert mine is theirs is None or torch.equal(mine, theirs)
        y, y_expected = y.data, y_expected.data
    for mine, theirs in ((y, y_expected), (h, h_expected), (c, c_expected)):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 1, 5), (4, 5)], ids=str)
@pytest.mark.parametrize("with_states", [False, True], ids=["no hx", "hx"])
def test_tensors_in_and_out(stack: dict, shape: tuple[int, ...], with_states: bool):
    lstm, pru = pair(**stack)
    x = torch.randn(shape)
    batch = () if len(shape) == 2 else (shape[0] if lstm.batch_first else shape[1],)
    hx = states(lstm, *batch) if with_states else None
    assert_same(pru(x, hx), lstm(x, hx))


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_gradients_of_input_and_states(stack: dict):
    lstm, pru = pair(**stack)
    leaves = dict(zip("xhc", (torch.randn(4, 4, 5), *states(lstm, 4)), strict=True))
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    found = []
    for rnn in (pru, lstm):
        y, (h, c) = rnn(leaves["x"], (leaves["h"], leaves["c"]))
        found.append(gradients((y, h, c), **leaves))
    assert_all_close(*found, **CLOSE)


@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize("with_states", [False, True], ids=["no hx", "hx"])
@pytest.mark.parametrize(
    ("lengths", "is_sorted"), [([4, 2, 2, 1], True), ([2, 4, 1, 4], False), ([3, 3], True)]
)
def test_packed_sequences(stack: dict, lengths: list[int], is_sorted: bool, with_states: bool):
    lstm, pru = pair(**stack)
    packed = pack_sequence([torch.randn(length, 5) for length in lengths], enforce_sorted=is_sorted)
    hx = states(lstm, len(lengths)) if with_states else None
    assert_same(pru(packed, hx), lstm(packed, hx))


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_padding_has_no_influence(backend: str):
    pru = PRU(8, 8, 2, bidirectional=True, backend=backend, levels=2, groups=4)
    padded = torch.randn(5, 3, 8)
    other = padded.clone()
    other[3:, 0] = 99.0
    lengths = torch.tensor([3, 5, 5])
    one, two = (pru(pack_padded_sequence(x, lengths, enforce_sorted=False)) for x in (padded, other))
    assert torch.equal(one[0].data, two[0].data)
    assert torch.equal(one[1][0], two[1][0])


@pytest.mark.parametrize("context", ["grouped", "pyramidal"])
@pytest.mark.parametrize("pooling", ["average", "max", "skip", "convolution"])
def test_batch_0(pooling: str, context: str):
    pru = PRU(8, 8, 2, bidirectional=True, pooling=pooling, **paper({"context_transform": context}))
    y, (h, c) = pru(torch.randn(3, 0, 8, requires_grad=True))
    assert (y.shape, h.shape, c.shape) == ((3, 0, 16), (4, 0, 8), (4, 0, 8))
    y.sum().backward()
    assert all((p.grad == 0).all() for p in pru.parameters())


def test_dropout_with_one_layer_warns_and_does_nothing():
    with pytest.warns(UserWarning, match=r"dropout=0\.5 has no effect with num_layers=1") as caught:
        pru = PRU(8, 8, dropout=0.5, levels=2, groups=4)
    assert caught[0].filename == __file__  # points at the caller
    x = torch.randn(3, 2, 8)
    assert torch.equal(pru(x)[0], pru.eval()(x)[0])


def test_no_warning_without_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PRU(8, 8, 2, dropout=0.5, levels=2, groups=4)
        PRU(8, 8, 1, dropout=0.0, levels=2, groups=4)


def test_dropout_acts_between_layers_in_training_only():
    pru = PRU(8, 8, 2, dropout=0.5, levels=2, groups=4)
    x = torch.randn(3, 2, 8)
    first, second = pru(x), pru(x)
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1][0][0], second[1][0][0])  # the first layer reads x itself
    assert (first[0] != 0).all()  # and the last layer's output is whole
    assert torch.equal(pru.eval()(x)[0], pru(x)[0])


def test_dropout_1_leaves_the_upper_layer_nothing_to_read():
    """nn.LSTM takes 1.0 too: the upper layer then sees zeros."""
    pru = PRU(8, 8, 2, dropout=1.0, levels=2, groups=4)
    one, two = pru(torch.randn(3, 2, 8))[0], pru(torch.randn(3, 2, 8))[0]
    assert torch.equal(one, two)


def test_backward_in_eval():
    pru = PRU(8, 8, 2, levels=2, groups=4).eval()
    pru(torch.randn(3, 2, 8))[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in pru.parameters())


def test_flatten_parameters_changes_nothing():
    pru = PRU(8, 8, levels=2, groups=4)
    before = {name: value.clone() for name, value in pru.state_dict().items()}
    assert pru.flatten_parameters() is None
    assert_all_close(dict(pru.state_dict()), before, rtol=0, atol=0)


def test_argument_order_is_that_of_the_lstm():
    arguments = (8, 12, 2, False, True, 0.25, True)
    lstm, pru = nn.LSTM(*arguments), PRU(*arguments, levels=2, groups=4)
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


def test_a_backend_for_the_layer_made_from_an_lstm():
    lstm = nn.LSTM(5, 7, 2)
    pru = PRU.from_lstm(lstm, backend="reference")
    assert pru.backend == "reference"
    x = torch.randn(4, 3, 5, requires_grad=True)
    (slope,) = torch.autograd.grad(pru(x)[0].square().sum(), x, create_graph=True)
    slope.square().sum().backward()  # which other backends refuse
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", [Tensor, PackedSequence])
def test_a_type_checker_knows_what_comes_out(kind: type):
    hints = [typing.get_type_hints(overload) for overload in typing.get_overloads(PRU.forward)]
    [result] = [hint["return"] for hint in hints if hint["input"] is kind]
    assert result == tuple[kind, tuple[Tensor, Tensor]]


def test_everything_else_goes_by_name():
    with pytest.raises(TypeError):
        PRU(8, 8, 1, True, False, 0.0, False, 2, levels=2, groups=4)


def test_cell_against_lstm_cell():
    lstm_cell = nn.LSTMCell(5, 7)
    cell = PRUCell(5, 7, levels=1, groups=1, residual=False)
    assert [cell.bias, PRUCell(5, 7, bias=False, groups=1, levels=1).bias] == [lstm_cell.bias, False]
    cell.load_state_dict(lstm_cell.state_dict())
    for shape in ((3, 5), (5,), (0, 5)):
        hx = torch.randn(*shape[:-1], 7), torch.randn(*shape[:-1], 7)
        for given in (None, hx):
            results = zip(cell(torch.ones(shape), given), lstm_cell(torch.ones(shape), given), strict=True)
            for mine, theirs in results:
                torch.testing.assert_close(mine, theirs, **CLOSE)
