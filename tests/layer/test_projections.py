"""``proj_size``: the state is a linear map of the units, as in ``nn.LSTM``."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import pack_sequence

from torch_pru import PRU, PRUError, convert_lstm
from torch_pru.ops import native

from .comparing import assert_all_close, gradients, paper

CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("stack", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("packed", [False, True])
def test_every_gradient_is_that_of_the_lstm(stack: dict, bias: bool, packed: bool):
    lstm = nn.LSTM(5, 7, bias=bias, proj_size=3, **stack).double()
    pru = PRU.from_lstm(lstm)
    rows = len(pru.specs)
    lengths = [2, 4, 3] if packed else [4, 4, 4]
    columns = {f"x{i}": torch.randn(n, 5, dtype=torch.float64) for i, n in enumerate(lengths)}
    sizes = {"h": 3, "c": 7}
    states = {name: torch.randn(rows, 3, size, dtype=torch.float64) for name, size in sizes.items()}
    leaves = {name: leaf.requires_grad_() for name, leaf in (columns | states).items()}
    found = []
    for rnn in (pru, lstm):
        given = [leaves[name] for name in columns]
        x = pack_sequence(given, enforce_sorted=False) if packed else torch.stack(given, dim=1)
        y, (h, c) = rnn(x, (leaves["h"], leaves["c"]))
        parameters = dict(rnn.named_parameters())
        found.append(gradients((y.data if packed else y, h, c), **leaves, **parameters))
    assert list(found[0]) == list(found[1])
    assert_all_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_first_and_second_derivatives(bidirectional: bool, groups: int):
    options = {"bidirectional": bidirectional, "levels": 2, "groups": groups, "proj_size": 2}
    pru = PRU(4, 4, 2, **options, dtype=torch.float64, init="lstm")
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    inputs = (x, *pru.parameters())

    def run(x, *parameters):
        named = dict(zip(dict(pru.named_parameters()), parameters, strict=True))
        y, (h, c) = torch.func.functional_call(pru, named, (x,))
        return y, h, c

    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)


def test_repr_attributes_and_names():
    lstm, pru = nn.LSTM(5, 7, 2, proj_size=3), PRU(5, 7, 2, proj_size=np.int64(3))
    assert repr(lstm).partition("(")[2].startswith("5, 7, proj_size=3, num_layers=2")
    assert repr(pru).partition("(")[2].startswith("5, 7, proj_size=3, num_layers=2")
    assert (pru.proj_size, type(pru.proj_size)) == (lstm.proj_size, int)
    assert "proj_size" not in repr(PRU(5, 7))
    assert list(pru.state_dict()) == list(lstm.state_dict())
    assert [name for name, _ in PRU(16, 32, proj_size=8, pooling="max").named_parameters()] == [
        "weight_ih_l0_k1",
        "weight_ih_l0_k2",
        "weight_hh_l0",
        "bias_ih_l0",
        "bias_hh_l0",
        "weight_hr_l0",
    ]


@pytest.mark.parametrize("init", ["authors", "orthogonal", "lstm"])
def test_how_a_projection_is_drawn(init: str):
    drawn = PRU(8, 64, proj_size=16, init=init).weight_hr_l0.detach()
    if init == "lstm":
        assert 0.9 / 8 < drawn.abs().max() <= 1 / 8
    else:
        torch.testing.assert_close(drawn @ drawn.t(), torch.eye(16), rtol=0, atol=1e-5)


def test_auto_fits_the_projection():
    assert PRU(64, 128, proj_size=64).groups == 4
    assert PRU(64, 128, proj_size=50).groups == 2
    assert PRU(64, 128, proj_size=33).groups == 1
    assert PRU(64, 128, proj_size=33, context_transform="pyramidal").levels == 1
    assert PRU(64, 128, 2, proj_size=33).levels == (2, 1)


@pytest.mark.parametrize("backend", ["loop", "lstm", "native"])
def test_fused_backends_refuse_in_words(backend: str):
    if backend == "native" and (missing := native.missing_reason()) is not None:
        pytest.skip(missing)
    x = torch.randn(40, 2, 16)
    with pytest.raises(PRUError, match=rf"backend='{backend}' cannot run this call: .*proj_size"):
        PRU(16, 16, proj_size=4, backend=backend)(x)
    name, reason = PRU(16, 16, proj_size=4).backend_for(x)
    assert name == "reference"
    assert reason is not None
    assert reason.endswith("(proj_size)") or "TORCH_PRU_NATIVE=0" in reason


def test_convert_lstm_keeps_the_function():
    lstm = nn.LSTM(4, 6, proj_size=3)
    x = torch.randn(5, 2, 4)
    torch.testing.assert_close(convert_lstm(nn.Sequential(lstm), report=None)(x), lstm(x), **CLOSE)
    fresh = convert_lstm(nn.LSTM(4, 64, proj_size=32), groups=2, report=None)
    assert (fresh.proj_size, fresh(x)[0].shape) == (32, (5, 2, 32))


def test_dropout_weight_drop_and_autocast():
    pru = PRU(16, 32, 2, dropout=0.5, weight_drop=0.5, **paper({"proj_size": 8}))
    x = torch.randn(5, 3, 16)
    assert not torch.equal(pru(x)[0], pru(x)[0])
    expected = pru.eval()(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, (h, _) = pru(x)
    assert (y.dtype, h.dtype) == (torch.bfloat16,) * 2
    torch.testing.assert_close(y.float(), expected[0], rtol=0, atol=0.03)
    y.float().sum().backward()
    assert all(parameter.grad is not None for parameter in pru.parameters())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_states_of_wrong_sizes_raise_and_zeros_are_the_default(bidirectional: bool):
    pru = PRU(30, 20, 2, bidirectional=bidirectional, proj_size=10)
    rows = 4 if bidirectional else 2
    x = torch.randn(10, 32, 30)
    right = torch.zeros(rows, 32, 10), torch.zeros(rows, 32, 20)
    torch.testing.assert_close(pru(x, right), pru(x), rtol=0, atol=0)
    for part, place in product((0, 1), range(3)):
        shape = list(right[part].shape)
        shape[place] = 7
        wrong = list(right)
        wrong[part] = torch.zeros(shape)
        with pytest.raises(RuntimeError, match=f"Expected hidden state {'hc'[part]}_0 of size"):
            pru(x, tuple(wrong))


def test_torch_compile_and_func():
    pru = PRU(16, 32, **paper({"proj_size": 8}))
    x = torch.randn(3, 2, 16)
    expected = pru(x)
    torch.testing.assert_close(torch.compile(pru, backend="eager", fullgraph=True)(x), expected)
    mapped = torch.func.vmap(lambda x: pru(x)[0], in_dims=1)(x)
    torch.testing.assert_close(mapped.transpose(0, 1), expected[0])
    _, slope = torch.func.jvp(lambda x: pru(x)[0], (x,), (torch.ones_like(x),))
    assert slope.abs().sum() > 0
