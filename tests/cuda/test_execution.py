"""The kernels themselves, executed on a CPU thread by thread, on odd shapes beside float64."""

from __future__ import annotations

import executing
import pytest
import torch
from dry_run import dry_run
from executing import KernelError, execute, needs_compiler
from literal import compare, literal, make_problem, run_fused

from torch_pru.ops.cuda.compile import source
from torch_pru.ops.cuda.plan import Device, Launch
from torch_pru.ops.cuda.recurrent import Sizes, adds_residual, launch_backward, launch_forward

pytestmark = needs_compiler

HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32
BOUNDS = {HALF: (1e-3, 2e-3), BRAIN: (4e-3, 1e-2), FLOAT: (1e-3, 2e-3)}
SMALL = Device((9, 0), 12, 232448)  # so small that two clusters fit: a batch is cut into wide slices
WIDE = Device((9, 0), 8, 232448)  # one cluster alone: as wide a slice as there is
OLD = Device((8, 0), 12, 166912)
CUT = Device((8, 0), 12, 24000)  # little shared memory: the grid takes narrow slices


def check(problem, device: Device) -> list[str]:
    """Compares outputs and gradients with float64; returns the launches."""
    with dry_run(device) as records:
        results = run_fused(problem)
    outputs, gradients = BOUNDS[problem.inputs["gates"].dtype]
    errors = compare(problem, results)
    for name, error in errors.items():
        assert error < (gradients if name.startswith("d") else outputs), (name, errors)  # a NaN fails too
    return [record[0] for record in records]


# device, steps, batch, groups, units, lengths, reverse; and what the first launch is
CASES = {
    "cluster": (SMALL, 4, 3, 1, 10, False, False, "forward_cluster"),
    "cluster, one step": (SMALL, 1, 7, 2, 6, False, False, "forward_cluster"),
    "cluster, lengths": (SMALL, 5, 6, 2, 18, True, False, "forward_cluster"),
    "cluster, back": (SMALL, 5, 6, 1, 34, True, True, "forward_cluster"),
    "wgmma": (WIDE, 4, 17, 1, 34, True, False, "forward_cluster"),
    "wgmma, back": (WIDE, 3, 29, 2, 14, False, True, "forward_cluster"),
    "grid": (OLD, 4, 5, 1, 50, False, False, "forward_grid"),
    "grid, lengths": (OLD, 4, 11, 3, 14, True, False, "forward_grid"),
    "grid, back": (OLD, 3, 26, 2, 22, True, True, "forward_grid"),
    "grid, cut": (CUT, 3, 19, 1, 38, True, False, "forward_grid"),
    "token": (SMALL, 1, 3, 2, 10, False, False, "forward_token"),
}


def problem_of(case: str, dtype: torch.dtype, **options):
    _, steps, batch, groups, units, with_lengths, reverse, _ = CASES[case]
    lengths = None
    if with_lengths:
        lengths = torch.randint(0, steps + 1, (batch,), generator=torch.Generator().manual_seed(batch))
        lengths[0], lengths[-1] = steps, 0
    shape = (steps, batch, groups, units)
    return make_problem(*shape, dtype, units, lengths, reverse, device="cpu", **options)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_recurrence(case, dtype):
    device, *_, first = CASES[case]
    launches = check(problem_of(case, dtype), device)
    assert launches[0].split()[0] == first
    wide = [launch for launch in launches if "WGMMA=1" in launch]
    assert len(wide) == (2 if case.startswith("wgmma") else 0)


def test_the_order_of_threads_does_not_matter():
    """To the bit; each run picks other threads first."""
    for case in ("cluster, lengths", "grid, lengths"):
        problem = problem_of(case, HALF)
        with dry_run(CASES[case][0]):
            first = run_fused(problem)
            assert all(torch.equal(x, first[name]) for name, x in run_fused(problem).items())


@pytest.mark.parametrize("case", ["cluster, lengths", "grid, back", "token"])
def test_states_not_given_are_zero(case):
    problem = problem_of(case, BRAIN)
    for state in ("h0", "c0"):
        problem.inputs[state] = torch.zeros_like(problem.inputs[state])
    with dry_run(CASES[case][0]):
        expected = run_fused(problem)
        problem.inputs |= {"h0": None, "c0": None}
        found = run_fused(problem)
    for name, x in expected.items():
        assert torch.equal(found[name], x.to(BRAIN) if name == "cn" else x), name


WITHOUT_REGISTERS = ("wgmma", "wgmma, back")  # their tiles are too wide to add a residual


@pytest.mark.parametrize("case", WITHOUT_REGISTERS)
def test_a_residual_is_left_to_passes_beside_wide_tiles(case):
    x = problem_of(case, HALF).inputs
    steps, batch = x["gates"].shape[:2]
    sizes = Sizes(steps, batch, x["weight"].shape[0], x["weight"].shape[-1])
    with dry_run(CASES[case][0]):
        assert not any(adds_residual(x["gates"].device, sizes, HALF, backward) for backward in (False, True))
        assert adds_residual(x["gates"].device, sizes._replace(batch=3), HALF, False)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", [case for case in CASES if case not in WITHOUT_REGISTERS])
def test_a_residual(case, dtype):
    """It is added to all four gates; its gradient is the sum of theirs, as they are stored."""
    problem = problem_of(case, dtype)
    x, further = problem.inputs, (problem.lengths, problem.reverse)
    by_unit = x["gates"] if dtype == FLOAT else x["gates"].mT
    sizes = Sizes(*by_unit.shape[:2], x["weight"].shape[0], x["weight"].shape[-1])
    residual, weight = torch.randn(*by_unit.shape[:2], sizes.width).to(dtype), x["weight"].transpose(0, 1)
    with dry_run(CASES[case][0]) as records:
        given = by_unit.contiguous(), weight, (x["bias"],), x["h0"], x["c0"], problem.lengths
        *outputs, activations, cells = launch_forward(*given, sizes, problem.reverse, True, residual=residual)
        saved = weight, x["c0"], outputs[0], activations, cells
        found = launch_backward(problem.grads, *saved, problem.lengths, sizes, problem.reverse, True)
    assert records[0][0].endswith("RESIDUAL=1")
    dgates = found.dgates.mT if found.dgates32 is None else found.dgates32
    i, f, g, o = dgates.float().unbind(2)
    assert torch.equal(found.dresidual, ((i + f) + (g + o)).to(dtype))
    exact = literal(x["gates"].double() + residual.double().unsqueeze(2), *[
        x[name].double() for name in ("weight", "bias", "h0", "c0")
    ], *further)  # fmt: skip
    for mine, theirs in zip(outputs, exact, strict=True):
        assert (mine.double() - theirs).norm() <= BOUNDS[dtype][0] * theirs.norm()


# ---------------------------------------------------------------------- what the harness must notice

PUBLISH = "  shared_fence();\n  __syncthreads();"
BARRIER = "      __syncthreads();\n"
SENDERS = "if (threadIdx.x < CLUSTER && threadIdx.x != rank)"
FAULTS = [  # a case, a kernel, a part of its text, what is there instead, and what is to be said
    ("cluster", "forward_cluster", "slot % 8 + rank * SHARE]", "slot % 8]", None),
    ("cluster", "forward_cluster", "* batch + column[n]) * width", "* batch) * width", None),
    ("cluster", "forward_cluster", "e < 2 * TILE + 64", "e < 2 * TILE + 128", "past the shared memory"),
    ("cluster", "forward_cluster", SENDERS, "if (threadIdx.x == 2)", "deadlock|under way|over"),
    ("cluster", "forward_cluster", SENDERS, "if (threadIdx.x <= CLUSTER)", "cluster has not"),
    ("cluster", "forward_cluster", "(s - 1) >> 1 & 1", "(s + 1) >> 1 & 1", "more arrivals"),
    ("cluster, lengths", "forward_cluster", PUBLISH, "", None),
    ("cluster, lengths", "backward_cluster", PUBLISH, "", None),
    ("cluster", "backward_cluster", "(lane % 8) * 16 +", "(lane % 8) * 8 +", "aligned"),
    ("wgmma", "forward_cluster", "(u64)8 << 32", "(u64)16 << 32", None),
    ("wgmma", "backward_cluster", "  wgmma_wait();\n", "", None),
    ("grid", "forward_grid", BARRIER, "", None),
    ("grid", "forward_grid", "if (s + 1 < steps) offer(", "if (s + 2 < steps) offer(", "deadlock"),
    ("grid", "backward_grid", BARRIER, "", None),
    ("grid", "backward_grid", "args.dh0[to]", "args.dh0[to + 1]", "dh0"),
]


@pytest.mark.parametrize(("case", "kernel", "text", "instead", "said"), FAULTS, ids=str)
def test_a_fault_is_noticed(monkeypatch, case, kernel, text, instead, said):
    def broken(name: str) -> str:
        assert name != kernel or text in source(name)
        return source(name).replace(text, instead) if name == kernel else source(name)

    monkeypatch.setattr(executing.compiler, "source", broken)
    with pytest.raises(AssertionError, match=said) as caught:
        check(problem_of(case, HALF), CASES[case][0])
    assert said is None or caught.type is KernelError


def kernel_of(monkeypatch, body: str, shared: str = "") -> None:
    """Makes ``body`` the text of a kernel of 64 threads with a pointer to 64 numbers, and runs it."""
    monkeypatch.setattr(
        executing.compiler,
        "source",
        lambda name: (
            f"""#line 1 "common.cu"
struct Args {{ float* out; }};
extern "C" __global__ void __launch_bounds__(64) example(const __grid_constant__ Args args) {{ {body} }}"""
        ),
    )
    out = torch.empty(64)
    execute(Launch("example", (), (2, 1), 64, shared_bytes=256), [out], [], [True], [False], ["out"])
    assert not out.isnan().any()


BODIES = {
    "args.out[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 3);": None,
    "args.out[threadIdx.x + 1] = 1.f;": "outside of example: out",
    "args.out[threadIdx.x] = ((float4*)(args.out + threadIdx.x))->x = 1.f;": "aligned",
    "if (threadIdx.x < 10) __syncthreads(); else __ballot_sync(~0u, 1);": "deadlock",
    "if (threadIdx.x < 10) __reduce_max_sync(~0u, 1); else __ballot_sync(~0u, 1);": "belong together",
    "if (threadIdx.x < 10) return; __ballot_sync(~0u, 1);": "deadlock|ended",
    "if (threadIdx.x < 10) return; __syncthreads(); args.out[threadIdx.x] = 1.f;": "isnan",
    "__shared__ float x[64]; x[threadIdx.x] = 1.f; args.out[threadIdx.x] = x[threadIdx.x ^ 1];": "isnan",
    "__shared__ float x[64]; x[threadIdx.x] = 1; __syncthreads(); args.out[threadIdx.x] = x[5];": None,
    "args.out[threadIdx.x] = 1; if (blockIdx.x) ((float*)machine::launched_bytes())[64] = 1;": "past",
    "float x[4] = {}; args.out[threadIdx.x] = x[threadIdx.x / 8];": "outside of an array",
    "*(volatile float*)8 = 1.f;": "Segmentation fault",
}


@pytest.mark.parametrize("body", BODIES)
def test_what_the_machine_says(monkeypatch, body):
    if BODIES[body] is None:
        kernel_of(monkeypatch, body)
    else:
        with pytest.raises(AssertionError, match=BODIES[body]):
            kernel_of(monkeypatch, body)
