"""The fused kernels against float64, on a GPU."""

from __future__ import annotations

import threading

import pytest
import torch
from literal import compare, make_problem, replay_fused, run_fused
from shapes import AMPERE

from torch_pru import PRU
from torch_pru.ops import cuda
from torch_pru.ops.cuda import recurrent as recurrence
from torch_pru.ops.spec import RecurrenceCall

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

BOUNDS = {torch.float16: (1e-3, 2e-3), torch.bfloat16: (4e-3, 1e-2)}
# steps, batch, groups, units: clusters of every size, the grid, odd tails of each
SHAPES = [(steps, batch, 4, 350) for steps in (1, 63, 70, 97) for batch in (1, 7, 20, 80)]
SHAPES += [
    (63, 7, 4, 100),
    (97, 80, 4, 100),
    (70, 20, 4, 250),
    (63, 256, 4, 350),
    (70, 20, 2, 300),
    (70, 20, 4, 150),
]
SHAPES += [
    (63, 20, 2, 200),
    (70, 20, 2, 600),
    (63, 7, 2, 600),
    (1, 1, 2, 600),
    (70, 20, 1, 400),
    (97, 80, 1, 600),
]
SHAPES += [(70, 20, 1, units) for units in (1000, 1024, 1150, 1200, 1400)]
SHAPES += [(1, 1, 1, 1000), (97, 7, 1, 1150), (63, 80, 1, 1400), (63, 1, 1, 1150), (2, 256, 1, 1000)]


def check(problem, results):
    dtype = problem.inputs["gates"].dtype
    errors = compare(problem, results)
    for name, error in errors.items():
        bound = BOUNDS[dtype][name.startswith("d")]
        assert error < bound, (name, errors)  # a NaN fails too


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("steps", "batch", "groups", "units"), SHAPES)
def test_outputs_and_every_gradient(steps, batch, groups, units, dtype):
    problem = make_problem(steps, batch, groups, units, dtype, seed=steps + batch + units)
    check(problem, run_fused(problem))


@pytest.mark.parametrize(
    ("batch", "groups", "units"), [(20, 4, 350), (7, 4, 100), (20, 1, 1000), (20, 1, 1400)]
)
def test_the_plan_for_older_gpus(batch, groups, units, monkeypatch):
    """No clusters, fewer multiprocessors, less shared memory; compiled for the GPU that is there."""
    monkeypatch.setattr(recurrence, "device_of", lambda index: AMPERE)
    problem = make_problem(20, batch, groups, units, torch.bfloat16, seed=units)
    check(problem, run_fused(problem))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("batch", "groups", "units"), [(20, 4, 350), (7, 4, 100), (20, 2, 600), (30, 1, 1000)]
)
def test_lengths_and_direction(batch, groups, units, reverse):
    lengths = torch.randint(0, 41, (batch,), generator=torch.Generator().manual_seed(units))
    lengths[0], lengths[1] = 40, 0
    problem = make_problem(40, batch, groups, units, torch.float16, 3, lengths.cuda(), reverse)
    check(problem, run_fused(problem))
    problem = make_problem(40, batch, groups, units, torch.float16, 3, None, reverse)
    check(problem, run_fused(problem))


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_bit_identical_from_run_to_run(groups, units):
    problem = make_problem(70, 20, groups, units, torch.float16)
    first = run_fused(problem)
    for _ in range(10):
        again = run_fused(problem)
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 600)])
def test_other_dtypes_and_layouts_of_the_arguments(groups, units):
    problem = make_problem(20, 7, groups, units, torch.bfloat16, unit_major=False)
    expected = run_fused(problem)
    for name in ("weight", "bias", "h0"):
        problem.inputs[name] = problem.inputs[name].float()
    results = run_fused(problem)
    assert results["dweight"].dtype == torch.float32
    check(problem, results)
    assert torch.equal(expected["out"], results["out"])


def test_inference_saves_nothing_and_agrees():
    x = make_problem(20, 7, 4, 350, torch.float16).inputs.values()
    out, hn, cn, activations, cells = cuda.forward(RecurrenceCall(*x, None), False)
    kept = cuda.forward(RecurrenceCall(*x, None), True)
    assert activations.numel() == cells.numel() == 0
    assert all(torch.equal(a, b) for a, b in zip((out, hn, cn), kept[:3], strict=True))


STATES = [(20, 7, 4, 350), (20, 7, 1, 1000), (20, 30, 2, 600), (1, 3, 4, 350)]  # cluster, grids, token


@pytest.mark.parametrize("dtype", [*BOUNDS, torch.float32], ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("steps", "batch", "groups", "units"), STATES)
def test_states_not_given_are_zero(steps, batch, groups, units, reverse, dtype):
    """To the bit, and the cell state then has the dtype of the gates."""
    lengths = torch.arange(batch, device="cuda").clamp(max=steps) if steps > 1 else None
    problem = make_problem(steps, batch, groups, units, dtype, 5, lengths, reverse)
    for state in ("h0", "c0"):
        problem.inputs[state] = torch.zeros_like(problem.inputs[state])
    expected = run_fused(problem)
    problem.inputs |= {"h0": None, "c0": None}
    results = run_fused(problem)
    assert results["cn"].dtype == dtype
    for name, x in expected.items():
        assert torch.equal(results[name], x.to(dtype) if name == "cn" else x), name


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("steps", "batch", "groups", "units"), STATES)
def test_sixteen_bits_of_the_cell_state(steps, batch, groups, units, dtype):
    """The kernels read and write them as they are: the same numbers as from float32, rounded once."""
    problem = make_problem(steps, batch, groups, units, dtype, 6)
    rounded = problem.inputs["c0"].to(dtype)
    problem.inputs["c0"] = rounded.float()
    expected = run_fused(problem)
    problem.inputs["c0"] = rounded
    results = run_fused(problem)
    assert results["cn"].dtype == dtype
    for name, x in expected.items():
        assert torch.equal(results[name], x.to(dtype) if name == "cn" else x), name


def test_a_cell_state_of_another_dtype():
    problem = make_problem(20, 7, 4, 350, torch.bfloat16, 7)
    problem.inputs["c0"] = problem.inputs["c0"].half()
    results = run_fused(problem)
    assert results["cn"].dtype == torch.float16
    check(problem, results)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_missing_gradients_count_as_zero(groups, units):
    problem = make_problem(20, 7, groups, units, torch.float16)
    problem.grads = tuple(torch.zeros_like(g) for g in problem.grads)
    problem.grads[0].normal_()
    expected = run_fused(problem)
    problem.grads = (problem.grads[0], None, None)
    results = run_fused(problem)
    assert all(torch.equal(expected[name], results[name]) for name in expected)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_graph_replay_follows_its_inputs(groups, units):
    torch.use_deterministic_algorithms(False)
    problem, other = (make_problem(30, 20, groups, units, torch.float16, seed) for seed in (1, 2))
    results, expected = replay_fused(problem, other), run_fused(other)
    assert all(torch.equal(expected[name], results[name]) for name in expected)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000), (2, 600)])
def test_two_streams_at_once(groups, units):
    """Both grids may not fit the chip together: each then waits for the other, and neither hangs."""
    torch.use_deterministic_algorithms(False)
    problems = [make_problem(70, 20, groups, units, torch.float16, seed) for seed in (1, 2)]
    expected = [run_fused(problem) for problem in problems]
    streams = [torch.cuda.Stream() for _ in problems]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(10):
        for problem, stream, found in zip(problems, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(run_fused(problem))
    torch.cuda.synchronize()
    for wanted, found in zip(expected, results, strict=True):
        assert all(torch.equal(wanted[name], one[name]) for one in found for name in wanted)


@pytest.mark.parametrize(("groups", "units"), [(4, 350), (1, 1000)])
def test_nan_travels_and_nothing_hangs(groups, units):
    """The grid kernels read a word of ones as "not there yet": a NaN of that pattern must not stop them."""
    problem = make_problem(5, 7, groups, units, torch.float16)
    problem.inputs["h0"].view(torch.int16).fill_(-1)
    results = run_fused(problem)
    torch.cuda.synchronize()
    assert results["out"].isnan().all()
    assert results["dgates"].isnan().all()


def test_a_shape_that_is_not_covered_is_an_error():
    x = make_problem(3, 2, 1, 351, torch.float16).inputs
    assert "even" in cuda.recurrence_reason(RecurrenceCall(**x, lengths=None), eager=True)
    with pytest.raises(ValueError, match="even"):
        cuda.forward(RecurrenceCall(**x, lengths=None), False)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_gradients_have_the_dtypes_of_their_tensors(dtype):
    """The kernels leave some in float32."""
    torch.use_deterministic_algorithms(False)
    pru = PRU(48, 48, device="cuda", dtype=dtype, levels=2, groups=4)
    shapes = (5, 3, 48), (1, 3, 48), (1, 3, 48)
    x, h, c = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes)
    results = []
    for backend in ("cuda", "loop"):
        pru.backend = backend
        y, (hn, cn) = pru(x, (h, c))
        results.append(torch.autograd.grad([y, hn, cn], [x, h, c, *pru.parameters()], [y, hn, cn]))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == dtype
        assert (ours - theirs).norm() < 0.05 * theirs.norm()


def test_a_layer_on_another_stream_and_in_another_thread():
    """The host's shortcuts to stream and context are those of the calling thread."""
    torch.use_deterministic_algorithms(False)
    pru = PRU(48, 48, device="cuda", dtype=torch.float16, levels=2, groups=4)
    x = torch.randn(5, 3, 48, device="cuda", dtype=torch.float16)

    def run() -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        y = pru(leaf)[0]
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), [leaf, *pru.parameters()])]

    def run_aside() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(run())
            torch.cuda.current_stream().synchronize()

    expected, found = run(), []
    torch.cuda.synchronize()
    threads = [threading.Thread(target=run_aside) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for results in found:
        torch.testing.assert_close(results, expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("steps", [1, 5])
def test_weights_that_begin_between_two_words(steps: int) -> None:
    """Kernels read 16-bit weights in pairs; one vector of all parameters puts them at odd places."""
    pru = PRU(8, 16, pooling="convolution", device="cuda", dtype=torch.bfloat16, levels=2, groups=4)
    x = torch.randn(steps, 3, 8, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = pru(x)[0]
        vector = torch.nn.utils.parameters_to_vector(pru.parameters())
        odd = torch.cat([vector.new_zeros(1), vector])[1:]
        torch.nn.utils.vector_to_parameters(odd, pru.parameters())
        assert pru.weight_hh_l0.data_ptr() % 4
        assert torch.equal(pru(x)[0], expected)


def test_a_pyramidal_context_on_streams_of_its_own() -> None:
    """The table of its pooling is made at the first call, and read on every stream."""
    pru = PRU(56, 56, context_transform="pyramidal", device="cuda", levels=2)  # a size that no other test has
    x = torch.randn(4, 3, 56, device="cuda")
    torch.cuda.synchronize()  # these are there before the other streams begin
    found = []
    for _ in range(3):
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            found.append(pru(x)[0])
    torch.cuda.synchronize()
    for other in found[1:]:
        assert torch.equal(other, found[0])
