"""Generation, token by token, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torch_pru.ops.spec import LayerSpec, LayerWeights

State = list[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, State], tuple[Tensor, State]]


class TokenModel:
    """A model that reads and finds words one by one, at batch 1."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def read(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """The scores (1, V) and the state after ``token`` (1,)."""
        return self.step(token, state)

    def find(self, words: Tensor, scores: Tensor, state: State) -> tuple[Tensor, State]:
        """Fill ``words`` (n, 1) with the likeliest ones, the first from ``scores`` (1, V).

        Returns:
            The scores and the state after the last of them.
        """
        for word in words:
            torch.argmax(scores, -1, out=word)
            scores, state = self.step(word, state)
        return scores, state


def token_model(
    embedding: Tensor,
    layers: Sequence[tuple[LayerSpec, LayerWeights] | None] | None,
    offset: Tensor,
    step: Step,
) -> TokenModel:
    """A model for generation; the state holds h and c (1, M) of each layer.

    Args:
        embedding: (V, E), also the weight of the decoder.
        layers: structure and weights of each layer, its input transform as one matrix; None for a layer
            without such a matrix, and instead of all layers if the decoder is not a softmax.
        offset: (V,), added to the scores.
        step: computes scores and state from one token in any model; a backend may replace it by kernels.
    """
    return TokenModel(step)
