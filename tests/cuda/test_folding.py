"""The input product in 16 bits on a GPU: its kernels against PyTorch, the operator against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru import PRU, PRUCell
from torch_pru.ops import backends, folding
from torch_pru.ops.cuda import folding as kernels
from torch_pru.ops.gates import gate_linear, input_gates
from torch_pru.options import split_levels

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

BOUNDS = {torch.float16: (1e-3, 2e-3), torch.bfloat16: (4e-3, 1e-2)}
# features, units, windows, residual: the paper's layers; then sizes that no access of 16 bytes divides
SHAPES = [
    (400, 1400, (3,), False),
    (1400, 1400, (3,), True),
    (1400, 400, (3,), False),
    (600, 600, (7, 5, 3), True),
    (600, 600, (3, 3, 3), True),
    (600, 600, (1, 1, 1), False),
    (1150, 1150, (), False),
    (1150, 400, (), False),
    (10, 7, (3,), False),
    (10, 10, (3,), True),
    (9, 9, (), True),
    (12, 9, (1, 3), False),
    (6, 6, (5,), True),
    (64, 48, (33, 3), False),
]


def gates_of(cell: PRUCell, x: Tensor, backend: str = "cuda") -> Tensor:
    """What a cell's input contributes to its gates."""
    weights, spec = cell.weights(), cell.spec
    options = {"spec": spec.input, "residual": spec.residual, "requested": backend}
    return backends.run("input_gates", x, weights.input, weights.input_kernels, **options)


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(1)


def make_levels(features, units, windows, dtype=torch.float32, gates=4) -> list[Tensor]:
    sizes = split_levels(units, len(windows) + 1)
    shapes = [(1, gates, size, features >> level) for level, size in enumerate(sizes)]
    return [(torch.randn(shape, device="cuda") / shape[-1] ** 0.5).to(dtype) for shape in shapes]


def exact_gates(x: Tensor, weights: list[Tensor], windows: tuple[int, ...], residual: bool) -> Tensor:
    """Level by level, as the paper's Eq. 2 and 3 are written."""
    views = [x]
    for window in windows:
        rows = F.avg_pool1d(views[-1].unsqueeze(1), window, stride=2, padding=window // 2)
        views.append(rows.squeeze(1))
    parts = [torch.einsum("goi,ri->rgo", w[0], view) for w, view in zip(weights, views, strict=True)]
    total = torch.cat(parts, dim=-1)
    return total + x.unsqueeze(-2) if residual else total


def check(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        bound = BOUNDS[dtype][number > 0]
        error = (mine.double() - theirs).norm() / theirs.norm()
        assert error < bound, (number, float(error))  # a NaN fails too


@pytest.mark.parametrize("wide", [True, False], ids=["float32", "16 bits"])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("rows", [1, 1400])
@pytest.mark.parametrize(("features", "units", "windows", "residual"), SHAPES)
def test_values_and_every_gradient(features, units, windows, residual, rows, dtype, wide):
    kind = torch.float32 if wide else dtype
    x = torch.randn(rows, features, device="cuda").to(dtype).to(kind).requires_grad_()
    weights = [w.requires_grad_() for w in make_levels(features, units, windows, kind)]
    result = input_gates(x, weights, windows, dtype, residual, backend="cuda")
    assert result.shape == (rows, 4, units)
    assert result.dtype == dtype
    assert result.transpose(1, 2).is_contiguous()
    grad = torch.randn(rows, units, 4, device="cuda").to(dtype).transpose(1, 2)
    found = torch.autograd.grad(result, [x, *weights], grad)
    assert all(gradient.dtype == kind for gradient in found)
    assert all(gradient.is_contiguous() for gradient in found[1:])
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, *weights)]
    expected = exact_gates(exact[0], exact[1:], windows, residual)
    check([result, *found], [expected, *torch.autograd.grad(expected, exact, grad.double())], dtype)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("gates", [1, 3, 4])
@pytest.mark.parametrize(("features", "units", "windows"), [shape[:3] for shape in SHAPES])
def test_each_kernel_is_what_pytorch_computes(features, units, windows, gates, dtype):
    for kind in (torch.float32, dtype):
        weights = make_levels(features, units, windows, kind, gates)
        folded = kernels.fold(weights, windows, dtype)
        torch.testing.assert_close(folded, folding.fold(weights, windows, dtype), rtol=0.01, atol=1e-5)
        arguments = gates, features, [w.shape[2] for w in weights], windows, kind
        found, expected = (module.unfold(folded, *arguments) for module in (kernels, folding))
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if kind == torch.float32 else {"rtol": 0.01, "atol": 1e-3}
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize(("rows", "units"), [(1, 1), (3, 5), (7, 1400), (1400, 1400), (0, 8)])
def test_the_kernels_of_a_residual(rows, units, dtype):
    x = torch.randn(rows, units, device="cuda").to(dtype)
    assert torch.equal(kernels.spread(x, 4), folding.spread(x, 4))
    gates = torch.randn(rows, 4 * units, device="cuda").to(dtype)
    torch.testing.assert_close(kernels.collect(gates, 4), folding.collect(gates, 4), rtol=0.01, atol=0)


def test_slices_that_start_anywhere():
    x = torch.randn(8 * 10 + 1, device="cuda").bfloat16()[1:].view(8, 10)
    assert torch.equal(kernels.spread(x, 4), folding.spread(x, 4))
    gates = torch.randn(8 * 40 + 1, device="cuda").bfloat16()[1:].view(8, 40)
    torch.testing.assert_close(kernels.collect(gates, 4), folding.collect(gates, 4), rtol=0.01, atol=0)
    weight = torch.randn(4 * 5 * 16 + 1, device="cuda")[1:].view(1, 4, 5, 16)
    assert torch.equal(kernels.fold([weight], (), torch.bfloat16), folding.fold([weight], (), torch.bfloat16))


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_any_strides_of_the_gradient(dtype):
    weights = [w.requires_grad_() for w in make_levels(40, 40, (3,))]
    x = torch.randn(5, 6, 40, device="cuda", dtype=dtype, requires_grad=True)
    result = input_gates(x, weights, (3,), dtype, residual=True, backend="cuda")
    grad = torch.randn(5, 6, 4, 40, device="cuda", dtype=dtype)
    unit_major = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
    first, again = (
        torch.autograd.grad(result, [x, *weights], g, retain_graph=True) for g in (grad, unit_major)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    torch.autograd.grad(result, [x, *weights], torch.ones_like(grad[:1, :1]).expand_as(grad))


@pytest.mark.parametrize("which", ["xw", "x", "w", ""])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [40, 10])
def test_opcheck(features, x_dtype, which):
    x = torch.randn(3, 2, features, device="cuda", dtype=x_dtype, requires_grad="x" in which)
    weights = [w.requires_grad_("w" in which) for w in make_levels(features, features, (3,))]
    for residual in (False, True):
        given = (x, weights, [1, 3], torch.bfloat16, residual, "x" in which, "w" in which, "cuda")
        checks = torch.library.opcheck(torch.ops.torch_pru.input_gates, given, rtol=0.02, atol=0.02)
        assert set(checks.values()) == {"SUCCESS"}


OPTIONS = [
    {},
    {"levels": 4},
    {"levels": 3, "pooling": "skip"},
    {"levels": 1, "groups": 1},
    {"pooling": "max"},
    {"pooling": "convolution"},
    {"input_groups": 4},
    {"input_transform": "linear", "residual": True},
    {"input_transform": "grouped", "residual": True},
    {"context_transform": "pyramidal"},
    {"context_transform": "pyramidal", "pooling": "max"},
    {"backend": "reference"},
]


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_layer_beside_float64(options, dtype, autocast):
    pru = PRU(80, 80, init="lstm", device="cuda", **options)
    x = torch.randn(12, 5, 80, device="cuda").to(dtype).float().requires_grad_()
    if not autocast:
        pru, x = pru.to(dtype), x.detach().to(dtype).requires_grad_()
    with torch.autocast("cuda", dtype, enabled=autocast):
        found = [y := pru(x)[0], *torch.autograd.grad(y.float().square().sum(), [x, *pru.parameters()])]
    assert [g.dtype for g in found[1:]] == [p.dtype for p in (x, *pru.parameters())]
    plain = {name: value for name, value in options.items() if name != "backend"}
    exact = PRU(80, 80, init="lstm", device="cuda", dtype=torch.float64, **plain)
    exact.load_state_dict({name: value.double() for name, value in pru.state_dict().items()})
    z = x.detach().double().requires_grad_()
    w = exact(z)[0]
    expected = [w, *torch.autograd.grad(w.square().sum(), [z, *exact.parameters()])]
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.double() - theirs).norm() < 0.05 * theirs.norm() + 1e-6


def test_an_input_of_float32_is_rounded_first():
    cell = PRUCell(1400, 1400, device="cuda")
    x = torch.randn(3, 2, 1400, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        one, two = (gates_of(cell, values) for values in (x, x.bfloat16()))
        assert torch.equal(one, two)


@pytest.mark.parametrize("residual", [False, True])
def test_bit_identical_from_run_to_run(residual):
    weights = [w.requires_grad_() for w in make_levels(1400, 1400, (3,))]
    x = torch.randn(1400, 1400, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn(1400, 1400, 4, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    def run() -> list[Tensor]:
        result = input_gates(x, weights, (3,), torch.bfloat16, residual, backend="cuda")
        return [result, *torch.autograd.grad(result, [x, *weights], grad)]

    first = run()
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))


def test_as_a_cuda_graph():
    weights = [w.requires_grad_() for w in make_levels(400, 1400, (3,))]
    x = torch.randn(64, 400, device="cuda", requires_grad=True)

    def run() -> list[Tensor]:
        result = input_gates(x, weights, (3,), torch.bfloat16, backend="cuda")
        return [result, *torch.autograd.grad(result.float().square().sum(), [x, *weights])]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
        weights[1].mul_(2)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, run(), strict=True))


@pytest.mark.parametrize("autocast", [True, False])
def test_compiled_whole(autocast):
    torch._dynamo.reset()
    dtype = torch.bfloat16
    pru = PRU(40, 40, levels=3, device="cuda", dtype=torch.float32 if autocast else dtype, groups=4)
    compiled = torch.compile(pru, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((4, 3, 40), (7, 2, 40)):
        x = torch.randn(shape, device="cuda", dtype=pru.weight_hh_l0.dtype, requires_grad=True)
        results = []
        for run in (pru, compiled):
            with torch.autocast("cuda", dtype, enabled=autocast):
                y = run(x)[0]
            grads = torch.autograd.grad(y.float().square().sum(), [x, *pru.parameters()])
            results.append([y, *grads])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    torch._dynamo.reset()


def test_without_the_kernels(monkeypatch):
    """As where cuda-bindings is not installed."""
    cell = PRUCell(40, 40, levels=3, residual=True, device="cuda", dtype=torch.bfloat16, groups=4)
    x = torch.randn(9, 40, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run(backend: str) -> list[Tensor]:
        y = gates_of(cell, x, backend)
        return [y, *torch.autograd.grad(y.float().square().sum(), [x, *cell.weights().input])]

    with_kernels = run("cuda")
    monkeypatch.setattr(kernels, "launch_on", None)
    for ours, theirs in zip(with_kernels, run("loop"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


def test_a_weight_that_lies_right_is_not_copied(monkeypatch):
    """As in generation, where the folded weight is laid out once."""
    weight = torch.randn(1, 4, 24, 40, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 40, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = gate_linear(x, weight, backend="cuda", eager=True)
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
        monkeypatch.setattr(kernels, "fold", None)
        assert torch.equal(gate_linear(x, weight, backend="cuda", eager=True), expected)
