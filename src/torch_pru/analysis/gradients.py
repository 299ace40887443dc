"""Gradients with respect to the word vectors, without the tied decoder's contribution."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from torch_pru.lm.evaluation.static import eval_mode
from torch_pru.lm.model import LanguageModel


class ForwardPass(NamedTuple):
    """Inputs and outputs of a forward pass, connected by the autograd graph."""

    inputs: Tensor  # (T, B, E) the word vectors, a leaf of the graph
    hidden: Tensor  # (T, B, E) output of the last layer


def read_with_gradients(model: LanguageModel, tokens: Tensor) -> ForwardPass:
    """Run ``model`` without dropout over ``tokens`` (T, B), from the zero state; gradients must be enabled.

    Every position has its own vector, so a word that occurs twice has two gradients.

    Example:
        >>> import torch
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> config = ModelConfig(embedding=8, hidden=(16, 8))
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=100)
        >>> read = read_with_gradients(model, torch.zeros(5, 1, dtype=torch.long))
        >>> torch.autograd.grad(read.hidden.sum(), read.inputs)[0].shape
        torch.Size([5, 1, 8])
    """
    vectors = F.embedding(tokens, model.embedding.weight.detach()).requires_grad_()
    with eval_mode(model, gradients=True):
        state = model.initial_state(tokens.shape[1])
        return ForwardPass(vectors, model.hidden(tokens, state, vectors=vectors).raw)
