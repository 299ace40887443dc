"""Whole layers on a GPU against float64: a residual inside the recurrence, and single steps in one launch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from torch_pru import PRU

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

BOUNDS = {torch.float16: (1e-3, 2e-3), torch.bfloat16: (4e-3, 1e-2), torch.float32: (1e-3, 2e-3)}
# units, groups, levels, steps, batch: clusters of one to four tiles, and the grid
RESIDUALS = [
    (1400, 4, 2, 70, 20),
    (1400, 4, 2, 35, 80),
    (1400, 4, 3, 20, 128),
    (512, 4, 2, 70, 32),
    (2048, 8, 2, 20, 256),
    (1000, 1, 2, 35, 20),
    (1200, 2, 2, 35, 7),
]
STEPS = [
    (1400, 4, 2),
    (1400, 4, 1),
    (512, 4, 3),
    (256, 4, 2),
    (1000, 1, 1),
    (1000, 1, 4),
    (100, 2, 2),
    (2048, 8, 2),
]


def exact_copy(pru: PRU) -> PRU:
    result = copy.deepcopy(pru).double()
    result.backend = "reference"
    return result


def error(mine: Tensor, right: Tensor) -> float:
    return float((mine.double() - right).norm() / right.norm())


def run(pru: PRU, x: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Output, states, and the gradients of everything."""
    x = x.detach().requires_grad_()
    given = x if lengths is None else nn.utils.rnn.pack_padded_sequence(x, lengths)
    y, states = pru(given)
    outputs = [y if lengths is None else y.data, *states]
    maker = torch.Generator().manual_seed(1)
    upstream = [torch.randn(output.shape, generator=maker).to(output) for output in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [x, *pru.parameters()], upstream)]


@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("units", "groups", "levels", "steps", "batch"), RESIDUALS)
def test_a_layer_with_a_residual(units, groups, levels, steps, batch, dtype, packed):
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(units + batch)
    options = {"levels": levels, "groups": groups, "residual": True, "init": "orthogonal"}
    pru = PRU(units, units, bidirectional=packed, device="cuda", **options).to(dtype)
    x = torch.randn(steps, batch, units, device="cuda").to(dtype)
    lengths = torch.linspace(steps, 1, batch).long() if packed else None
    found, right = run(pru, x, lengths), run(exact_copy(pru), x.double(), lengths)
    bounds = [BOUNDS[dtype][0]] * 3 + [BOUNDS[dtype][1]] * (len(found) - 3)
    for number, (mine, theirs, bound) in enumerate(zip(found, right, bounds, strict=True)):
        assert error(mine, theirs) < bound, number  # a NaN fails too


@pytest.mark.parametrize("states", [False, True], ids=["", "states"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("units", "groups", "levels"), STEPS)
def test_a_single_step(units, groups, levels, dtype, batch, states):
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(units + levels)
    options = {"levels": levels, "groups": groups, "init": "orthogonal"}
    pru = PRU(units, units, residual=levels > 1, device="cuda", **options).to(dtype)
    shapes = (1, batch, units), (1, batch, units), (1, batch, units)
    x, h, c = (torch.randn(shape, device="cuda").to(dtype) for shape in shapes)
    given = (h, c) if states else None
    bound = 5e-6 if dtype == torch.float32 else BOUNDS[dtype][0]
    with torch.no_grad():
        y, (hn, cn) = pru(x, given)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again = pru(x, given)[0]
        graph.replay()
        wide = (h.double(), c.double()) if states else None
        right, (right_h, right_c) = exact_copy(pru)(x.double(), wide)
    assert torch.equal(again, y)
    for mine, theirs in ((y, right), (hn, right_h), (cn, right_c)):
        assert error(mine, theirs) < bound
