"""``torch.compile(fullgraph=True)`` and ``torch.export`` with a dynamic number of steps and batch."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.export import Dim

from torch_pru import PRU
from torch_pru.ops import native
from torch_pru.ops.cpu import loop
from torch_pru.ops.layer import run_layer

from .comparing import assert_all_close, gradients, paper

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def values_and_gradients(run: nn.Module, pru: PRU, x: torch.Tensor) -> dict[str, torch.Tensor]:
    y, (h, c) = run(x)
    values = {"y": y, "h": h, "c": c}
    return values | gradients(values.values(), x=x, **dict(pru.named_parameters()))


@pytest.mark.parametrize(
    "options",
    [
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"context_transform": "pyramidal", "levels": 3, "pooling": "skip"},
        {"input_transform": "grouped", "bias": False},
    ],
    ids=str,
)
def test_one_graph_for_any_steps_and_batch(options: dict):
    """Both the forward and the backward are traced; no break, and no new graph for a new size."""
    pru, shapes = PRU(8, 8, **paper(options)), []
    aot = torch._dynamo.lookup_backend("aot_eager")

    def compile_and_note(graph: torch.fx.GraphModule, inputs: list) -> object:
        shapes.append(shape)
        return aot(graph, inputs)

    compiled = torch.compile(pru, fullgraph=True, dynamic=True, backend=compile_and_note)
    for shape in ((4, 3, 8), (7, 2, 8), (3, 5, 8)):
        x = torch.randn(shape, requires_grad=True)
        assert_all_close(values_and_gradients(compiled, pru, x), values_and_gradients(pru, pru, x), **CLOSE)
    assert set(shapes) == {(4, 3, 8)}  # compiled for the first size alone


@pytest.mark.parametrize(("backend", "name"), [("loop", "recurrence"), ("native", "cpu_layer")])
def test_all_steps_are_one_node(backend: str, name: str):
    reason = native.missing_reason()
    if backend == "native" and reason is not None:
        pytest.skip(reason)
    pru, seen = PRU(8, 8, levels=2, groups=4, backend=backend), []

    def look(graph: torch.fx.GraphModule, inputs: list) -> object:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compile(pru, fullgraph=True, backend=look)(torch.randn(6, 2, 8))
    assert sum(name in target for target in seen) == 1


def test_an_operator_that_a_compiled_caller_calls_eagerly(monkeypatch: pytest.MonkeyPatch):
    """As where a compiler gave up on the calling function: it does not look into the operator instead."""
    broken = torch._dynamo.disable(loop.recurrence, recursive=False)
    monkeypatch.setattr(loop, "layer", functools.partial(run_layer, broken, "loop"))
    pru, x, seen = PRU(8, 8, levels=2, groups=4), torch.randn(4, 3, 8, requires_grad=True), []

    def look(graph: torch.fx.GraphModule, inputs: list) -> object:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    compiled = torch.compile(pru, backend=look)
    expected = values_and_gradients(pru, pru, x)
    assert_all_close(values_and_gradients(compiled, pru, x), expected, **CLOSE)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x)[0], expected["y"], **CLOSE)
    assert seen
    assert not any("sigmoid" in target or "bmm" in target for target in seen)  # what the loop is made of


def test_with_states_given_and_weight_drop():
    pru = PRU(8, 8, weight_drop=0.5, levels=2, groups=4)
    compiled = torch.compile(pru, fullgraph=True, backend="aot_eager")
    x, states = torch.randn(4, 2, 8), (torch.randn(1, 2, 8), torch.randn(1, 2, 8))
    one, two = compiled(x, states)[0], compiled(x, states)[0]
    assert not torch.equal(one, two)
    pru.eval()
    torch.testing.assert_close(compiled(x, states), pru(x, states))


@pytest.mark.slow
def test_with_the_default_compiler():
    pru = PRU(8, 8, 2, levels=2, groups=4)
    compiled = torch.compile(pru, fullgraph=True)
    x = torch.randn(4, 3, 8, requires_grad=True)
    assert_all_close(values_and_gradients(compiled, pru, x), values_and_gradients(pru, pru, x), **CLOSE)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_steps_and_batch(batch_first: bool, strict: bool):
    pru = PRU(8, 8, 2, bidirectional=True, batch_first=batch_first, levels=2, groups=4).eval()
    sizes = {0: Dim("outer", min=2, max=512), 1: Dim("inner", min=2, max=512)}
    program = torch.export.export(pru, (torch.randn(4, 3, 8),), dynamic_shapes=(sizes,), strict=strict)
    for shape in ((4, 3), (9, 5), (2, 2)):
        x = torch.randn(*shape, 8)
        torch.testing.assert_close(program.module()(x), pru(x), **CLOSE)


def test_export_with_autocast_inside():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # The backend that exported programs hold: it rounds in the same places.
            self.rnn = PRU(8, 8, levels=2, groups=4, backend="loop")

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.rnn(x)

    model, x = Model().eval(), torch.randn(4, 3, 8)
    program = torch.export.export(model, (x,), strict=True)
    torch.testing.assert_close(program.module()(x), model(x))


def test_export_with_states():
    pru = PRU(8, 8, levels=2, groups=4).eval()
    steps, batch = Dim("steps", min=2, max=512), Dim("batch", min=2, max=512)
    states = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    shapes = ({0: steps, 1: batch}, ({1: batch}, {1: batch}))
    program = torch.export.export(pru, (torch.randn(4, 3, 8), states), dynamic_shapes=shapes)
    x, states = torch.randn(6, 2, 8), (torch.randn(1, 2, 8), torch.randn(1, 2, 8))
    torch.testing.assert_close(program.module()(x, states), pru(x, states), **CLOSE)
