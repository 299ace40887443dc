"""A small builder of ONNX graphs, with weights in float32 or in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, checker, helper, numpy_helper

OPSET = 18
IR_VERSION = 9  # the one of opset 18


class Graph:
    """Adds one node at a time; values are known by their names.

    Args:
        int8: whether matrices are stored in 8 bits, with a scale for each row.

    Example:
        >>> graph = Graph()
        >>> x = graph.input("x", TensorProto.FLOAT, (1, 2))
        >>> graph.output("y", graph.add("Tanh", x), (1, 2))
        >>> len(graph.model().graph.node)
        2
    """

    def __init__(self, *, int8: bool = False) -> None:
        self.int8 = int8
        self._nodes: list[Any] = []
        self._weights: list[TensorProto] = []
        self._inputs: list[ValueInfoProto] = []
        self._outputs: list[ValueInfoProto] = []

    def input(self, name: str, kind: int, shape: Sequence[int]) -> str:
        """An input of the model."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:
        """A value as an output of the model."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The value of a node with one output."""
        return self.split(operator, *inputs, outputs=1, **attributes)[0]

    def split(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """The values of a node with several outputs."""
        names = [f"{operator.lower()}_{len(self._nodes)}_{number}" for number in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def constant(self, values: np.ndarray) -> str:
        """An array, stored as it is."""
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def integers(self, *values: int) -> str:
        """Shapes, axes and bounds."""
        return self.constant(np.array(values, np.int64))

    def matrix(self, values: np.ndarray) -> str:
        """A matrix (rows, columns) in float32, which is stored in 8 bits if the graph is an ``int8`` one."""
        if not self.int8:
            return self.constant(values.astype(np.float32))
        rounded, scales = quantize(values)
        stored, scale = self.constant(rounded), self.constant(scales)
        return self.add("DequantizeLinear", stored, scale, axis=0)

    def model(self) -> ModelProto:
        """The model, checked."""
        graph = helper.make_graph(self._nodes, "step", self._inputs, self._outputs, self._weights)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], producer_name="torch-pru")
        model.ir_version = IR_VERSION
        checker.check_model(model)
        return model


def quantize(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (rows, columns) as int8, and the scale (rows,) of each row: values ≈ scale · int8.

    Example:
        >>> rounded, scales = quantize(np.array([[1.27, -0.5], [0.0, 0.0]]))
        >>> rounded.tolist(), scales.tolist()
        ([[127, -50], [0, 0]], [0.009999999776482582, 1.0])
    """
    largest = np.abs(values).max(axis=1, initial=0)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(values / scales[:, None]).clip(-127, 127).astype(np.int8), scales
