"""A model whose every layer is one kernel for one token, and whose decoder is one more.

A dozen small kernels a token would spend most of their time starting up. The word that one token's decoder
finds goes to the next token's first layer as a key, on the device; see `torch_pru.ops.cuda.token`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_pru import PRU, GroupedLinear
from torch_pru.cell import PRUCell
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
            TokenLayer(
                cell.input_transform.matrices()[0].weight[0],
                cell.context_transform.matrices()[0].weight,
                cell.context_transform.dense_bias(),
                cell.residual,
            )
            for cell in cells_of(model)
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
    if not (isinstance(model.decoder, Softmax) and all(isinstance(layer, PRU) for layer in model.layers)):
        return False
    weight, cells = model.embedding.weight, cells_of(model)
    return all(_is_plain(cell) and covers(weight, cell.input_size + cell.hidden_size) for cell in cells)


def _is_plain(cell: PRUCell) -> bool:
    """One matrix of the input and even groups of the context."""
    input_transform, context = cell.input_transform, cell.context_transform
    if not (isinstance(input_transform, GroupedLinear) and isinstance(context, GroupedLinear)):
        return False
    return input_transform.groups == 1 and context.weight.shape[-1] % 2 == 0


def cells_of(model: LanguageModel) -> list[PRUCell]:
    """The cells of all layers, the first layer's first."""
    return [module for module in model.modules() if isinstance(module, PRUCell)]
