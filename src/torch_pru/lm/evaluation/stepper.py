"""One token after another through a model, as fast as its device allows.

What is computed from weights alone is computed once, in a copy of the model. On a GPU the rest is a few
kernels a token, captured as a CUDA graph and replayed.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_pru import PRU
from torch_pru.lm.graphs import GraphedFunction, can_capture, on_device
from torch_pru.lm.model import LanguageModel, Softmax, State, flat, full_precision
from torch_pru.ops import backends
from torch_pru.ops import torch_private as private
from torch_pru.ops.folding import dense_matrix
from torch_pru.ops.gates import gate_linear, is_unit_major
from torch_pru.ops.operators import is_eager
from torch_pru.ops.spec import (
    SIXTEEN_BITS,
    LayerCall,
    LayerSpec,
    LayerWeights,
    RecurrenceCall,
    TransformSpec,
    product_dtype,
)

CHUNK = 32
"""Likeliest words that one graph finds: the host looks in once for all of them."""


class Stepper:
    """A model that reads a text token by token, at batch 1.

    The weights are those at the time it is made. They and the products are in ``dtype``; cell states of PRU
    layers are float32 at least.

    Args:
        model: the language model; it is left as it is.
        barred: an id that gets no probability.
        dtype: None takes autocast's where that is on, else the weights'.
        graph: whether to capture CUDA graphs. None: on a GPU, where all layers are PRUs.
    """

    def __init__(
        self,
        model: LanguageModel,
        barred: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        graph: bool | None = None,
    ) -> None:
        weight = model.embedding.weight
        self.device = weight.device
        self.dtype = dtype or product_dtype(weight)
        with _exactly_on(self.device):
            self.model = frozen(model, self.dtype)
        if graph is None:
            graph = can_capture(model)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.state = self._initial_state()
        self.scores = torch.zeros(1, model.vocabulary_size, device=self.device, dtype=self.wide)
        self.offset = self._offset(model, barred)
        self._step = functools.partial(_run_model, self.model, self.offset)
        arguments = (self.model.embedding.weight, self._dense_layers(), self.offset, self._step)
        self.tokens = backends.run("token_model", *arguments)
        self.token = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.words = torch.zeros(CHUNK, 1, dtype=torch.int64, device=self.device)
        self._read_token, self._find_words = GraphedFunction(graph), GraphedFunction(graph)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        """Go on by ``tokens`` (T,): the scores (V,) of the word after them, log p but for a constant.

        The next call overwrites the scores.
        """
        with _exactly_on(self.device):
            if len(tokens) == 1:
                self.token.copy_(tokens)
                self._read_token(lambda: self._read(self.token))
            else:
                self._read(tokens.to(self.device))
        return self.scores[0]

    def likeliest(self, tokens: Tensor) -> Iterator[int]:
        """Go on by ``tokens`` (T,), then for ever by the likeliest word: the ids of those words.

        The device is always a chunk of words ahead of what has been taken.
        """
        self.read(tokens)
        ahead = self._launch()
        while True:
            words, finished = ahead
            ahead = self._launch()
            if finished is not None:
                finished.synchronize()
            yield from words.flatten().tolist()

    @torch.no_grad()
    def _launch(self) -> tuple[Tensor, torch.cuda.Event | None]:
        """Set the device to the next chunk: its words on the host, and what to wait for before reading."""
        with _exactly_on(self.device):
            self._find_words(self._find_likeliest)
            words = self.words.to("cpu", non_blocking=True, copy=True)
            return words, torch.cuda.current_stream().record_event() if self.words.is_cuda else None

    def _find_likeliest(self) -> None:
        self._keep(*self.tokens.find(self.words, self.scores, self.state))

    def _read(self, tokens: Tensor) -> None:
        read = self.tokens.read if len(tokens) == 1 else self._step
        self._keep(*read(tokens, self.state))

    def _dense_layers(self) -> list[tuple[LayerSpec, LayerWeights] | None] | None:
        """The layers as the piece ``token_model`` reads them."""
        if not isinstance(self.model.decoder, Softmax):
            return None
        return [layer.dense() if isinstance(layer, FrozenLayer) else None for layer in self.model.layers]

    def _keep(self, scores: Tensor, state: State) -> None:
        """Into the buffers that graphs read from and write to."""
        self.scores.copy_(scores)
        private.foreach_copy_(flat(self.state), flat(state))

    def _offset(self, model: LanguageModel, barred: int | None) -> Tensor:
        """What is added to the scores (V,): the bias of a softmax, and -infinity for a barred word."""
        offset = torch.zeros_like(self.scores[0])
        if isinstance(model.decoder, Softmax):
            offset.copy_(model.decoder.bias.detach())
        if barred is not None:
            offset[barred] = -math.inf
        return offset

    def _initial_state(self) -> State:
        """Zeros (1, M) for h and c of every layer."""
        state = []
        for layer, size in zip(self.model.layers, self.model.config.hidden, strict=True):
            h = torch.zeros(1, size, device=self.device, dtype=self.dtype)
            c = torch.zeros_like(h, dtype=self.wide if isinstance(layer, FrozenLayer) else self.dtype)
            state.append((h, c))
        return state


class FrozenLayer(nn.Module):
    """A layer in one direction, for steps of one token or a few.

    Args:
        spec: the structure of the layer.
        weights: its weights, in full precision.
        dtype: of the products.

    Attributes:
        input: (1, 4, M, N), the input transform as one matrix; None if it is not linear. On a GPU the gates
            of a unit are adjacent in memory.
        context: (G, 4, D, D), in the layout that the backend reads; None if the context is not linear.
        bias: (4, M) or None; as wide as the sums it is added to, whatever the products are in.
    """

    def __init__(self, spec: LayerSpec, weights: LayerWeights, dtype: torch.dtype) -> None:
        super().__init__()
        self.spec = spec
        self.input: Tensor | None = None
        self.context: Tensor | None = None
        wide = torch.promote_types(dtype, torch.float32)
        bias = weights.bias
        self.bias = None if bias is None else bias.detach().to(wide).view(4, -1)
        if spec.input.is_linear:
            matrix = dense_matrix(weights.input, spec.input).detach().to(dtype)
            self.input = matrix.view(1, 4, -1, spec.input_size)
            if is_unit_major(matrix):
                self.input = self.input.transpose(1, 2).contiguous().transpose(1, 2)
        if spec.context.is_linear:
            matrix = (
                dense_matrix(weights.context, spec.context) if spec.context.levels > 1 else weights.context[0]
            )
            by_gate = matrix.detach().to(dtype).view(4, spec.context.groups, -1, matrix.shape[1])
            self.context = by_gate.transpose(0, 1)
            gates = matrix.new_empty(1, 1, 4, spec.hidden_size, dtype=dtype)
            call = RecurrenceCall(gates, self.context, self.bias, None, None, None)
            self.backend = backends.choose("recurrence", call).name
            if not getattr(backends.module(self.backend), "GATE_MAJOR", False):
                self.context = self.context.contiguous()  # copied once, not for every token

        def converted(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(tensor.detach().to(dtype) for tensor in tensors)

        self.weights = LayerWeights(
            converted(weights.input),
            converted(weights.context),
            () if self.bias is None else (self.bias.flatten(),),
            converted(weights.input_kernels),
            converted(weights.context_kernels),
        )

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (T, B, N) and the states (B, M) to the output (T, B, M) and the next states."""
        if self.input is None or self.context is None:
            y, h, c = backends.run("layer", LayerCall(x, self.weights, h, c, None, self.spec))
            return y, h.squeeze(0), c.squeeze(0)
        residual, eager = self.spec.residual, is_eager((x,))
        gates = gate_linear(x, self.input, residual, backend=self.backend, eager=eager)
        return backends.run("recurrence", RecurrenceCall(gates, self.context, self.bias, h, c, None))

    def dense(self) -> tuple[LayerSpec, LayerWeights] | None:
        """The layer with one matrix for its input, for the piece ``token_model``; None if there is none."""
        if self.input is None or self.context is None:
            return None
        context = self.context.transpose(0, 1).reshape(-1, self.context.shape[-1])
        biases = () if self.bias is None else (self.bias.flatten(),)
        hidden = self.spec.hidden_size
        spec = LayerSpec(
            TransformSpec(self.spec.input_size, (hidden,)),
            TransformSpec(hidden, (hidden,), groups=len(self.context)),
            self.spec.residual,
        )
        return spec, LayerWeights((self.input.flatten(0, 2),), (context,), biases)


@torch.no_grad()
def frozen(model: LanguageModel, dtype: torch.dtype) -> LanguageModel:
    """A copy of a model for evaluation in ``dtype``, with as little as possible left to compute from weights.

    Each pyramid that is a linear map becomes one matrix, in the layout that products on its device want, and
    both biases of a layer become one.
    """
    generators = [layer.generator for layer in model.layers if isinstance(layer, PRU)]
    shared = {id(generator): generator for generator in generators if generator is not None}
    result = copy.deepcopy(model, shared).eval().requires_grad_(False).to(dtype)
    for index, layer in enumerate(model.layers):
        if isinstance(layer, PRU):  # from weights that have lost no digits yet
            result.layers[index] = FrozenLayer(layer.specs[0], layer.weights(0), dtype)
    return result


def _run_model(model: LanguageModel, offset: Tensor, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    """Scores (1, V) and state after ``tokens`` (T,)."""
    values, after = model.embedding(tokens[:, None]), []
    for layer, before in zip(model.layers, state, strict=True):
        values, layer_state = _run_layer(layer, values, before)
        after.append(layer_state)
    weight, decoder = model.embedding.weight, model.decoder
    if isinstance(decoder, Softmax):  # its logits will do
        scores = _wide_product(values[-1], weight)
    else:
        scores = decoder.log_probabilities(values[-1], weight)
    return scores.add_(offset), after


def _run_layer(
    layer: nn.Module, values: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Output (T, 1, M) and state (1, M) of one layer, without the checks and copies of its ``forward``."""
    if isinstance(layer, FrozenLayer):
        values, h, c = layer(values, *state)
        return values, (h, c)
    values, (h, c) = layer(values, (state[0][None], state[1][None]))
    return values, (h[0], c[0])


def _wide_product(hidden: Tensor, weight: Tensor) -> Tensor:
    """(1, E) by (V, E) to (1, V), float32 at least: in 16 bits the likeliest words would often tie."""
    if weight.is_cuda and weight.dtype in SIXTEEN_BITS:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return full_precision(F.linear(hidden, weight))


@contextmanager
def _exactly_on(device: torch.device) -> Iterator[None]:
    """The device is the current one, and autocast, which was heeded before, casts nothing."""
    with on_device(device), torch.autocast(device.type, enabled=False):
        yield
