"""What onnxruntime computes from an exported layer, against the layer in float64."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

for package in ("onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra torch-pru[onnx]")

import onnx
import onnxruntime

from torch_pru import PRU, PRUError
from torch_pru.onnx import export, translation_table

LAYERS = {
    "average": {},
    "one group": {"groups": 1},
    "max": {"pooling": "max", "levels": 3},
    "skip": {"pooling": "skip", "input_groups": 2},
    "convolution": {"pooling": "convolution", "levels": 3},
    "linear input": {"input_transform": "linear"},
    "grouped input": {"input_transform": "grouped"},
    "linear context": {"context_transform": "linear"},
    "pyramidal context": {"context_transform": "pyramidal"},
    "no residual": {"residual": False},
    "no bias": {"bias": False},
    "backwards": {"bidirectional": True},
    "stack": {"num_layers": 3, "bidirectional": True, "dropout": 0.5},
    "batch first": {"batch_first": True},
}
SIZES = [(1, 1), (7, 5), (31, 1), (200, 5)]


def session(program: torch.onnx.ONNXProgram) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(program.model_proto, full_check=True)
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


def largest_difference(found: onnxruntime.InferenceSession, rnn: nn.Module, inputs: list[Tensor]) -> float:
    """Of the outputs for ``inputs`` from those of ``rnn`` in float64."""
    names = [each.name for each in found.get_inputs()]
    results = found.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})
    x, *states = (each.double() for each in inputs)
    with torch.no_grad():
        y, (h, c) = copy.deepcopy(rnn).double().eval()(x, tuple(states) or None)
    return max(np.abs(a - b.numpy()).max() for a, b in zip(results, (y, h, c), strict=True))


def layer_inputs(rnn: PRU | nn.LSTM, steps: int, batch: int, states: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(steps, batch, rnn.input_size, generator=generator)
    rows = rnn.num_layers * (2 if rnn.bidirectional else 1)
    given = [torch.randn(rows, batch, rnn.hidden_size, generator=generator) for _ in range(2)]
    return [x.transpose(0, 1).contiguous() if rnn.batch_first else x, *(given if states else [])]


@pytest.mark.parametrize(
    ("name", "states"),
    [*((name, True) for name in LAYERS), *((name, False) for name in ("average", "max", "stack"))],
)
def test_layers(name: str, states: bool):
    torch.manual_seed(0)
    groups = {} if "context_transform" in LAYERS[name] else {"groups": 4}
    rnn = PRU(24, 24, init="lstm", **groups | LAYERS[name])  # in train(): export must see to that
    x, *given = layer_inputs(
        rnn, 1, 1, states
    )  # of one step and one sequence: sizes are dynamic all the same
    found = session(export(rnn, (x, tuple(given)) if states else (x,)))
    for steps, batch in SIZES:
        assert largest_difference(found, rnn, layer_inputs(rnn, steps, batch, states)) <= 1e-5
    assert rnn.training


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
def test_any_lstm(options: dict, states: bool, tmp_path: Path):
    torch.manual_seed(0)
    lstm = nn.LSTM(10, 20, **options)
    x, *given = layer_inputs(lstm, 7, 3, states)
    export(lstm, (x, tuple(given)) if states else (x,), tmp_path / "lstm.onnx")
    found = onnxruntime.InferenceSession(tmp_path / "lstm.onnx")
    assert [each.name for each in found.get_inputs()] == ["input", "h_0", "c_0"][: 1 + len(given)]
    assert [each.name for each in found.get_outputs()] == ["output", "h_n", "c_n"]
    for steps, batch in SIZES:
        assert largest_difference(found, lstm, layer_inputs(lstm, steps, batch, states)) <= 1e-5


def test_unbatched():
    torch.manual_seed(0)
    rnn = PRU(24, 24, groups=4, init="lstm")
    found = session(export(rnn, (torch.randn(7, 24),)))
    for steps in (1, 31):
        assert largest_difference(found, rnn, [torch.randn(steps, 24)]) <= 1e-5


def test_arguments_as_torch_takes_them():
    """A tensor in the place of a tuple, and arguments by name."""
    rnn = PRU(24, 24, groups=4, init="lstm")
    x, h, c = layer_inputs(rnn, 7, 3, states=True)
    assert largest_difference(session(export(rnn, x)), rnn, [x]) <= 1e-5
    for args, kwargs in [((x,), {"hx": (h, c)}), ((), {"input": x, "hx": (h, c)})]:
        assert largest_difference(session(export(rnn, args, kwargs=kwargs)), rnn, [x, h, c]) <= 1e-5


def test_float64():
    rnn = PRU(24, 24, groups=4, init="lstm", pooling="skip").double()  # no float64 average in onnxruntime
    x = torch.randn(9, 2, 24, dtype=torch.float64)
    assert largest_difference(session(export(rnn, (x,))), rnn, [x]) <= 1e-12


class Tagger(nn.Module):
    """A model of somebody else's, with both kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.pru = PRU(32, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pru(self.lstm(x)[0])[0])


def test_a_model_with_both_layers():
    torch.manual_seed(0)
    tagger = Tagger()
    shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("steps")},)
    found = session(export(tagger, (torch.randn(3, 5, 8),), dynamic_shapes=shapes, input_names=["x"]))
    assert isinstance(tagger.lstm, nn.LSTM)
    for steps, batch in SIZES:
        x = torch.randn(batch, steps, 8)
        expected = copy.deepcopy(tagger).double().eval()(x.double()).detach().numpy()
        assert np.abs(found.run(None, {"x": x.numpy()})[0] - expected).max() <= 1e-5


def test_the_translation_table_serves_torch_onnx_export():
    rnn = PRU(24, 24, groups=4, init="lstm").eval()
    shapes = ({0: torch.export.Dim("steps"), 1: torch.export.Dim("batch")},)
    options = {"dynamic_shapes": shapes, "custom_translation_table": translation_table, "dynamo": True}
    found = session(torch.onnx.export(rnn, (torch.randn(7, 3, 24),), verbose=False, **options))
    assert largest_difference(found, rnn, layer_inputs(rnn, 31, 2, states=False)) <= 1e-5


def test_what_is_refused():
    x = torch.randn(7, 3, 24)
    for pooling in ("max", "convolution"):
        rnn = PRU(24, 24, pooling=pooling, context_transform="pyramidal")
        with pytest.raises(PRUError, match=f"pooling='{pooling}' cannot be exported to ONNX; use"):
            export(nn.Sequential(rnn), (x,))
    with pytest.raises(PRUError, match="proj_size=5"):
        export(nn.LSTM(24, 10, proj_size=5), (x,))
    with pytest.raises(PRUError, match="dynamo=False is not supported"):
        export(PRU(24, 24), (x,), dynamo=False)
    with pytest.raises(PRUError, match="args must be the input of the layer"):
        export(PRU(24, 24))


class Doubled(nn.Module):
    """A PRU and an operator that nobody has translated."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = PRU(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.torch_pru_tests.twice(self.rnn(x)[0])


def test_an_unknown_operator_is_named_and_can_be_translated():
    @torch.library.custom_op("torch_pru_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    operator = torch.ops.torch_pru_tests.twice.default
    x = torch.randn(7, 3, 24)
    message = r"^torch\.ops\.torch_pru_tests\.twice\.default has no translation to ONNX; give one in"
    with pytest.raises(PRUError, match=message):
        export(Doubled(), (x,))
    from onnxscript import opset18 as op

    model = Doubled()
    found = session(export(model, (x,), custom_translation_table={operator: lambda x: op.Add(x, x)}))
    (result,) = found.run(None, {found.get_inputs()[0].name: x.numpy()})
    assert np.abs(result - model.eval()(x).detach().numpy()).max() <= 1e-5


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("torch_pru.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"needs onnx and onnxscript; pip install 'torch-pru\[onnx\]'"):
        import torch_pru.onnx  # noqa: F401
