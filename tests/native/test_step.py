"""The step of ``PRUCell`` on compiled kernels, beside the equations in float64."""

from __future__ import annotations

import copy
import pickle
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torch_pru import PRUCell, PRUError
from torch_pru.ops.native import step

from . import literal


def cell_of(seed: int) -> PRUCell:
    torch.manual_seed(seed)
    pick = random.Random(seed).choice
    groups = pick([1, 2, 3])
    hidden = groups * pick([2, 6, 18, 34])
    levels = pick([1, 2]) if hidden % 4 == 0 else 1
    features = hidden if pick([True, False]) else 4 * pick([1, 3, 9])
    cell = PRUCell(features, hidden, pick([True, False]), levels=levels, groups=groups)
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=0.3)
    return cell


def literally(cell: PRUCell, x: Tensor, h: Tensor, c: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    levels = cell.spec.input.levels
    matrices, context, biases = parameters[:levels], parameters[levels], parameters[levels + 1 :]
    gates = literal.input_gates(x.view(1, -1, x.shape[-1]), matrices, [1, 3][:levels], cell.spec.residual)
    bias = biases[0] + biases[1] if biases else None
    rows = (h.view(-1, h.shape[-1]), c.view(-1, c.shape[-1]))
    _, hn, cn = literal.recurrence(gates, context, bias, *rows, None, False)
    return hn.view(h.shape), cn.view(c.shape)


def given(cell: PRUCell, rows: tuple[int, ...]) -> list[Tensor]:
    sizes = (cell.input_size, cell.hidden_size, cell.hidden_size)
    return [torch.randn(*rows, size, requires_grad=True) for size in sizes]


@pytest.fixture
def steps_run(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one for every step that was run by this path."""
    run, seen = step.Step._call, []

    def counted(*arguments):
        seen.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(step.Step, "_call", counted)
    return seen


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rows", [(), (1,), (9,)])
def test_results_and_gradients(seed: int, rows: tuple[int, ...], steps_run: list[object]):
    cell = cell_of(seed)
    leaves = [*given(cell, rows), *cell.parameters()]
    right = [leaf.detach().double().requires_grad_() for leaf in leaves]
    actual, expected = cell(leaves[0], (leaves[1], leaves[2])), literally(cell, *right[:3], right[3:])
    weights = [torch.randn_like(state) for state in actual]
    grads = torch.autograd.grad(actual, leaves, weights)
    assert len(steps_run) == 2
    right_grads = torch.autograd.grad(expected, right, [weight.double() for weight in weights])
    for mine, exact in zip((*actual, *grads), (*expected, *right_grads), strict=True):
        assert mine.shape == exact.shape
        torch.testing.assert_close(
            mine.double(), exact, rtol=0, atol=2e-5 * max(1.0, exact.abs().max().item())
        )
    with torch.no_grad():
        assert all(map(torch.equal, cell(leaves[0], (leaves[1], leaves[2])), actual))


@pytest.mark.parametrize("wanted", range(7))
def test_one_gradient_alone(wanted: int):
    cell = PRUCell(12, 24, levels=2, groups=2)
    leaves = [*given(cell, (5,)), *cell.parameters()]
    results = cell(leaves[0], (leaves[1], leaves[2]))
    everything = torch.autograd.grad(results[0].sum() + 2 * results[1].sum(), leaves)
    for index, leaf in enumerate(leaves):
        leaf.requires_grad_(index == wanted)
    h, c = cell(leaves[0], (leaves[1], leaves[2]))
    [grad] = torch.autograd.grad(h.sum() + 2 * c.sum(), leaves[wanted])
    torch.testing.assert_close(grad, everything[wanted])


def test_only_one_state_is_used():
    cell = PRUCell(12, 24)
    x, h, c = given(cell, (5,))
    for state in (0, 1):
        grads = torch.autograd.grad(cell(x, (h, c))[state].sum(), [x, h, c, *cell.parameters()])
        right = [leaf.detach().double().requires_grad_() for leaf in (x, h, c, *cell.parameters())]
        expected = torch.autograd.grad(literally(cell, *right[:3], right[3:])[state].sum(), right)
        for mine, exact in zip(grads, expected, strict=True):
            torch.testing.assert_close(mine.double(), exact, rtol=0, atol=1e-5)


def test_changed_parameters_are_seen(steps_run: list[object]):
    cell = PRUCell(12, 24)
    x, h, c = given(cell, (5,))
    with torch.no_grad():
        before = cell(x, (h, c))[0]
        cell.weight_hh.mul_(2)
        cell.bias_ih.data = cell.bias_ih.data + 1
        after = cell(x, (h, c))[0]
    assert len(steps_run) == 2
    assert not torch.equal(before, after)
    right = [leaf.detach().double() for leaf in (x, h, c, *cell.parameters())]
    torch.testing.assert_close(after.double(), literally(cell, *right[:3], right[3:])[0], rtol=0, atol=1e-6)


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_calls_that_need_more_go_to_the_layer(steps_run: list[object]):
    cell = PRUCell(12, 24)
    x, h, c = (tensor.detach() for tensor in given(cell, (5,)))
    h_right, c_right = cell(x, (h, c))
    assert len(steps_run) == 1
    apart = x.t().contiguous().t()
    for states in (
        cell(apart, (h, c)),
        torch.func.functional_call(cell.double(), {}, (x.double(), (h.double(), c.double()))),
    ):
        torch.testing.assert_close(states[0].float(), h_right)
        torch.testing.assert_close(states[1].float(), c_right)
    cell.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert cell(x, (h, c))[0].dtype == torch.bfloat16
    parametrize.register_parametrization(cell, "weight_hh", Doubled())
    assert not torch.allclose(cell(x, (h, c))[0], h_right)
    assert len(steps_run) == 1


def test_mistakes_are_reported_as_before():
    cell = PRUCell(12, 24)
    x, h, c = given(cell, (5,))
    for arguments in (
        (x[:, :5], (h, c)),
        (x, (h[:2], c)),
        (x.double(), (h, c)),
        (x, (h,)),
        (x.unsqueeze(0), (h, c)),
    ):
        with pytest.raises(PRUError):
            cell(*arguments)


@pytest.mark.parametrize("rows", [(), (5,)])
@pytest.mark.parametrize("bias", [True, False])
def test_second_derivatives_are_those_of_the_reference(rows: tuple[int, ...], bias: bool):
    cell, exact = PRUCell(12, 24, bias), PRUCell(12, 24, bias, backend="reference")
    exact.load_state_dict(cell.state_dict())
    x, h, _ = given(cell, rows)
    found = [second_derivatives(unit, x, h) for unit in (cell, exact)]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


def second_derivatives(cell: PRUCell, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Of a function of the next states; one tensor is both h and c."""
    tensors = (x, h, *cell.parameters())
    hn, cn = cell(x, (h, h))
    first = torch.autograd.grad(hn.square().sum() + cn.sin().sum(), tensors, create_graph=True)
    return torch.autograd.grad(sum(grad.square().sum() for grad in first), tensors)


def test_a_cell_that_was_called_can_be_copied():
    cell = PRUCell(12, 24)
    x, h, c = given(cell, (5,))
    expected = cell(x, (h, c))[0]
    for copied in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert torch.equal(copied(x, (h, c))[0], expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("position", ["x", "h", "c"])
@pytest.mark.parametrize("kind", ["nested", "sparse"])
def test_a_tensor_that_is_not_dense_is_refused(kind: str, position: str):
    given = {"x": torch.randn(3, 8), "h": torch.randn(3, 8), "c": torch.randn(3, 8)}
    rows = given[position]
    given[position] = torch.nested.nested_tensor([*rows]) if kind == "nested" else rows.to_sparse()
    with pytest.raises(PRUError, match="must be a dense tensor"):
        PRUCell(8, 8)(given["x"], (given["h"], given["c"]))
