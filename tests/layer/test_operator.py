"""``torch_pru.ops.recurrence`` and the operators behind it."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from torch_pru import PRU, PRUError
from torch_pru.ops import recurrence
from torch_pru.ops.layer import recurrence_forward

from .comparing import assert_all_close, gradients

NAMES = ("gates", "weight", "bias", "h0", "c0")
CASES = {
    "plain": {},
    "no bias": {"bias": False},
    "reverse": {"reverse": True},
    "lengths": {"lengths": [2, 4, 1]},
    "lengths, reverse": {"lengths": [2, 4, 1], "reverse": True},
    "one step": {"steps": 1},
    "one group": {"groups": 1},
    "groups of one": {"groups": 6},
    "batch 0": {"batch": 0},
    "batch 1": {"batch": 1, "lengths": [3], "reverse": True},
}


def problem(steps=4, batch=3, groups=2, bias=True, lengths=None, reverse=False, dtype=torch.float64):
    """Arguments of ``recurrence`` for 6 units, and its keywords."""
    width = 6 // groups
    shapes = ((steps, batch, 4, 6), (groups, 4, width, width), (4, 6), (batch, 6), (batch, 6))
    tensors = dict(
        zip(NAMES, (torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes), strict=True)
    )
    if not bias:
        tensors["bias"] = None
    return tensors, {"lengths": None if lengths is None else torch.tensor(lengths), "reverse": reverse}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest):
    return problem(**request.param)


def operator_arguments(tensors: dict, keywords: dict, save: bool) -> tuple:
    return (*tensors.values(), keywords["lengths"], keywords["reverse"], save, "loop")


def leaves(tensors: dict) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_gradcheck(case, backend: str):
    tensors, keywords = case
    run = functools.partial(recurrence, **keywords, backend=backend)
    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


@pytest.mark.parametrize("save", [True, False])
def test_opcheck_of_the_forward(case, save: bool):
    tensors, keywords = case
    if not save:  # then nothing may ask for a gradient
        tensors = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
    checks = torch.library.opcheck(
        torch.ops.torch_pru.recurrence, operator_arguments(tensors, keywords, save)
    )
    assert set(checks.values()) == {"SUCCESS"}


def test_opcheck_of_the_backward(case):
    tensors, keywords = case
    plain = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
    results = recurrence_forward(*operator_arguments(plain, keywords, save=True))
    out, hn, cn, activations, cells = results
    grads = tuple(torch.randn_like(x) for x in (out, hn, cn))
    kept = (plain["weight"], plain["h0"], plain["c0"], out, activations, cells)
    arguments = (*grads, *kept, keywords["lengths"], keywords["reverse"], "loop")
    checks = torch.library.opcheck(torch.ops.torch_pru.recurrence_backward, arguments)
    assert set(checks.values()) == {"SUCCESS"}


def test_one_meaning(case):
    tensors, keywords = case
    found = []
    for backend in ("loop", "reference"):
        results = recurrence(*tensors.values(), **keywords, backend=backend)
        values = dict(zip(("out", "hn", "cn"), results, strict=True))
        found.append(values | gradients(results, **leaves(tensors)))
    assert_all_close(*found, rtol=0, atol=1e-12)


def test_without_gradients_the_same_numbers_and_nothing_kept(case):
    tensors, keywords = case
    expected = recurrence(*tensors.values(), **keywords, backend="loop")
    with torch.no_grad():
        actual = recurrence(*tensors.values(), **keywords, backend="loop")
        kept = recurrence_forward(*operator_arguments(tensors, keywords, save=False))[3:]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(actual, expected, strict=True))
    assert [x.numel() for x in kept] == [0, 0]


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_states_not_given_are_zero(backend: str):
    tensors, keywords = problem(lengths=[2, 4, 1])
    first = (tensors["gates"], tensors["weight"], tensors["bias"])
    zeros = torch.zeros(3, 6, dtype=torch.float64)
    expected = recurrence(*first, zeros, zeros, **keywords, backend=backend)
    torch.testing.assert_close(recurrence(*first, **keywords, backend=backend), expected, rtol=0, atol=0)
    short = [tensor.bfloat16() for tensor in first]
    assert {x.dtype for x in recurrence(*short, backend=backend)} == {torch.bfloat16}


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_finished_columns_put_out_zero_and_keep_their_state(backend: str):
    tensors, keywords = problem(lengths=[2, 4, 1])
    out, hn, cn = recurrence(*tensors.values(), **keywords, backend=backend)
    assert (out[2:, 0] == 0).all()
    assert (out[1:, 2] == 0).all()
    assert torch.equal(hn[0], out[1, 0])
    assert torch.equal(hn[2], out[0, 2])
    alone = recurrence(*_column(tensors, 0, 2).values(), backend=backend)
    torch.testing.assert_close((out[:2, :1], hn[:1], cn[:1]), alone)


def _column(tensors: dict[str, Tensor], column: int, steps: int) -> dict[str, Tensor]:
    only = {"gates": tensors["gates"][:steps, column : column + 1]}
    only |= {name: tensors[name][column : column + 1] for name in ("h0", "c0")}
    return {**tensors, **only}


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_any_strides(backend: str):
    tensors, keywords = problem(lengths=[2, 4, 1])
    expected = recurrence(*tensors.values(), **keywords, backend=backend)
    strided = {name: x.detach().transpose(0, -1).contiguous().transpose(0, -1) for name, x in tensors.items()}
    strided = {name: x.requires_grad_() for name, x in strided.items()}
    assert not strided["gates"].is_contiguous()
    actual = recurrence(*strided.values(), **keywords, backend=backend)
    assert_all_close(gradients(actual, **strided), gradients(expected, **tensors), rtol=0, atol=1e-12)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_results_are_not_views_of_arguments(backend: str):
    tensors, keywords = problem(steps=1)
    with torch.no_grad():
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        for result in recurrence(*tensors.values(), **keywords, backend=backend):
            result.fill_(99)
    assert_all_close(tensors, before, rtol=0, atol=0)


@pytest.mark.parametrize("backend", ["loop", "reference"])
def test_sixteen_bits_keep_the_cell_state_in_32(backend: str):
    tensors, keywords = problem(steps=3)
    plain = [tensor.detach() for tensor in tensors.values()]
    exact = recurrence(*plain, **keywords)
    short = [tensor.bfloat16() for tensor in plain[:-1]]
    out, hn, cn = recurrence(*short, plain[-1].float(), **keywords, backend=backend)
    assert (out.dtype, hn.dtype, cn.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    for mine, theirs in zip((out, hn, cn), exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0.05, atol=0.05)


def test_double_backward_through_the_reference():
    tensors, keywords = problem(steps=2, lengths=[2, 1, 2])
    run = functools.partial(recurrence, **keywords, backend="reference")
    assert torch.autograd.gradgradcheck(run, tuple(tensors.values()))


def test_double_backward_of_a_layer():
    pru = PRU(8, 8, backend="reference", levels=2, groups=4)
    x = torch.randn(3, 2, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(pru(x)[0].square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in pru.parameters())


@pytest.mark.parametrize("lengths", [None, [2, 1, 2]])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("only", [None, "gates"])
def test_double_backward_of_the_loop_in_float64(lengths: list[int] | None, reverse: bool, only: str | None):
    """Its own backward pass cannot be differentiated: what is differentiated is the reference's."""
    tensors, keywords = problem(steps=2, lengths=lengths, reverse=reverse)
    for name, tensor in tensors.items():
        tensor.requires_grad_(only in (None, name))
    run = functools.partial(recurrence, **keywords, backend="loop")
    assert torch.autograd.gradgradcheck(run, tuple(tensors.values()), fast_mode=True)


@pytest.mark.parametrize("levels", [1, 2])
def test_double_backward_of_a_layer_in_float64(levels: int):
    pru = PRU(8, 8, 2, bidirectional=True, levels=levels, groups=levels, dtype=torch.float64)
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    assert pru.backend_for(x)[0] == "loop"
    names, parameters = zip(*pru.named_parameters(), strict=True)

    def run(x, *parameters):
        return torch.func.functional_call(pru, dict(zip(names, parameters, strict=True)), x)[0]

    assert torch.autograd.gradgradcheck(run, (x, *parameters), fast_mode=True)


def test_double_backward_elsewhere_is_one_clear_error():
    pru = PRU(8, 8, backend="loop", levels=2, groups=4)
    x = torch.randn(3, 2, 8, requires_grad=True)
    (grad,) = torch.autograd.grad(pru(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(PRUError, match=r"double backward.*PRU\(\.\.\., backend='reference'\)"):
        grad.square().sum().backward()


def test_some_arguments_without_gradient():
    tensors, keywords = problem()
    expected = gradients(recurrence(*tensors.values(), **keywords), **tensors)
    for name in NAMES:
        only = {other: tensor.detach() for other, tensor in tensors.items()} | {name: tensors[name]}
        results = recurrence(*only.values(), **keywords)
        assert_all_close(gradients(results, **{name: tensors[name]}), {name: expected[name]})


@pytest.mark.parametrize("backend", ["loop", "reference"])
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_may_hold_anything(backend: str, reverse: bool):
    tensors, keywords = problem(lengths=[2, 4, 1], reverse=reverse)
    run = functools.partial(recurrence, **keywords, backend=backend)
    clean = run(**tensors)
    with torch.no_grad():
        for column, length in enumerate([2, 4, 1]):
            tensors["gates"][length:, column] = torch.nan
    dirty = run(**tensors)
    assert_all_close(dict(enumerate(dirty)), dict(enumerate(clean)))
    for name, gradient in gradients(dirty, **tensors).items():
        assert gradient.isfinite().all(), name
