"""The recurrence in ONNX: a ``Scan`` over the steps.

``torch.onnx.export(..., custom_translation_table=translation_table)`` exports any model that contains a PRU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir
import torch
from onnxscript import DOUBLE, FLOAT, FLOAT16, INT64, evaluator
from onnxscript import opset18 as op

import torch_pru  # noqa: F401 (defines the operator)
from torch_pru.errors import PRUError

Real = TypeVar("Real", FLOAT, DOUBLE, FLOAT16)
"""What the exporter reads the types of inputs from; the values are those of its graph."""


def recurrence(
    gates: Real,
    weight: Real,
    bias: Real | None,
    h0: Real,
    c0: Real,
    lengths: INT64 | None,
    reverse: bool = False,
    save: bool = False,
    backend: str = "",
) -> tuple[Real, ...]:
    """`torch_pru.ops.recurrence` as ONNX nodes.

    Groups are the first axis inside the loop, (g, B, D), so that each step is one product of g matrices and
    nothing is transposed there.
    """
    if lengths is not None:
        raise PRUError("a PackedSequence cannot be exported to ONNX; export with a padded tensor")
    groups, _, width, _ = _static_shape(weight)
    hidden, dtype = groups * width, gates.dtype
    if bias is not None:
        gates = op.Add(gates, bias)
    # (T, B, 4, M) to (T, g, B, 4D), gate-major within a group
    by_group = op.Reshape(gates, _numbers(0, 0, 4, groups, width))
    by_group = op.Reshape(op.Transpose(by_group, perm=[0, 3, 1, 2, 4]), _numbers(0, groups, -1, 4 * width))
    # (g, 4, D, D), a row for each output, to (g, D, 4D), a row for each input
    matrix = op.Reshape(op.Transpose(weight, perm=[0, 3, 1, 2]), _numbers(groups, width, 4 * width))
    states = [
        op.Transpose(op.Reshape(state, _numbers(0, groups, width)), perm=[1, 0, 2]) for state in (h0, c0)
    ]
    h, c, out = _scan(states, by_group, matrix, dtype, reverse)
    out = op.Reshape(op.Transpose(out, perm=[0, 2, 1, 3]), _numbers(0, 0, hidden))
    h, c = (op.Reshape(op.Transpose(state, perm=[1, 0, 2]), _numbers(0, hidden)) for state in (h, c))
    # The operator's last two results are for a backward pass, and empty here.
    return out, h, c, _nothing(dtype), _nothing(dtype)


translation_table: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.torch_pru.recurrence.default: recurrence
}
"""What ``torch.onnx.export`` takes as ``custom_translation_table``."""


def _scan(
    states: list[ir.Value], gates: ir.Value, matrix: ir.Value, dtype: ir.DataType, reverse: bool
) -> tuple[ir.Value, ...]:
    """h and c after the last step, (g, B, D) each, and all outputs (T, g, B, D)."""
    kind = ir.TensorType(dtype)
    h, c, step = (ir.Value(name=name, type=kind) for name in ("h", "c", "gates"))
    nodes: list[ir.Node] = []

    def add(name: str, *inputs: ir.Value, outputs: int = 1, **attributes: Any) -> Any:
        converted = [ir.AttrInt64(key, value) for key, value in attributes.items()]
        node = ir.Node("", name, inputs, converted, num_outputs=outputs)
        for number, value in enumerate(node.outputs):
            value.name, value.type = f"{name}_{len(nodes)}_{number}", kind
        nodes.append(node)
        return node.outputs[0] if outputs == 1 else node.outputs

    total = add("Add", step, add("MatMul", h, matrix))
    i, f, g, o = add("Split", total, outputs=4, axis=-1, num_outputs=4)
    kept = add("Mul", add("Sigmoid", f), c)
    c_next = add("Add", kept, add("Mul", add("Sigmoid", i), add("Tanh", g)))
    h_next = add("Mul", add("Sigmoid", o), add("Tanh", c_next))
    out = add("Identity", h_next)
    body = ir.Graph([h, c, step], [h_next, c_next, out], nodes=nodes, name="step", opset_imports={"": 18})
    directions = [1 if reverse else 0]
    node = ir.Node(
        "",
        "Scan",
        [*states, gates],
        [
            ir.AttrGraph("body", body),
            ir.AttrInt64("num_scan_inputs", 1),
            ir.AttrInt64s("scan_input_directions", directions),
            ir.AttrInt64s("scan_output_directions", directions),
        ],
        num_outputs=3,
    )
    # The exporter records nodes here. onnxscript's own op.Scan would have one output.
    evaluator.default().nodes.append(node)
    for value in node.outputs:
        value.type = kind
    return tuple(node.outputs)


def _static_shape(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(int(size) for size in value.shape)


def _nothing(dtype: ir.DataType) -> Any:
    return op.Constant(value=ir.tensor([], dtype=dtype))


def _numbers(*values: int) -> Any:
    return op.Constant(value_ints=list(values))
