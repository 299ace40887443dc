"""Float32 on the fused kernels, on a GPU: TF32's precision, whatever the magnitude of gradients."""

from __future__ import annotations

import pytest
import torch
from literal import compare, make_problem, replay_fused, run_fused
from shapes import AMPERE, PAPER
from torch import nn

from torch_pru import PRU
from torch_pru.errors import PRUError
from torch_pru.ops import cuda, layer
from torch_pru.ops.cuda import recurrent as recurrence
from torch_pru.ops.spec import RecurrenceCall

pytestmark = pytest.mark.gpu

OUTPUTS, GRADIENTS = 1e-3, 2e-3  # the bounds
# steps, batch, groups, units: the paper's, and clusters and grids with wide and with narrow slices
SHAPES = [(70, 20, groups, units) for groups, units in PAPER]
SHAPES += [(63, 7, 4, 100), (97, 80, 4, 350), (3, 256, 4, 350), (9, 1, 1, 1150), (63, 80, 1, 1400)]
SHAPES += [(1, 1, 4, 350), (1, 20, 4, 350), (1, 4, 1, 1000)]


def problem_of(*shape, magnitude=1.0, **options):
    problem = make_problem(*shape, torch.float32, **options)
    problem.grads = tuple(grad * magnitude for grad in problem.grads)
    return problem


def check(problem):
    results = run_fused(problem)
    assert {x.dtype for x in results.values()} == {torch.float32}
    errors = compare(problem, results)
    for name, error in errors.items():
        assert error < (GRADIENTS if name.startswith("d") else OUTPUTS), (name, errors)  # a NaN fails too


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_every_gradient(shape):
    check(problem_of(*shape, seed=sum(shape)))


@pytest.mark.parametrize("magnitude", [1e-30, 1e-8, 1e4])
@pytest.mark.parametrize("shape", [(70, 20, 4, 350), (70, 20, 1, 1000), (500, 7, 4, 100)])
def test_gradients_of_any_magnitude(shape, magnitude):
    check(problem_of(*shape, magnitude=magnitude))


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1150)])
def test_the_plan_for_older_gpus(groups, units, monkeypatch):
    monkeypatch.setattr(recurrence, "device_of", lambda index: AMPERE)
    check(problem_of(20, 20, groups, units, seed=units))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("batch", "groups", "units"), [(20, 4, 350), (7, 4, 100), (20, 2, 600)])
def test_lengths_and_direction(batch, groups, units, reverse):
    lengths = torch.randint(0, 41, (batch,), generator=torch.Generator().manual_seed(units))
    lengths[0], lengths[1] = 40, 0
    for given in (lengths.cuda(), None):
        check(problem_of(40, batch, groups, units, lengths=given, reverse=reverse, magnitude=1e-8))


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_bit_identical_from_run_to_run_and_in_any_layout(groups, units):
    problem = problem_of(70, 20, groups, units)
    first = run_fused(problem)
    for _ in range(5):
        problem.inputs["gates"] = problem.inputs["gates"].contiguous()
        again = run_fused(problem)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_a_graph_scales_anew_at_every_replay(groups, units):
    problem = problem_of(30, 20, groups, units, seed=1)
    other = problem_of(30, 20, groups, units, seed=2, magnitude=1e-8)
    results, expected = replay_fused(problem, other), run_fused(other)
    assert all(torch.equal(expected[name], results[name]) for name in expected)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_missing_gradients_count_as_zero(groups, units):
    problem = problem_of(20, 7, groups, units)
    problem.grads = (problem.grads[0], *map(torch.zeros_like, problem.grads[1:]))
    expected = run_fused(problem)
    problem.grads = (problem.grads[0], None, None)
    results = run_fused(problem)
    assert all(torch.equal(expected[name], results[name]) for name in expected)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_what_is_not_finite_travels_in_its_column_alone(groups, units, value):
    problem = problem_of(5, 7, groups, units)
    problem.grads[0][4, 2] = value
    results = run_fused(problem)
    assert not results["dgates"][:, 2].flatten(1).isfinite().all(1).any()  # at no step
    assert not results["dweight"].isfinite().all()
    others = [column for column in range(7) if column != 2]
    assert results["dgates"][:, others].isfinite().all()


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_nothing_is_rounded_in_a_single_step(groups, units):
    problem = problem_of(1, 3, groups, units)
    errors = compare(problem, run_fused(problem))
    assert max(errors[name] for name in ("out", "hn", "cn")) < 5e-6


def outputs_and_gradients(rnn, x):
    leaf = x.detach().requires_grad_()
    y, (h, c) = rnn(leaf)
    loss = y.square().sum() + h.sum() - c.square().sum()
    return [y, h, c, *torch.autograd.grad(loss, [leaf, *rnn.parameters()])]


def relative_errors(ours, theirs):
    return [((a - b).norm() / b.norm()).item() for a, b in zip(ours, theirs, strict=True)]


def test_the_setting_of_nn_lstm_decides(monkeypatch):
    pru, x = PRU(48, 64, device="cuda", levels=2, groups=4), torch.randn(9, 3, 48, device="cuda")
    results = {}
    for allowed in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
        pru.backend = "auto"
        results[allowed] = outputs_and_gradients(pru, x)
        pru.backend = "cuda" if allowed else "loop"
        again = outputs_and_gradients(pru, x)
        assert all(torch.equal(a, b) for a, b in zip(results[allowed], again, strict=True))
    assert 1e-7 < max(relative_errors(results[True], results[False])) < GRADIENTS
    pru.backend = "cuda"
    with pytest.raises(PRUError, match="allow_tf32"):
        pru(x)


@pytest.mark.parametrize(("hidden", "layers", "both"), [(350, 1, False), (128, 2, True), (1150, 1, False)])
def test_it_is_near_nn_lstm(hidden, layers, both):
    """Both round what is multiplied to ten bits of mantissa; their other sums differ in order only."""
    torch.manual_seed(0)
    lstm = nn.LSTM(96, hidden, layers, bidirectional=both, device="cuda")
    pru, x = PRU.from_lstm(lstm), torch.randn(70, 20, 96, device="cuda")
    pru.backend = "cuda"
    ours, theirs = (outputs_and_gradients(rnn, x)[:4] for rnn in (pru, lstm))
    assert max(relative_errors(ours, theirs)) < GRADIENTS


@pytest.mark.parametrize(("groups", "units"), [(2, 6), (1, 16), (1, 600)])
def test_opcheck(groups, units):
    problem = problem_of(4, 3, groups, units)
    given = (*problem.inputs.values(), None, False, True, "cuda")
    assert cuda.recurrence_reason(RecurrenceCall(**problem.inputs, lengths=None), eager=True) is None
    out, _, _, activations, cells = layer.recurrence_forward(*given)
    weight, h0, c0 = (problem.inputs[name] for name in ("weight", "h0", "c0"))
    kept = (weight, h0, c0, out, activations, cells, None, False, "cuda")
    checks = torch.library.opcheck(torch.ops.torch_pru.recurrence, given)
    checks |= torch.library.opcheck(torch.ops.torch_pru.recurrence_backward, (*problem.grads, *kept))
    assert set(checks.values()) == {"SUCCESS"}


def test_one_graph_of_the_compiler():
    torch._dynamo.reset()
    torch.manual_seed(0)
    pru, x = PRU(48, 64, 2, device="cuda", levels=2, groups=4), torch.randn(9, 3, 48, device="cuda")
    compiled = torch.compile(pru, fullgraph=True, backend="aot_eager")
    expected = outputs_and_gradients(pru, x)
    leaf = x.detach().requires_grad_()
    y, (h, c) = compiled(leaf)
    loss = y.square().sum() + h.sum() - c.square().sum()
    found = [y, h, c, *torch.autograd.grad(loss, [leaf, *pru.parameters()])]
    torch.testing.assert_close(found, expected)
    torch._dynamo.reset()
