"""Matrices in 8 bits, for onnxruntime: a smaller file, and less memory to read for every token."""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    DeduplicateHashedInitializersPass,
    LiftConstantsToInitializersPass,
    NameFixPass,
    RemoveUnusedNodesPass,
)
from onnx_ir.tape import Tape
from onnxscript.optimizer import fold_constants

BLOCK = 32
"""Neighboring weights of a row that share a scale."""

ZERO = 128
"""Stands for a weight of 0."""

DOMAIN = "com.microsoft"
"""Of onnxruntime's own operators."""


def store_in_int8(model: ir.Model) -> None:
    """Store the matrices of a model in 8 bits, in place; vectors stay as they are.

    A product becomes onnxruntime's ``MatMulNBits``, which also rounds its other factor to 8 bits, and an
    embedding is looked up in 8 bits. A tied embedding is still stored once.
    """
    fold_constants(model, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        tape = Tape()
        if node.op_type == "MatMul" and (matrices := _constant(node.inputs[1])) is not None:
            result = _products(tape, node.inputs[0], matrices)
        elif node.op_type == "Gather" and (table := _constant(node.inputs[0])) is not None:
            result = _rows(tape, table, node.inputs[1])
        else:
            continue
        for value in tape.initializers:
            value.name = f"int8_{len(model.graph.initializers)}"
            model.graph.register_initializer(value)
        result.type = node.outputs[0].type
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, node.outputs, [result])
    model.opset_imports[DOMAIN] = 1
    NameFixPass()(model)
    RemoveUnusedNodesPass()(model)
    DeduplicateHashedInitializersPass(size_limit=sys.maxsize)(model)


def quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (N, K) as uint8 (N, blocks, 32) and scales (N, blocks): values ≈ scale · (uint8 - 128).

    Rows are filled up with zeros to whole blocks.

    Example:
        >>> stored, scales = quantize(np.array([[1.27, -0.5]], dtype=np.float32))
        >>> stored[0, 0, :3].tolist(), scales.shape
        ([255, 78, 128], (1, 1))
    """
    rows, columns = matrix.shape
    blocks = np.pad(matrix, ((0, 0), (0, -columns % BLOCK))).reshape(rows, -1, BLOCK)
    largest = np.abs(blocks).max(-1)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return (np.rint(blocks / scales[..., None]) + ZERO).astype(np.uint8), scales


def _constant(value: ir.Value | None) -> np.ndarray | None:
    """A matrix, or several of them, that every run has the same of; else None."""
    if value is None or value.const_value is None:
        return None
    found = value.const_value.numpy()
    return found if found.dtype == np.float32 and found.ndim > 1 else None


def _products(tape: Tape, x: ir.Value | None, matrices: np.ndarray) -> ir.Value:
    """x (..., K) times a matrix (K, N), or x (..., g, B, K) times one of g matrices (g, K, N) each."""
    if matrices.ndim == 2:
        return _product(tape, x, matrices)
    groups = len(matrices)
    if groups == 1:
        return _product(tape, x, matrices[0])
    parts = tape.op_multi_out("Split", [x], {"axis": -3, "num_outputs": groups}, num_outputs=groups)
    found = [_product(tape, part, matrix) for part, matrix in zip(parts, matrices, strict=True)]
    return tape.op("Concat", found, {"axis": -3})


def _product(tape: Tape, x: ir.Value | None, matrix: np.ndarray) -> ir.Value:
    columns, rows = matrix.shape
    # accuracy_level 4: multiply in 8 bits, and add in 32
    attributes = {"K": columns, "N": rows, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
    return tape.op("MatMulNBits", [x, *_stored(tape, matrix.T)], attributes, domain=DOMAIN)


def _rows(tape: Tape, table: np.ndarray, ids: ir.Value | None) -> ir.Value:
    """Rows of a table (V, E) by their numbers (T, B), in float32: (T, B, E)."""
    stored, scales = _stored(tape, table)
    rounded = tape.op(
        "Cast", [tape.op("Gather", [stored, ids])], {"to": ir.DataType.FLOAT}
    )  # (T, B, blocks, 32)
    centered = tape.op("Sub", [rounded, _add(tape, np.float32(ZERO))])
    scale = tape.op("Unsqueeze", [tape.op("Gather", [scales, ids]), _add(tape, np.array([-1]))])
    flat = tape.op("Reshape", [tape.op("Mul", [centered, scale]), _add(tape, np.array([0, 0, -1]))])
    bounds = [_add(tape, np.array([bound])) for bound in (0, table.shape[1], -1)]
    return tape.op("Slice", [flat, *bounds])


def _stored(tape: Tape, matrix: np.ndarray) -> list[ir.Value]:
    return [_add(tape, values) for values in quantize(np.ascontiguousarray(matrix))]


def _add(tape: Tape, values: np.ndarray | np.generic) -> ir.Value:
    return tape.initializer(ir.tensor(np.asarray(values)), name="int8")
