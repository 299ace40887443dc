"""How many dimensions of the word vectors have a large gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru.analysis.gradients import read_with_gradients
from torch_pru.errors import PRUError
from torch_pru.lm.model import LanguageModel

SHARE = 0.1  # an entry counts as covered above this share of the model's largest gradient
THRESHOLDS = tuple(round(10 ** (step / 20 - 3), 6) for step in range(61))  # 0.001 to 1; SHARE is one of them
LENGTH = 70  # the usual window of training


@dataclass(frozen=True)
class Coverage:
    """Gradients of a loss with respect to the word vectors of a text.

    Attributes:
        gradient: (T, E) gradient of the mean loss, rounded to five digits.
        largest: the largest absolute entry.
        share: share of entries with an absolute value above a tenth of ``largest``.
        thresholds: fractions of ``largest``, from 0.001 to 1.
        shares: share of entries above each threshold.

    Example:
        >>> Coverage([[1.0, 0.0]], 1.0, 0.5, [0.1, 1.0], [0.5, 0.0]).share
        0.5
    """

    gradient: list[list[float]]
    largest: float
    share: float
    thresholds: list[float]
    shares: list[float]


def gradient_coverage(model: LanguageModel, ids: Tensor, *, length: int = LENGTH) -> Coverage:
    """Gradient of the mean loss with respect to word vectors, with the model's most likely words as labels.

    Args:
        model: the language model.
        ids: (N,) a text; its first ``length`` words are read from the zero state.
        length: number of words.

    Example:
        >>> found = gradient_coverage(run.model(), corpus.test)             # doctest: +SKIP
        >>> f"{found.share:.0%}"                                            # doctest: +SKIP
        '12%'
    """
    gradient = input_gradient(model, ids[:length])
    magnitude = gradient.abs()
    largest = magnitude.max()
    shares = [(magnitude > part * largest).double().mean().item() for part in THRESHOLDS]
    return Coverage(
        gradient=[[float(f"{entry:.5g}") for entry in row] for row in gradient.tolist()],
        largest=largest.item(),
        share=shares[THRESHOLDS.index(SHARE)],
        thresholds=list(THRESHOLDS),
        shares=shares,
    )


@torch.enable_grad()  # also if the caller has disabled gradients
def input_gradient(model: LanguageModel, ids: Tensor) -> Tensor:
    """Gradient (T, E) of the mean loss of a text (T,), with the most likely word of each step as its label.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> config = ModelConfig(embedding=8, hidden=(16, 8))
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=100)
        >>> input_gradient(model, torch.arange(10)).shape
        torch.Size([10, 8])
    """
    if ids.dim() != 1 or not len(ids):
        raise PRUError(f"ids has shape {tuple(ids.shape)}; expected (T,) with at least one token")
    read = read_with_gradients(model, ids.to(model.embedding.weight.device, torch.int64)[:, None])
    log_p = model.log_probabilities(read.hidden[:, 0])  # (T, V)
    loss = -log_p.max(-1).values.mean()
    return torch.autograd.grad(loss, read.inputs)[0][:, 0].cpu()
