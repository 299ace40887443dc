"""A model whose every layer is one kernel for one token, and whose decoder is one more.

A dozen small kernels a token would spend most of their time starting up. The word that one token's decoder
finds goes to the next token's first layer as a key, on the device; see `torch_pru.ops.cuda.token`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru.lm.evaluation.frozen import FrozenLayer
from torch_pru.lm.model import LanguageModel, State
from torch_pru.lm.softmax import Softmax
from torch_pru.ops.cuda.token import TokenLayer, covers, padded, token_scores

WORD = 0xFFFFFFFF  # the bits of a key that hold the word, inverted


class FusedModel:
    """The weights of a frozen model as the kernels read them.

    Args:
        model: from ``frozen``; ``can_fuse`` has said yes to it.
        offset: (V,) float32, added to the scores.
    """

    def __init__(self, model: LanguageModel, offset: Tensor) -> None:
        self.embedding, self.offset = padded(model.embedding.weight), offset
        self.layers = [
            TokenLayer(layer.input[0], layer.context, layer.bias, layer.spec.residual)
            for layer in model.layers
            if isinstance(layer, FrozenLayer) and layer.input is not None and layer.context is not None
        ]

    def read(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """Scores (1, V) and state after ``token`` (1,)."""
        keys = torch.zeros(2, dtype=torch.int64, device=token.device)
        torch.bitwise_not(token, out=keys[:1])
        return self._step(keys[:1], keys[1:], state)

    def find(self, words: Tensor, scores: Tensor, state: State) -> tuple[Tensor, State]:
        """Fill ``words`` (n, 1) with the likeliest ones from ``scores`` (1, V) on; those after them."""
        keys = torch.zeros(len(words) + 1, dtype=torch.int64, device=words.device)
        torch.bitwise_not(scores.argmax(-1), out=keys[:1])
        for at in range(len(words)):
            scores, state = self._step(keys[at : at + 1], keys[at + 1 : at + 2], state)
        words.copy_((~keys[:-1, None]) & WORD)
        return scores, state

    def _step(self, key: Tensor, best: Tensor, state: State) -> tuple[Tensor, State]:
        """Go on by the word of ``key`` (1,); the key of the likeliest word after it goes to ``best`` (1,)."""
        values = self.embedding
        after: State = []
        for layer, (h, c) in zip(self.layers, state, strict=True):
            values, c = layer(values, None if after else key, h, c)
            after.append((values, c))
        return token_scores(values, self.embedding, self.offset, best), after


def can_fuse(model: LanguageModel) -> bool:
    """Whether the kernels serve a frozen model; elsewhere it runs layer by layer in PyTorch's operations."""
    weight = model.embedding.weight
    return isinstance(model.decoder, Softmax) and all(
        isinstance(layer, FrozenLayer)
        and _is_plain(layer)
        and covers(weight, layer.spec.input_size + layer.spec.hidden_size)
        for layer in model.layers
    )


def _is_plain(layer: FrozenLayer) -> bool:
    """One matrix of the input and even groups of the context."""
    return layer.input is not None and layer.context is not None and layer.context.shape[-1] % 2 == 0
