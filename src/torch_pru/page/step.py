"""A language model as one step in primitive ONNX operators, so that everything inside can be looked at.

Inputs are ``token`` (1,) and, of every layer k, ``h_k`` and ``c_k`` (1, M). Outputs are

* ``log_probabilities`` (V,) of the next word;
* ``hidden`` (1, E), the output of the last layer, which the continuous cache remembers;
* ``next_h_k`` and ``next_c_k`` (1, M);
* ``gates_k`` (4, M): input, forget, content and output gate after their activations;
* ``level_k_j`` (1, N/2^j): the input of the layer at each level j of its pyramid.

The equations are those of `torch_pru.cell`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from torch import Tensor, nn

from torch_pru import PRU
from torch_pru.errors import PRUError
from torch_pru.lm.model import LanguageModel, MixtureOfSoftmaxes, Softmax
from torch_pru.ops.spec import LayerSpec, LayerWeights, TransformSpec, even_sizes
from torch_pru.page.graph import Graph

GATES = 4


def step_model(model: LanguageModel, *, int8: bool = False) -> Any:
    """The ONNX model of one step at batch 1.

    Args:
        model: the language model.
        int8: whether matrices are stored in 8 bits.
    """
    graph = Graph(int8=int8)
    token = graph.input("token", TensorProto.INT64, (1,))
    embedding = graph.matrix(array(model.embedding.weight))
    x = graph.add("Gather", embedding, token, axis=0)
    for number, layer in enumerate(model.layers, start=1):
        spec, weights = layer_of(layer)
        x = add_layer(graph, x, spec, weights, number)
    graph.output("hidden", x, (1, model.config.hidden[-1]))
    found = add_decoder(graph, x, model.decoder, embedding)
    graph.output("log_probabilities", found, (model.vocabulary_size,))
    return graph.model()


def layer_of(layer: nn.Module) -> tuple[LayerSpec, LayerWeights]:
    """Structure and weights of a layer; an ``nn.LSTM`` is a PRU with one level and one group."""
    if isinstance(layer, PRU):
        return layer.specs[0], layer.weights(0)
    assert isinstance(layer, nn.LSTM)
    hidden = TransformSpec(layer.hidden_size, (layer.hidden_size,))
    spec = LayerSpec(TransformSpec(layer.input_size, (layer.hidden_size,)), hidden)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    of_input, of_context, *biases = (layer.get_parameter(name) for name in names)
    return spec, LayerWeights((of_input,), (of_context,), tuple(biases))


def add_layer(graph: Graph, x: str, spec: LayerSpec, weights: LayerWeights, number: int) -> str:
    """One step of a layer: x (1, N) to h (1, M)."""
    size = spec.hidden_size
    h, c = (graph.input(f"{name}_{number}", TensorProto.FLOAT, (1, size)) for name in "hc")
    views = add_pyramid(graph, x, spec.input, weights.input_kernels)
    for level, (view, features) in enumerate(zip(views, spec.input.level_features, strict=True)):
        graph.output(f"level_{number}_{level}", view, (1, features))
    gates = add_transform(graph, views, spec.input, weights.input)
    if spec.residual:
        gates = graph.add("Add", gates, x)
    context = add_pyramid(graph, h, spec.context, weights.context_kernels)
    gates = graph.add("Add", gates, add_transform(graph, context, spec.context, weights.context))
    if weights.bias is not None:
        gates = graph.add("Add", gates, graph.constant(array(weights.bias).reshape(GATES, size)))
    i, f, g, o = graph.split("Split", gates, outputs=GATES, axis=0, num_outputs=GATES)
    i, f, o = (graph.add("Sigmoid", gate) for gate in (i, f, o))
    g = graph.add("Tanh", g)
    c = graph.add("Add", graph.add("Mul", f, c), graph.add("Mul", i, g))
    h = graph.add("Mul", o, graph.add("Tanh", c))
    graph.output(f"gates_{number}", graph.add("Concat", i, f, g, o, axis=0), (GATES, size))
    graph.output(f"next_h_{number}", h, (1, size))
    graph.output(f"next_c_{number}", c, (1, size))
    return h


def add_pyramid(graph: Graph, x: str, spec: TransformSpec, kernels: Sequence[Tensor]) -> list[str]:
    """x (1, N) at every level: (1, N), (1, N/2), ..."""
    views = [x]
    for level, window in enumerate(spec.windows):
        views.append(add_subsampling(graph, views[-1], spec.pooling, window, kernels[level : level + 1]))
    return views


def add_subsampling(graph: Graph, x: str, pooling: str, window: int, kernel: Sequence[Tensor]) -> str:
    """(1, n) to (1, n/2)."""
    if pooling == "skip":
        starts, ends, axes, steps = graph.integers(0), graph.integers(1 << 31), graph.integers(1), [2]
        return graph.add("Slice", x, starts, ends, axes, graph.integers(*steps))
    row = graph.add("Unsqueeze", x, graph.integers(1))  # (1, 1, n)
    sizes: dict[str, Any] = {"kernel_shape": [window], "strides": [2], "pads": [window // 2] * 2}
    if pooling == "average":
        row = graph.add("AveragePool", row, count_include_pad=1, **sizes)
    elif pooling == "max":
        row = graph.add("MaxPool", row, **sizes)
    elif pooling == "convolution":
        weight = graph.constant(array(kernel[0]).reshape(1, 1, window))
        row = graph.add("Tanh", graph.add("Conv", row, weight, **sizes))
    else:
        raise PRUError(f"pru page does not know pooling={pooling!r}")
    return graph.add("Squeeze", row, graph.integers(1))


def add_transform(graph: Graph, views: Sequence[str], spec: TransformSpec, matrices: Sequence[Tensor]) -> str:
    """The pyramidal transform of the levels, once for every gate: (4, M)."""
    parts = []
    levels = zip(views, spec.matrices_by_level(tuple(matrices)), spec.level_features, strict=True)
    for view, level_matrices, features in levels:
        groups = [view]
        if spec.groups > 1:
            sizes = graph.integers(*even_sizes(features, spec.groups))
            groups = graph.split("Split", view, sizes, outputs=spec.groups, axis=1)
        for group, matrix in zip(groups, by_group(level_matrices, spec.groups), strict=True):
            product = graph.add("Gemm", group, graph.matrix(matrix), transB=1)  # (1, 4·m)
            parts.append(graph.add("Reshape", product, graph.integers(GATES, -1)))
    return parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)


def by_group(matrices: Sequence[Tensor], groups: int) -> list[np.ndarray]:
    """One matrix (4·m, n) for each group, rows gate-major."""
    if len(matrices) == groups:
        return [array(matrix) for matrix in matrices]
    whole = array(matrices[0])
    split = whole.reshape(GATES, groups, -1, whole.shape[1])
    return [split[:, group].reshape(-1, whole.shape[1]) for group in range(groups)]


def add_decoder(graph: Graph, h: str, decoder: Softmax | MixtureOfSoftmaxes, embedding: str) -> str:
    """Log-probabilities (V,) given h (1, H)."""
    bias = graph.constant(array(decoder.bias))
    if isinstance(decoder, Softmax):
        logits = graph.add("Gemm", h, embedding, bias, transB=1)
        return graph.add("Squeeze", graph.add("LogSoftmax", logits, axis=1), graph.integers(0))
    latent_weight = graph.matrix(array(decoder.latent.weight))
    latent = graph.add("Gemm", h, latent_weight, graph.constant(array(decoder.latent.bias)), transB=1)
    latent = graph.add("Reshape", graph.add("Tanh", latent), graph.integers(decoder.experts, -1))
    found = graph.add("LogSoftmax", graph.add("Gemm", latent, embedding, bias, transB=1), axis=1)
    prior = graph.add("Gemm", h, graph.matrix(array(decoder.prior.weight)), transB=1)  # (1, experts)
    prior = graph.add("Transpose", graph.add("LogSoftmax", prior, axis=1), perm=[1, 0])
    return graph.add("ReduceLogSumExp", graph.add("Add", found, prior), graph.integers(0), keepdims=0)


def array(tensor: Tensor) -> np.ndarray:
    """A tensor in float32, outside of PyTorch."""
    values: np.ndarray = tensor.detach().float().cpu().numpy()
    return values
