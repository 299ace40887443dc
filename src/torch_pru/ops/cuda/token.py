"""One token through a model with one kernel per layer and one for the decoder, at batch 1 and in 16 bits.

A dozen small kernels per token would spend most of their time starting up. A *key* is a word and its score in
one int64, such that the largest key is the best word's: the decoder of one token leaves the key that the
first layer of the next one reads, on the device. ``~word`` is a key of any word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pru.ops.folding import aligned
from torch_pru.ops.spec import SIXTEEN_BITS, LayerSpec, LayerWeights

from .launch import launch_on, unserved
from .plan import Launch, ceil_div

State = list[tuple[Tensor, Tensor]]
Layers = Sequence[tuple[LayerSpec, LayerWeights] | None]

UNITS = 2  # of a block, a warp for each gate; the kernels need groups of an even number of units
WARPS, WORDS = 8, 2  # of a block of the decoder, and rows of each warp
LARGEST_ROW = 16384  # elements that shared memory holds
WORD = 0xFFFFFFFF  # the bits of a key that hold the word, inverted


def token_model(embedding: Tensor, layers: Layers | None, offset: Tensor, step: Any) -> TokenModel:
    """As :func:`torch_pru.ops.reference.token_model`; the kernels replace ``step``."""
    return TokenModel(embedding, [layer for layer in layers or () if layer is not None], offset)


def token_model_reason(embedding: Tensor, layers: Layers | None, offset: Tensor, step: Any) -> str | None:
    if layers is None or any(layer is None for layer in layers):
        return "the model does not consist of PRU layers with linear transforms and a softmax"
    if embedding.dtype not in SIXTEEN_BITS:
        return f"weights of {embedding.dtype}: the kernels take 16 bits"
    for spec, _ in filter(None, layers):
        if spec.hidden_size // spec.groups % 2:
            return f"groups of {spec.hidden_size // spec.groups} units: the kernels need an even number"
        if spec.input_size + spec.hidden_size > LARGEST_ROW:
            return f"rows of {spec.input_size + spec.hidden_size} weights do not fit shared memory"
    return unserved(embedding.device.index)


class TokenModel:
    """The weights of a model as the kernels read them."""

    def __init__(
        self, embedding: Tensor, layers: Sequence[tuple[LayerSpec, LayerWeights]], offset: Tensor
    ) -> None:
        self.embedding, self.offset = padded(embedding), offset
        self.layers = []
        for spec, weights in layers:
            inputs = weights.input[0].view(4, spec.hidden_size, -1)
            by_gate = weights.context[0].view(4, spec.groups, -1, weights.context[0].shape[1])
            bias = weights.bias
            bias = None if bias is None else bias.view(4, -1)
            self.layers.append(TokenLayer(inputs, by_gate.transpose(0, 1), bias, spec.residual))

    def read(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.zeros(2, dtype=torch.int64, device=token.device)
        torch.bitwise_not(token, out=keys[:1])
        return self._step(keys[:1], keys[1:], state)

    def find(self, words: Tensor, scores: Tensor, state: State) -> tuple[Tensor, State]:
        keys = torch.zeros(len(words) + 1, dtype=torch.int64, device=words.device)
        torch.bitwise_not(scores.argmax(-1), out=keys[:1])
        for at in range(len(words)):
            scores, state = self._step(keys[at : at + 1], keys[at + 1 : at + 2], state)
        words.copy_((~keys[:-1, None]) & WORD)
        return scores, state

    def _step(self, key: Tensor, best: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the word of ``key`` (1,); write the key of the likeliest word after it to ``best`` (1,)."""
        values = self.embedding
        after: State = []
        for layer, (h, c) in zip(self.layers, state, strict=True):
            values, c = layer(values, None if after else key, h, c)
            after.append((values, c))
        return token_scores(values, self.embedding, self.offset, best), after


class TokenLayer:
    """A layer's weights as its kernel reads them.

    Args:
        inputs: (4, M, N), 16 bits, of the input; any strides.
        context: (G, 4, D, D), of the context.
        bias: (4, M) float32 or None.
        residual: whether the input is added to every gate; then N = M.
    """

    def __init__(self, inputs: Tensor, context: Tensor, bias: Tensor | None, residual: bool) -> None:
        size = context.shape[-1]
        by_unit = (inputs.transpose(0, 1), context.transpose(1, 2).reshape(-1, 4, size))
        self.weight = torch.cat([padded(part) for part in by_unit], dim=-1).contiguous()
        self.bias = None if bias is None else bias.float().contiguous()
        bf16 = self.weight.dtype == torch.bfloat16
        self.launch = layer_launch(inputs.shape[-1], size, inputs.shape[1], residual, bf16)

    def __call__(self, x: Tensor, key: Tensor | None, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The state after one step.

        Args:
            x: (1, N) the input, or with ``key`` (V, padded N), of which the key's word names the row.
            key: (1,) int64 or None.
            h, c: (1, M) the state before, 16 bits and float32.
        """
        hn, cn = torch.empty_like(h), torch.empty_like(c)
        tensors = (self.weight, self.bias, x, key, h, c, hn, cn)
        launch_on(self.launch, h.device, tensors, (h.shape[1],))
        return hn, cn


def token_scores(h: Tensor, weight: Tensor, offset: Tensor, key: Tensor) -> Tensor:
    """Scores (1, V) = W·h + offset, float32, and the best word's in ``key``.

    Args:
        h: (1, E), 16 bits.
        weight: (V, padded E), as ``padded`` gives it.
        offset: (V,) float32.
        key: (1,) int64, zero beforehand.
    """
    words = len(weight)
    scores = torch.empty(1, words, device=h.device, dtype=torch.float32)
    launch = scores_launch(h.shape[1], words, weight.dtype == torch.bfloat16)
    launch_on(launch, h.device, (weight, offset, h, scores, key), (words,))
    return scores


def padded(rows: Tensor) -> Tensor:
    """(…, n) with zeros up to the next multiple of 8, contiguous: rows then start at 16 bytes."""
    return F.pad(rows, (0, aligned(rows.shape[-1]) - rows.shape[-1])).contiguous()


def layer_launch(inputs: int, size: int, width: int, residual: bool, bf16: bool) -> Launch:
    """A warp for each gate of each unit."""
    constants = (
        ("N", inputs),
        ("D", size),
        ("UNITS", UNITS),
        ("RESIDUAL", int(residual)),
        ("BF16", int(bf16)),
    )
    return Launch("token_layer", constants, (width // UNITS, 1), 32 * 4 * UNITS)


def scores_launch(inputs: int, words: int, bf16: bool) -> Launch:
    """A warp for every few words."""
    constants = (("N", inputs), ("WARPS", WARPS), ("WORDS", WORDS), ("BF16", int(bf16)))
    return Launch("token_scores", constants, (ceil_div(words, WARPS * WORDS), 1), 32 * WARPS)
