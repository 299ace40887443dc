"""The language model: tied embedding, recurrent layers, decoder (AWD-LSTM's network with PRU or LSTM layers).

tokens (T, B) -> embedding (T, B, E) -> layers (T, B, M) ... (T, B, E) -> decoder -> loss (T, B)

In training, `Masks` draws all dropout masks. A decoder has the embedding as its weight matrix.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_pru import PRU
from torch_pru.errors import PRUError, renaming_arguments
from torch_pru.lm.config import Config, ModelConfig, RegularizationConfig
from torch_pru.lm.device import weight_dtype
from torch_pru.ops import backends
from torch_pru.ops.dropping import draw_mask
from torch_pru.ops.reference.training import full_precision

State = list[tuple[Tensor, Tensor]]
"""h and c of each layer, each (1, B, M of the layer)."""


def flat(state: State) -> list[Tensor]:
    """h and c of all layers as one list."""
    return [tensor for pair in state for tensor in pair]


class Hidden(NamedTuple):
    """The output of the layers for a window."""

    raw: Tensor  # (T, B, E) output of the last layer
    dropped: Tensor  # (T, B, E) the same after output dropout; equal to ``raw`` in eval() mode
    state: State  # after the last step; detach it before the next window


class Masks:
    """Draws masks for the *global* batch and returns the columns of this process.

    All processes have a generator in the same state and draw the same masks, so that a run uses the same
    masks with any number of processes.

    Args:
        generator: on the device of the model.
        batch: columns of the global batch; None for a single process.
        first: the first column that belongs to this process.

    Example:
        >>> masks = Masks(torch.Generator().manual_seed(1))
        >>> kept = masks.dropout(torch.ones(70, 20, 400), 0.5, shared=True)
        >>> bool((kept[0] == kept[69]).all()), sorted(set(kept.flatten().tolist()))
        (True, [0.0, 2.0])
    """

    def __init__(self, generator: torch.Generator, batch: int | None = None, first: int = 0) -> None:
        self.generator = generator
        self.batch = batch
        self.first = first

    def dropout(self, values: Tensor, probability: float, *, shared: bool) -> Tensor:
        """Drop elements of ``values`` (T, B, D) and scale the rest by 1/(1-p).

        With ``shared`` (variational dropout) one mask (1, B, D) is used for all steps of the window, else
        each step has its own.
        """
        if probability == 0:
            return values
        steps, columns, size = values.shape
        shape = (1 if shared else steps, self.batch or columns, size)
        mask = draw_mask(shape, 1 - probability, values.device, self.generator)
        mask = mask[:, self.first : self.first + columns]
        return backends.run("drop", values, mask, 1 - probability, values.dtype)

    def word_types(self, tokens: Tensor, weight: Tensor, probability: float) -> Tensor | float:
        """The factor of each token's embedding, 0 or 1/(1-p), which is the same wherever the word occurs.

        Args:
            tokens: (T, B).
            weight: (V, E), the embedding, of which whole rows are dropped.

        Returns:
            (T, B, 1), or 1.0 if nothing is dropped.
        """
        if probability == 0:
            return 1.0
        keep = 1 - probability
        mask = weight.new_empty(len(weight), 1).bernoulli_(keep, generator=self.generator)
        return mask.div_(keep)[tokens]

    def weights(self, weight: Tensor, probability: float) -> Tensor:
        """Drop elements of a weight and scale the rest by 1/(1-p); one mask for all columns of the batch."""
        if probability == 0:
            return weight
        mask = draw_mask(weight.shape, 1 - probability, weight.device, self.generator)
        return backends.run("drop", weight, mask, 1 - probability, weight.dtype)

    def state_dict(self) -> dict[str, Any]:
        """The state of the generator, and the type of its device."""
        return {"device": self.generator.device.type, "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned; warns and does nothing if it does not fit."""
        device = self.generator.device.type
        if state_dict["generator"] is None:
            warnings.warn(
                "the run was saved by an earlier version, with another layout of the weights: dropout masks "
                "are drawn anew",
                stacklevel=2,
            )
        elif state_dict["device"] == device:
            self.generator.set_state(state_dict["generator"])
        else:
            warnings.warn(
                f"resuming on {device}: the random state of {state_dict['device']} cannot be restored there, "
                f"dropout masks are reseeded",
                stacklevel=2,
            )


class Softmax(nn.Module):
    """log p = log_softmax(W h + b), where W is the embedding (V, E) that the caller passes; b starts at 0."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        self.experts = 1

    def log_probabilities(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """(..., E) and (V, E) to (..., V)."""
        return F.log_softmax(full_precision(F.linear(hidden, weight, self.bias)), -1)

    def nll(self, hidden: Tensor, targets: Tensor, weight: Tensor, masks: Masks | None = None) -> Tensor:
        """Negative log-likelihood of ``targets`` (...) given ``hidden`` (..., E)."""
        rows = hidden.flatten(0, -2)
        return backends.run("cross_entropy", rows, weight, self.bias, targets.flatten()).view_as(targets)


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


class LanguageModel(nn.Module):
    """Predicts the next word.

    Args:
        config: kind and sizes of the network.
        regularization: the dropout rates, used in ``train()`` mode only.
        vocabulary_size: V.

    Example:
        >>> config = ModelConfig(unit="lstm", embedding=8, hidden=(16, 8))
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=100).eval()
        >>> tokens = torch.zeros(70, 20, dtype=torch.long)
        >>> hidden = model.hidden(tokens, model.initial_state(20))
        >>> model.nll(hidden.raw, tokens).shape
        torch.Size([70, 20])
    """

    def __init__(
        self, config: ModelConfig, regularization: RegularizationConfig, vocabulary_size: int
    ) -> None:
        super().__init__()
        self.config = config
        self.regularization = regularization
        self.embedding = nn.Embedding(vocabulary_size, config.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)  # as in AWD-LSTM
        self.layers = nn.ModuleList(self._layer(number) for number in range(config.layers))
        self.decoder: Softmax | MixtureOfSoftmaxes
        if config.experts == 1:
            self.decoder = Softmax(vocabulary_size)
        else:
            self.decoder = MixtureOfSoftmaxes(
                config.hidden[-1],
                config.embedding,
                config.experts,
                vocabulary_size,
                regularization.latent_dropout,
            )

    def _layer(self, number: int) -> nn.Module:
        config = self.config
        input_size, hidden_size = (config.embedding, *config.hidden)[number : number + 2]
        if config.unit == "lstm":
            return nn.LSTM(input_size, hidden_size)
        drop = self.regularization.weight_drop
        if config.unit == "fused-lstm":  # one level, one group, no residual: an LSTM
            sizes = (input_size, hidden_size)
            return PRU(*sizes, levels=1, groups=1, residual=False, init="lstm", weight_drop=drop)
        names = ["input_groups", "residual", "input_transform", "context_transform", "init"]
        kinds = (config.input_transform, config.context_transform)
        if "grouped" in kinds:
            names += ["groups"]
        if "pyramidal" in kinds:
            names += ["levels"]
            names += ["pooling", "level_split", "pool_window"] if config.levels > 1 else []
        options = {name: getattr(config, name) for name in names}  # a PRU refuses those it does not use
        size = f"a layer {number} size" if number else "an embedding size"
        units = rf"the \1 units of layer {number + 1}"
        words = {r"hidden_size=(\d+)": units, r"input_size=(\d+)": rf"{size} of \1", "input_size": size}
        with renaming_arguments(**words):
            return PRU(input_size, hidden_size, weight_drop=drop, **options)

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.embedding.num_embeddings

    @property
    def logits_per_token(self) -> int:
        """The number of logits that the decoder computes per token."""
        return self.vocabulary_size * self.decoder.experts

    def initial_state(self, batch: int) -> State:
        """Zeros for every layer: h and c of shape (1, batch, M)."""

        def zeros(size: int) -> Tensor:
            return self.embedding.weight.new_zeros(1, batch, size)

        return [(zeros(size), zeros(size)) for size in self.config.hidden]

    def hidden(
        self, tokens: Tensor, state: State, masks: Masks | None = None, vectors: Tensor | None = None
    ) -> Hidden:
        """Run the layers over a window.

        Args:
            tokens: (T, B).
            state: after the previous window, or ``initial_state``.
            masks: draws the dropout masks; required in ``train()`` mode, ignored in ``eval()`` mode.
            vectors: (T, B, E), the embeddings of ``tokens``, if the caller has looked them up already.
        """
        rates = self.regularization
        if not self.training:
            masks = None
        elif masks is None:
            raise PRUError("masks=None: a model in train() mode needs a Masks object for its dropout")
        weight = self.embedding.weight
        values = F.embedding(tokens, weight) if vectors is None else vectors
        if masks is not None:
            # On the input side only: the tied decoder uses the whole embedding.
            values = values * masks.word_types(tokens, weight, rates.embedding_dropout)
            values = masks.dropout(values, rates.input_dropout, shared=rates.variational)
        raw, after = values, []
        for number, layer in enumerate(self.layers, start=1):
            raw, layer_state = self._run_layer(layer, values, state[number - 1], masks)
            after.append(layer_state)
            values = raw
            if masks is not None:
                last = number == len(self.layers)
                rate = rates.output_dropout if last else rates.hidden_dropout
                values = masks.dropout(raw, rate, shared=rates.variational)
        return Hidden(raw, values, after)

    def _run_layer(
        self, layer: nn.Module, values: Tensor, state: tuple[Tensor, Tensor], masks: Masks | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run one layer, with weight drop. The state keeps its dtype under autocast."""
        h, c = state
        drop = self.regularization.weight_drop
        if isinstance(layer, PRU):  # which drops its own weights
            layer.generator = None if masks is None else masks.generator
            raw, (h, c) = layer(values, (h, c))
        else:
            arguments = values, (h.to(values.dtype), c.to(values.dtype))
            if masks is None or drop == 0:
                raw, (h, c) = layer(*arguments)
            else:
                # A masked copy for this call; the gradient flows back to the parameter.
                name = "weight_hh_l0"
                weights = {name: masks.weights(layer.get_parameter(name), drop)}
                raw, (h, c) = torch.func.functional_call(layer, weights, arguments)
        return raw, (h.to(state[0].dtype), c.to(state[1].dtype))

    def nll(self, hidden: Tensor, targets: Tensor, masks: Masks | None = None) -> Tensor:
        """Negative log-likelihood of each target, in float32 or float64.

        Args:
            hidden: (..., E), ``raw`` for evaluation, ``dropped`` for training.
            targets: (...), the next words.
            masks: draws the latent mask of a mixture of softmaxes; ``hidden`` must then be (T, B, E).

        Returns:
            The same shape as ``targets``.
        """
        return self.decoder.nll(hidden, targets, self.embedding.weight, masks if self.training else None)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, (..., V), given ``hidden`` (..., E)."""
        return self.decoder.log_probabilities(hidden, self.embedding.weight)


def build_model(config: Config, vocabulary_size: int, device: torch.device) -> LanguageModel:
    """A model with the initial weights of the seed, which are the same on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.training.seed)  # torch.manual_seed also seeds the GPUs
        model = LanguageModel(config.model, config.regularization, vocabulary_size)
    return model.to(device=device, dtype=weight_dtype(config.training.precision))


def skeleton(
    config: ModelConfig, regularization: RegularizationConfig, vocabulary_size: int = 1
) -> LanguageModel:
    """A model on the meta device, to count its parameters or to check settings without allocating memory."""
    with torch.device("meta"):
        return LanguageModel(config, regularization, vocabulary_size)


@dataclass(frozen=True)
class ParameterCounts:
    """Number of parameters by part; a tied softmax adds only its bias to the embedding."""

    embedding: int
    recurrent: int
    decoder: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.recurrent + self.decoder


def parameter_counts(model: LanguageModel) -> ParameterCounts:
    """The number of parameters in each part of a model.

    Example:
        >>> config = ModelConfig(unit="lstm", embedding=400, hidden=(1000, 1000, 400))
        >>> counts = parameter_counts(LanguageModel(config, RegularizationConfig(), 10_000))
        >>> counts.embedding, counts.recurrent, counts.total
        (4000000, 15859200, 19869200)
    """

    def count(part: nn.Module) -> int:
        return sum(parameter.numel() for parameter in part.parameters())

    return ParameterCounts(count(model.embedding), count(model.layers), count(model.decoder))
