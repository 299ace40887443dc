"""How many dimensions of the word vectors a loss reaches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru.analysis.gradients import read_with_gradients
from torch_pru.errors import PRUError
from torch_pru.lm.model import LanguageModel

SHARE = 0.1  # of a model's largest gradient, above which an entry counts as covered
THRESHOLDS = tuple(round(10 ** (step / 20 - 3), 6) for step in range(61))  # 0.001 to 1; SHARE is one of them
LENGTH = 70  # one usual window of training


@dataclass(frozen=True)
class Coverage:
    """Gradients at the input over a text.

    Attributes:
        gradient: (T, E) of the mean loss, five digits of each entry.
        largest: the largest absolute entry.
        share: of the entries whose absolute value is above a tenth of ``largest``.
        thresholds: parts of ``largest``, from 0.001 to 1.
        shares: of the entries above each of them.

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
    """Gradient of the mean loss at the word vectors of a text, the model's own first guesses as labels.

    Args:
        model: the language model.
        ids: (N,) a text, of which the first ``length`` words are read from the zero state.
        length: T.

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


@torch.enable_grad()  # also where the caller has switched gradients off
def input_gradient(model: LanguageModel, ids: Tensor) -> Tensor:
    """Gradient (T, E) of the mean loss of a text (T,), with the likeliest word of each step as its label.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularisationConfig
        >>> config = ModelConfig(embedding=8, hidden=(16, 8))
        >>> model = LanguageModel(config, RegularisationConfig(), vocabulary_size=100)
        >>> input_gradient(model, torch.arange(10)).shape
        torch.Size([10, 8])
    """
    if ids.dim() != 1 or not len(ids):
        raise PRUError(f"ids has shape {tuple(ids.shape)}; give a text as one row of at least one id, (T,)")
    read = read_with_gradients(model, ids.to(model.embedding.weight.device, torch.int64)[:, None])
    log_p = model.log_probabilities(read.hidden[:, 0])  # (T, V)
    loss = -log_p.max(-1).values.mean()
    return torch.autograd.grad(loss, read.inputs)[0][:, 0].cpu()
