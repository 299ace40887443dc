"""Decoders: word probabilities from the last layer's output, with the embedding as the weight matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_pru.lm.dropout import Masks
from torch_pru.ops import backends


def full_precision(values: Tensor) -> Tensor:
    """16-bit values as float32: losses are never summed in 16 bits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


class Softmax(nn.Module):
    """log p = log_softmax(W h + b), where W is the embedding (V, E), which the caller passes; b starts at 0.

    Example:
        >>> softmax, embedding = Softmax(10_000), torch.randn(10_000, 400)
        >>> softmax.log_probabilities(torch.randn(70, 20, 400), embedding).shape
        torch.Size([70, 20, 10000])
    """

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.experts = 1

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(..., E) and (V, E) to (..., V)."""
        return full_precision(F.linear(hidden, weight, self.bias))

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(..., E) and (V, E) to (..., V)."""
        return F.log_softmax(self.logits(hidden, weight), -1)

    def nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, masks: Masks | None = None) -> Tensor:
        """Negative log-likelihood of ``targets`` (...) given ``hidden`` (..., E)."""
        rows = hidden.flatten(0, -2)
        losses = backends.run("cross_entropy", rows, weight, self.bias, targets.flatten())
        return losses.view_as(targets)


class MixtureOfSoftmaxes(nn.Module):
    """p = sum_k prior_k softmax(W tanh(L_k h) + b) (Yang et al.): a decoder of higher rank than E.

    Args:
        hidden_size: H, size of the last layer's output h.
        embedding_size: E, size of each expert's vector tanh(L_k h).
        experts: number of softmaxes in the mixture.
        vocabulary_size: V.
        latent_dropout: dropout rate of the experts' vectors; one mask (1, B, experts * E) per window.

    Example:
        >>> mixture, embedding = MixtureOfSoftmaxes(620, 280, 15, 1000), torch.randn(1000, 280)
        >>> probabilities = mixture.log_probabilities(torch.randn(7, 2, 620), embedding).exp()
        >>> probabilities.sum(-1).allclose(torch.ones(7, 2))
        True
    """

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        experts: int,
        vocabulary_size: int,
        latent_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.prior = nn.Linear(hidden_size, experts, bias=False)
        self.latent = nn.Linear(hidden_size, experts * embedding_size)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.experts = experts
        self.latent_dropout = latent_dropout

    def _parts(self, hidden: Tensor, weight: Tensor, masks: Masks | None) -> tuple[Tensor, Tensor]:
        """log prior (..., experts) and logits (..., experts, V)."""
        latent = torch.tanh(self.latent(hidden))
        if masks is not None:
            latent = masks.dropout(latent, self.latent_dropout, shared=True)
        latent = latent.unflatten(-1, (self.experts, weight.shape[1]))
        logits = full_precision(F.linear(latent, weight, self.bias))
        return F.log_softmax(full_precision(self.prior(hidden)), -1), logits

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(..., H) and (V, E) to (..., V)."""
        prior, logits = self._parts(hidden, weight, None)
        return torch.logsumexp(prior.unsqueeze(-1) + F.log_softmax(logits, -1), -2)

    def nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, masks: Masks | None = None) -> Tensor:
        """Negative log-likelihood of ``targets`` (...) given ``hidden`` (..., H)."""
        prior, logits = self._parts(hidden, weight, masks)
        index = targets[..., None, None].expand(*targets.shape, self.experts, 1)
        chosen = logits.gather(-1, index).squeeze(-1) - logits.logsumexp(-1)  # (..., experts)
        return -torch.logsumexp(prior + chosen, -1)
