"""An eager call of a layer on a GPU as one ``Function``, its kernels executed on a CPU, beside float64."""

from __future__ import annotations

import copy

import pytest
import torch
from dry_run import dry_run
from executing import needs_compiler
from shapes import AMPERE, HOPPER
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence

from torch_pru import PRU
from torch_pru.errors import PRUError
from torch_pru.ops.cuda.plan import Device

pytestmark = needs_compiler

HALF, BRAIN = torch.float16, torch.bfloat16
BOUNDS = {HALF: 4e-3, BRAIN: 3e-2}
FEW = Device((9, 0), 8, 232448)
OLD = Device((8, 0), 12, AMPERE.shared_bytes)
# device, N, M, options, steps, batch, and what is special
CASES = {
    "levels": (FEW, 22, 20, {"levels": 2, "groups": 2}, 4, 3, set()),
    "states": (FEW, 12, 20, {"levels": 1, "groups": 1}, 3, 2, {"states"}),
    "residual": (FEW, 28, 28, {"levels": 3, "groups": 2, "residual": True}, 3, 2, {"states"}),
    "no bias": (FEW, 10, 12, {"levels": 2, "groups": 3, "bias": False}, 3, 2, set()),
    "packed": (FEW, 10, 12, {"levels": 2, "groups": 2, "bidirectional": True}, 5, 4, {"packed", "states"}),
    "two layers": (FEW, 10, 12, {"num_layers": 2, "levels": 2, "groups": 2}, 3, 2, {"states"}),
    "wide": (FEW, 10, 68, {"levels": 2, "groups": 2}, 2, 20, set()),
    "grid": (OLD, 10, 44, {"levels": 2, "groups": 2}, 3, 2, {"states"}),
    "grid, packed": (OLD, 10, 22, {"levels": 1, "groups": 1, "bidirectional": True}, 4, 3, {"packed"}),
    "residual, packed": (
        FEW,
        12,
        12,
        {"levels": 2, "groups": 2, "bidirectional": True, "residual": True},
        5,
        3,
        {"packed"},
    ),
    "residual, wide": (FEW, 72, 72, {"levels": 2, "groups": 2, "residual": True}, 2, 20, {"states"}),
    "residual, grid": (
        OLD,
        44,
        44,
        {"levels": 2, "groups": 2, "bidirectional": True, "residual": True},
        4,
        5,
        {"packed", "states"},
    ),
    "residual, one step": (FEW, 12, 12, {"levels": 2, "groups": 2, "residual": True}, 1, 3, set()),
    "one step": (FEW, 10, 12, {"levels": 2, "groups": 2}, 1, 2, {"states"}),
}


def test_weight_drop_leaves_other_gradients_in_their_dtype():
    """The context comes in 16 bits from there, the weights of the input are float32."""
    torch.manual_seed(0)
    pru = PRU(12, 20, levels=2, groups=2, weight_drop=0.5)
    with dry_run(FEW) as records, torch.autocast("cpu", BRAIN):
        pru(torch.randn(3, 2, 12))[0].float().sum().backward()
    (unfold,) = (record for record in records if record[0].startswith("unfold"))
    assert "weights[0] float32" in " ".join(unfold)


PASSES = {"residual, wide": ["spread", "collect"]}  # beside kernels that have no registers for it


def make(case: str, dtype: torch.dtype, autocast: bool) -> tuple[PRU, list[Tensor]]:
    """A layer, and its input and states; all numbers are such as ``dtype`` has."""
    _, features, units, options, steps, batch, special = CASES[case]
    torch.manual_seed(units)
    pru = PRU(features, units, init="lstm", **options).to(dtype)
    rows = pru.num_layers * (2 if pru.bidirectional else 1)
    shapes = [(steps, batch, features), *[(rows, batch, units)] * 2 * ("states" in special)]
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    return (pru.float(), inputs) if autocast else (pru, inputs)


def run(pru: PRU, inputs: list[Tensor], case: str) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and states, and the gradients of everything."""
    _, _, _, _, steps, batch, special = CASES[case]
    x, *states = (tensor.requires_grad_() for tensor in inputs)
    packed = pack_padded_sequence(x, torch.tensor([steps, *range(steps - 1, steps - batch, -1)]).clamp(min=1))
    y, (h, c) = pru(packed if "packed" in special else x, tuple(states) or None)
    outputs = [y.data if "packed" in special else y, h, c]
    make = torch.Generator().manual_seed(1)
    upstream = [torch.randn(output.shape, generator=make).to(output.dtype) for output in outputs]
    return outputs, [*torch.autograd.grad(outputs, [x, *states, *pru.parameters()], upstream)]


def check(found: list[Tensor], expected: list[Tensor], bound: float) -> None:
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.shape == theirs.shape
        assert (mine.double() - theirs).norm() <= bound * theirs.norm(), number


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_every_gradient(case, dtype, autocast):
    pru, inputs = make(case, dtype, autocast)
    with dry_run(CASES[case][0]) as records, torch.autocast("cpu", dtype, enabled=autocast):
        outputs, gradients = run(pru, inputs, case)
    assert [grad.dtype for grad in gradients[-len([*pru.parameters()]) :]] == [
        p.dtype for p in pru.parameters()
    ]
    kernels = [record[0].split()[0] for record in records]
    assert kernels.count("backward_tail") == len(pru.specs)
    assert [name for name in kernels if name in ("spread", "collect")] == PASSES.get(case, [])
    assert len(kernels) == 5 * len(pru.specs) + len(PASSES.get(case, [])), kernels
    exact = copy.deepcopy(pru).double()
    exact.backend = "reference"
    doubles = [tensor.detach().double() for tensor in inputs]
    check(
        [*outputs, *gradients], [part for parts in run(exact, doubles, case) for part in parts], BOUNDS[dtype]
    )


@pytest.mark.parametrize(
    "name", ["x", "h0", "c0", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
)
def test_one_gradient_alone(name):
    """It is the same as among all, and no kernel runs that it does not need."""
    pru, inputs = make("states", HALF, False)
    with dry_run(FEW):
        _, everything = run(pru, inputs, "states")
        names = ["x", "h0", "c0", *(name for name, _ in pru.named_parameters())]
        tensors = dict(zip(names, [*inputs, *pru.parameters()], strict=True))
        for each in tensors.values():
            each.requires_grad_(False)
        tensors[name].requires_grad_()
        with dry_run(FEW) as records:
            y, (h, c) = pru(inputs[0], (inputs[1], inputs[2]))
            make_grad = torch.Generator().manual_seed(1)
            upstream = [torch.randn(o.shape, generator=make_grad).to(o.dtype) for o in (y, h, c)]
            (found,) = torch.autograd.grad([y, h, c], [tensors[name]], upstream)
    assert torch.equal(found, everything[names.index(name)])
    kernels = [record[0].split()[0] for record in records]
    assert ("backward_tail" in kernels) == (name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    assert ("unfold" in kernels) == (name == "weight_ih_l0")


@pytest.mark.parametrize("used", [0, 1, 2])
def test_results_that_are_not_used(used):
    pru, inputs = make("levels", HALF, False)
    with dry_run(FEW):
        y, (h, c) = pru(inputs[0])
        result = (y, h, c)[used]
        found = torch.autograd.grad(result.float().square().sum(), pru.parameters())
    exact = copy.deepcopy(pru).double()
    exact.backend = "reference"
    y, (h, c) = exact(inputs[0].double())
    check([*found], [*torch.autograd.grad((y, h, c)[used].square().sum(), exact.parameters())], BOUNDS[HALF])


def test_states_can_be_detached_in_place():
    pru, inputs = make("levels", HALF, False)
    with dry_run(FEW):
        for layer in (pru, pru.eval()):
            _, (h, c) = layer(inputs[0])
            h.detach_(), c.detach_()


def test_no_double_backward():
    pru, inputs = make("levels", HALF, False)
    with dry_run(FEW):
        y, _ = pru(inputs[0].requires_grad_())
        (grad,) = torch.autograd.grad(y.float().sum(), inputs[0], create_graph=True)
        with pytest.raises(PRUError, match="double backward"):
            grad.float().sum().backward()


def test_a_change_of_the_input_is_noticed():
    """The input is kept as it is where the product can read it; its version is compared."""
    torch.manual_seed(0)
    pru, x = PRU(16, 12, levels=2, groups=2).half(), torch.randn(3, 2, 16).half()
    with dry_run(HOPPER):
        y, _ = pru(x)
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.float().sum().backward()


STEPS = {  # N, M and options
    "one level": (16, 20, {"levels": 1, "groups": 2}),
    "levels": (24, 20, {"levels": 3, "groups": 1}),
    "residual": (16, 16, {"levels": 2, "groups": 2, "residual": True}),
    "odd level": (22, 22, {"levels": 2, "groups": 1, "residual": True}),
    "levels in one block": (8, 6, {"levels": 3, "groups": 1, "level_split": "equal", "residual": False}),
    "no bias": (10, 12, {"levels": 2, "groups": 3, "bias": False}),
    "skip": (24, 24, {"levels": 2, "groups": 2, "pooling": "skip"}),
    "odd input": (7, 10, {"levels": 1, "groups": 1}),
}
STEP_BOUNDS = {torch.float32: 5e-6, **BOUNDS}


@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("dtype", STEP_BOUNDS, ids=str)
@pytest.mark.parametrize("case", STEPS)
def test_a_single_step_without_gradients_is_one_kernel(case, dtype, states):
    """In float32 nothing is rounded to TF32."""
    torch.manual_seed(2)
    features, units, options = STEPS[case]
    pru, x = PRU(features, units, init="lstm", **options).to(dtype), torch.randn(1, 3, features).to(dtype)
    given = (torch.randn(1, 3, units).to(dtype), torch.randn(1, 3, units).to(dtype)) if states else None
    with torch.no_grad(), dry_run(FEW) as records:
        y, (h, c) = pru(x, given)
    assert [record[0].split()[0] for record in records] == ["layer_step"]
    exact = copy.deepcopy(pru).double()
    exact.backend = "reference"
    with torch.no_grad():
        expected, (hn, cn) = exact(x.double(), None if given is None else tuple(s.double() for s in given))
    check([y, h, c], [expected, hn, cn], STEP_BOUNDS[dtype])


def test_a_single_step_under_autocast():
    torch.manual_seed(2)
    pru, x, c = PRU(16, 20, levels=2, groups=2), torch.randn(1, 3, 16), torch.randn(1, 3, 20)
    with torch.no_grad(), dry_run(FEW) as records, torch.autocast("cpu", HALF):
        y, (h, cn) = pru(x, (torch.zeros_like(c), c))
    assert [record[0].split()[0] for record in records] == ["layer_step"]
    assert (y.dtype, h.dtype, cn.dtype) == (HALF, HALF, torch.float32)
    exact = copy.deepcopy(pru).double()
    exact.backend = "reference"
    with torch.no_grad():
        expected, (hn, cn64) = exact(x.double(), (torch.zeros_like(c).double(), c.double()))
    check([y, h, cn], [expected, hn, cn64], BOUNDS[HALF])


@pytest.mark.parametrize(("steps", "batch", "learn"), [(2, 3, False), (1, 5, False), (1, 3, True)])
def test_other_calls_are_not_one_kernel(steps, batch, learn):
    for dtype in STEP_BOUNDS:
        pru, x = PRU(16, 20, levels=2, groups=2).to(dtype), torch.randn(steps, batch, 16).to(dtype)
        with torch.set_grad_enabled(learn), dry_run(FEW) as records:
            pru(x)
        assert not any(record[0].startswith("layer_step") for record in records)
