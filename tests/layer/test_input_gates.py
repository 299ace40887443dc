"""The input product as one operator, its passes in PyTorch; the kernels are in ``tests/cuda``."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torch_pru import PRU, GroupedLinear, PRUCell, PRUError, PyramidalTransform
from torch_pru.ops import folding, gates
from torch_pru.ops.folding import Band, aligned, dense_matrix, pooling_counts, pooling_levels
from torch_pru.ops.gates import input_gates
from torch_pru.pooling import subsample

from .comparing import assert_all_close, gradients, paper

CPU = torch.device("cpu")
WINDOWS = [(3,), (1,), (5,), (3, 3), (1, 3), (3, 1), (1, 1), (7, 5, 3), (3, 3, 3), (33, 3)]
# features, units of each level, windows
SHAPES = [
    (16, (9, 3), (3,)),
    (10, (5, 2), (3,)),
    (12, (4, 3, 2), (5, 3)),
    (12, (4, 3, 2), (1, 1)),
    (7, (5,), ()),
    (8, (8,), ()),
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("features", [8, 40, 1000])
def test_bands_are_the_pooling(features: int, windows: tuple[int, ...]):
    view = torch.eye(features, dtype=torch.float64)
    for level, window in enumerate(windows):
        kept = windows[: level + 1]
        view = subsample(view, "average", window)
        counts = pooling_counts(features, kept, CPU, torch.float64)
        torch.testing.assert_close(view.t() * math.prod(kept), counts)
        pooling = (counts / math.prod(kept)).float()
        tables = pooling_levels(features, windows, CPU)[level]
        extended = dense(tables.fold, features >> (level + 1))
        assert torch.equal(extended[:, :features], pooling)
        assert (extended[:, features:] == 0).all()
        assert extended.shape[1] == aligned(features)
        assert torch.equal(dense(tables.unfold, features), pooling.t())


def dense(band: Band, rows: int) -> Tensor:
    """A band as a matrix; an entry outside of it is an error."""
    width, columns = band.share.shape
    matrix = torch.zeros(rows, columns)
    return matrix.scatter_(0, band.first.long() + torch.arange(width).unsqueeze(1), band.share)


def test_a_window_of_one_skips():
    x = torch.randn(3, 16)
    counts = pooling_counts(16, (1, 1), CPU, torch.float32)
    assert torch.equal(x @ counts.t(), subsample(subsample(x, "skip", 1), "skip", 1))


def test_what_inference_kept_serves_training():
    pru = PRU(20, 20, context_transform="pyramidal", levels=2)
    x = torch.randn(3, 2, 20)
    with torch.inference_mode():
        pru(x)
    pru(x)[0].sum().backward()


def levels_of(shape: tuple, gates: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    features, units, _ = shape
    return [
        torch.randn(1, gates, size, features >> level, dtype=dtype, requires_grad=True)
        for level, size in enumerate(units)
    ]


@pytest.mark.parametrize("pooling", ["average", "skip"])
@pytest.mark.parametrize(("levels", "window"), [(1, 3), (2, 3), (3, 5), (4, 3)])
def test_folding_is_the_dense_weight(levels: int, window: int, pooling: str):
    options = {"pooling": pooling} if levels > 1 else {}
    options |= {"pool_window": window} if levels > 1 and pooling == "average" else {}
    cell = PRUCell(24, 20, levels=levels, groups=4, dtype=torch.float64, **options)
    spec, matrices = cell.spec.input, cell.weights().input
    weights, windows = [matrix.view(1, 4, -1, matrix.shape[1]) for matrix in matrices], spec.windows
    folded = folding.fold(weights, windows, torch.float64)
    by_gate = dense_matrix(matrices, spec).unflatten(0, (4, -1))
    torch.testing.assert_close(folded, by_gate.transpose(0, 1).flatten(0, 1), rtol=1e-6, atol=1e-7)
    grad = torch.randn_like(folded)
    expected = torch.autograd.grad(by_gate, matrices, grad.unflatten(0, (20, 4)).transpose(0, 1))
    found = folding.unfold(grad, 4, 24, spec.level_sizes, windows, torch.float64)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs.view_as(mine), rtol=1e-6, atol=1e-7)


def exact_gates(x: Tensor, weights: list[Tensor], windows: tuple[int, ...], residual: bool) -> Tensor:
    """Level by level, as the paper's Eq. 2 and 3 are written."""
    views = [x]
    for window in windows:
        views.append(subsample(views[-1], "average", window))
    parts = [torch.einsum("goi,...i->...go", w[0], view) for w, view in zip(weights, views, strict=True)]
    total = torch.cat(parts, dim=-1)
    return total + x.unsqueeze(-2) if residual else total


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape: tuple):
    features, _, windows = shape
    x, weights = torch.randn(3, 2, features, dtype=torch.float64, requires_grad=True), levels_of(shape)

    def run(x: Tensor, *weights: Tensor) -> Tensor:
        return input_gates(x, weights, windows, torch.float64)

    result, expected = run(x, *weights), exact_gates(x, weights, windows, residual=False)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)
    assert result.transpose(-1, -2).is_contiguous()
    assert torch.autograd.gradcheck(run, (x, *weights))


@pytest.mark.parametrize("shape", [(10, (7, 3), (3,)), (8, (8,), ()), (16, (10, 4, 2), (3, 3))], ids=str)
def test_a_residual(shape: tuple):
    features, _, windows = shape
    x, weights = torch.randn(5, features, dtype=torch.float64, requires_grad=True), levels_of(shape)
    named = {"x": x} | {str(level): weight for level, weight in enumerate(weights)}
    found = input_gates(x, weights, windows, torch.float64, residual=True)
    expected = exact_gates(x, weights, windows, residual=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert_all_close(gradients([found], **named), gradients([expected], **named), rtol=1e-6, atol=1e-6)


def arguments(shape: tuple, rows: tuple, dtype: torch.dtype, x_dtype: torch.dtype, which: str) -> tuple:
    """Of the operator; ``which`` of x and the weights ask for gradients."""
    features, _, windows = shape
    x = torch.randn(*rows, features, dtype=x_dtype, requires_grad="x" in which)
    weights = [w.detach().requires_grad_("w" in which) for w in levels_of(shape, dtype=torch.float32)]
    return x, weights, [1, *windows], dtype, False, "x" in which, "w" in which, "loop"


@pytest.mark.parametrize("which", ["xw", "x", "w", ""])
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[1], SHAPES[4]], ids=str)
def test_opcheck(shape: tuple, x_dtype: torch.dtype, which: str):
    given = arguments(shape, (3, 2), torch.bfloat16, x_dtype, which)
    checks = torch.library.opcheck(torch.ops.torch_pru.input_gates, given, rtol=0.02, atol=0.02)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("which", ["xw", "x", "w"])
def test_opcheck_of_the_backward(which: str, residual: bool):
    features, units, windows = 10, [7, 3], [1, 3]
    grad = torch.randn(3, 2, 4, 10, dtype=torch.bfloat16)
    folded = torch.randn(40, 16, dtype=torch.bfloat16) if "x" in which else None
    operand = torch.randn(6, 16, dtype=torch.bfloat16) if "w" in which else None
    dtypes = torch.float32, torch.float32
    given = (grad, folded, operand, features, units, windows, residual, *dtypes, "loop")
    checks = torch.library.opcheck(torch.ops.torch_pru.input_gates_backward, given)
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("rows", [(), (1,), (0,), (2, 0), (3, 2)])
def test_any_leading_dimensions(rows: tuple[int, ...]):
    x, weights, windows, dtype, *_ = arguments(SHAPES[1], rows, torch.bfloat16, torch.float32, "xw")
    result = input_gates(x, weights, windows[1:], dtype)
    assert result.shape == (*rows, 4, 7)
    result.float().sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert all(weight.grad is not None and weight.grad.dtype == torch.float32 for weight in weights)


def test_only_what_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    seen = []

    def note(grad, folded, operand, *others):
        seen.append((folded is not None, operand is not None))
        return real(grad, folded, operand, *others)

    real = gates.backward
    monkeypatch.setattr(gates, "backward", note)
    for which, needed in (("xw", (True, True)), ("x", (True, False)), ("w", (False, True))):
        x, weights, windows, dtype, *_ = arguments(SHAPES[0], (3,), torch.bfloat16, torch.bfloat16, which)
        input_gates(x, weights, windows[1:], dtype).float().square().sum().backward()
        assert seen.pop() == needed
        assert (x.grad is not None) is needed[0]
        assert all((weight.grad is not None) is needed[1] for weight in weights)


@pytest.mark.parametrize("which", ["xw", "x", "w"])
def test_a_caller_who_does_not_know_what_is_asked_for(which: str):
    """As under ``vmap``, where no tensor says that it wants a gradient."""
    x, weights, windows, dtype, *_ = arguments(SHAPES[0], (3,), torch.float64, torch.float64, which)
    named = {"x": x} | {str(level): weight for level, weight in enumerate(weights)}
    asked = {name: tensor for name, tensor in named.items() if tensor.requires_grad}
    exact = exact_gates(x, [weight.double() for weight in weights], tuple(windows[1:]), residual=False)
    expected = gradients([exact], **asked)
    for for_input, for_weights in ((False, False), (True, True)):
        result = gates.forward(x, weights, windows, dtype, False, for_input, for_weights, "loop")[0]
        assert_all_close(gradients([result], **asked), expected, rtol=1e-6, atol=1e-6)


def test_a_weight_that_lies_right_is_not_copied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folding, "fold", None)
    weight = torch.randn(1, 5, 4, 10, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    x = torch.randn(3, 10, dtype=torch.bfloat16, requires_grad=True)
    result = input_gates(x, [weight], (), torch.bfloat16)
    expected = torch.einsum("goi,...i->...go", weight[0].float(), x.float())
    torch.testing.assert_close(result.float(), expected, rtol=0.02, atol=0.02)
    named = {"x": x, "weight": weight}
    found = gradients([result.float()], **named)
    assert_all_close(found, gradients([expected], **named), rtol=0.03, atol=0.03)


def test_double_backward_is_one_clear_error():
    x, weights, windows, dtype, *_ = arguments(SHAPES[0], (3,), torch.bfloat16, torch.float32, "xw")
    result = input_gates(x, weights, windows[1:], dtype).float().square().sum()
    (grad,) = torch.autograd.grad(result, x, create_graph=True)
    with pytest.raises(PRUError, match=r"double backward.*use float32"):
        grad.square().sum().backward()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in 16 bits go the way they go on a GPU."""
    monkeypatch.setattr(gates, "is_unit_major", lambda x: gates.product_dtype(x) == torch.bfloat16)


OPTIONS = [
    {},
    {"levels": 3, "pooling": "skip"},
    {"levels": 1, "groups": 1},
    {"pooling": "max"},
    {"pooling": "convolution"},
    {"input_groups": 4},
    {"input_transform": "linear", "residual": True},
    {"input_transform": "grouped", "residual": True},
    {"context_transform": "pyramidal", "pooling": "max", "backend": "reference"},
    {"backend": "reference"},
]


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_layer_goes_this_way(options: dict, autocast: bool, as_on_a_gpu: None):
    pru, x = PRU(16, 16, init="lstm", **paper(options)), torch.randn(4, 3, 16, requires_grad=True)
    exact = values_and_gradients(pru, pru, x)
    if autocast:
        with torch.autocast("cpu", torch.bfloat16):
            found = values_and_gradients(pru, pru, x)
        assert {name: value.dtype for name, value in found.items()}["x"] == torch.float32
    else:
        found = values_and_gradients(pru.bfloat16(), pru, x.detach().bfloat16().requires_grad_())
        assert all(value.dtype == torch.bfloat16 for value in found.values())
    assert_all_close({name: value.float() for name, value in found.items()}, exact, rtol=0.1, atol=0.15)


def values_and_gradients(run: nn.Module, pru: PRU, x: Tensor) -> dict[str, Tensor]:
    y = run(x)[0]
    return {"y": y} | gradients([y], x=x, **dict(pru.named_parameters()))


def test_one_node_of_a_compiled_graph(as_on_a_gpu: None):
    pru, x = (
        PRU(16, 16, levels=3, groups=4, backend="loop").bfloat16(),
        torch.randn(4, 3, 16).bfloat16().requires_grad_(),
    )
    graphs: list[list[str]] = []
    aot = torch._dynamo.lookup_backend("aot_eager")

    def look(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return aot(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(pru, fullgraph=True, dynamic=True, backend=look)
    assert_all_close(
        values_and_gradients(compiled, pru, x), values_and_gradients(pru, pru, x), rtol=0.02, atol=0.02
    )
    assert graphs
    for nodes in graphs:
        assert sum("input_gates" in node for node in nodes) == 1
        assert not any("linear" in node or "mm" in node for node in nodes)


def test_a_transform_of_its_own(as_on_a_gpu: None):
    for transform in (PyramidalTransform(12, 10, 2), GroupedLinear(12, 10, 1)):
        x = torch.randn(5, 12)
        expected = transform(x)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(transform(x).float(), expected, rtol=0.02, atol=0.02)
