"""``PRUModel`` and ``PRUForCausalLM``: `torch_pru.lm.model` with the interface of Transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from torch_pru import PRU
from torch_pru.errors import PRUError
from torch_pru.hf.configuration import PRUConfig
from torch_pru.lm.model import LanguageModel, Masks


class PRUCacheLayer(CacheLayerMixin):
    """The state of one layer: h and c, (B, M) each, in the place of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the state has one size."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, steps: int = 1, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Replace the state by the one after ``steps`` more words."""
        self.keys, self.values, self.device = key_states, value_states, key_states.device
        self.is_initialized = True
        self.cumulative_length += steps
        return key_states, value_states

    def get_seq_length(self) -> int:
        """How many words were read, padding included."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of an attention mask that covers all words."""
        return self.cumulative_length + query_length, 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence of the batch."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.repeat_interleave(repeats, dim=0)
            self.values = self.values.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences of the batch."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[indices], self.values[indices]


class PRUCache(Cache):
    """The state of all layers, which `PRUModel` replaces at every call.

    Example:
        >>> PRUCache(PRUConfig(num_hidden_layers=2)).get_seq_length()
        0
    """

    def __init__(self, config: PRUConfig) -> None:
        super().__init__(layers=[PRUCacheLayer() for _ in config.widths])


class Padding:
    """Which words of a window are padding, and how the others move to the front.

    Args:
        valid: (T, B), False for padding.
    """

    def __init__(self, valid: Tensor) -> None:
        self.lengths = valid.sum(0)  # (B,)
        # Words first, in their order, then padding.
        self.order = torch.sort(valid.logical_not().to(torch.int8), dim=0, stable=True).indices
        self.back = torch.argsort(self.order, dim=0)

    @classmethod
    def of(cls, mask: Tensor, steps: int) -> Padding | None:
        """The padding of the last ``steps`` of an attention mask (B, S); None where there is none."""
        valid = mask[:, -steps:].t().bool()
        return None if bool(valid.all()) else cls(valid)

    def to_front(self, values: Tensor) -> Tensor:
        """(T, B, D) with the words of each column first."""
        return values.gather(0, self.order.unsqueeze(-1).expand_as(values))

    def to_place(self, values: Tensor) -> Tensor:
        """The reverse of `to_front`."""
        return values.gather(0, self.back.unsqueeze(-1).expand_as(values))


class PRULayer(GradientCheckpointingLayer):
    """A recurrent layer that skips padding.

    Args:
        rnn: the layer, which reads (T, B, N).
    """

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(
        self, values: Tensor, h: Tensor, c: Tensor, padding: Padding | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output (B, T, M) and state (B, M) after ``values`` (B, T, N).

        At padding the output is zero and the state stays as it is.
        """
        values, before = values.transpose(0, 1), (h.unsqueeze(0), c.unsqueeze(0))
        if padding is None:
            output, after = self.rnn(values, before)
            return output.transpose(0, 1), after[0][0], after[1][0]
        lengths = padding.lengths
        # A sequence must have a word. One of padding alone is run for one step, which is undone below.
        front = padding.to_front(values)
        packed = pack_padded_sequence(front, lengths.clamp(min=1).cpu(), enforce_sorted=False)
        packed_output, after = self.rnn(packed, before)
        output, _ = pad_packed_sequence(packed_output, total_length=len(values))
        empty = (lengths == 0).unsqueeze(-1)
        output = padding.to_place(output.masked_fill(empty, 0.0)).transpose(0, 1)
        return output, torch.where(empty, h, after[0][0]), torch.where(empty, c, after[1][0])


class PRUPreTrainedModel(PreTrainedModel):
    """What the models share: how they are named, loaded and initialized."""

    config_class = PRUConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["PRULayer"]  # noqa: RUF012
    _is_stateful = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PRU):
            loaded = [each for each in module.parameters() if getattr(each, "_is_hf_initialized", False)]
            values = [each.clone() for each in loaded]
            module.reset_parameters()
            for parameter, value in zip(loaded, values, strict=True):
                parameter.copy_(value)
        elif isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -0.1, 0.1)
        elif isinstance(module, nn.Linear):
            init.uniform_(module.weight, -(module.in_features**-0.5), module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)


class PRUModel(PRUPreTrainedModel):
    """Embedding and recurrent layers.

    Example:
        >>> config = PRUConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2)
        >>> model = PRUModel(config)
        >>> model(torch.zeros(5, 7, dtype=torch.long)).last_hidden_state.shape
        torch.Size([5, 7, 32])
    """

    def __init__(self, config: PRUConfig) -> None:
        super().__init__(config)
        network = LanguageModel(config.model(), config.regularization(), config.vocab_size)
        self.embedding = network.embedding
        self.layers = nn.ModuleList(PRULayer(layer) for layer in network.layers)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The word vectors."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word vectors."""
        self.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: PRUCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...] | BaseModelOutputWithPast:
        """Read words.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), or (B, S) of everything read so far; 0 marks padding, on any side, which
                is skipped: the state stays as it is.
            past_key_values: the state that an earlier call returned. It is updated in place.
            inputs_embeds: (B, T, E) instead of ``input_ids``.
            use_cache: whether to return the state.
            output_hidden_states: whether to return the word vectors and every layer's output.
            return_dict: whether to return an object with names or a tuple.
        """
        config = self.config
        if (input_ids is None) == (inputs_embeds is None):
            raise PRUError("give either input_ids or inputs_embeds")
        use_cache = (config.use_cache and not self.training) if use_cache is None else use_cache
        use_cache = use_cache and not (self.gradient_checkpointing and self.training)
        if use_cache and past_key_values is None:
            past_key_values = PRUCache(config)
        values = self._embed(input_ids, inputs_embeds)
        values = self._dropout(values, config.input_dropout)
        padding = None if attention_mask is None else Padding.of(attention_mask, values.shape[1])
        outputs = [values]
        for number, layer in enumerate(self.layers):
            values, h, c = layer(values, *self._state(past_key_values, number, values), padding)
            if past_key_values is not None and use_cache:
                past_key_values.update(h, c, number, steps=values.shape[1])
            last = number == len(self.layers) - 1
            values = self._dropout(values, config.output_dropout if last else config.hidden_dropout)
            outputs.append(values)
        everything = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        found = BaseModelOutputWithPast(
            last_hidden_state=values,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=tuple(outputs) if everything else None,
        )
        return found if (config.return_dict if return_dict is None else return_dict) else found.to_tuple()

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if input_ids is None:
            assert inputs_embeds is not None
            return inputs_embeds
        values = self.embedding(input_ids)
        if self.training:  # whole words are dropped, wherever they occur
            rate = self.config.embedding_dropout
            values = values * masks_on(values).word_types(input_ids, self.embedding.weight, rate)
        return values

    def _dropout(self, values: Tensor, rate: float) -> Tensor:
        if not self.training:
            return values
        return dropout(values, rate, shared=self.config.variational)

    def _state(self, cache: PRUCache | None, number: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """h and c (B, M) of a layer before a call."""
        if cache is not None and cache.layers[number].is_initialized:
            return cache.layers[number].keys, cache.layers[number].values
        zeros = like.new_zeros(len(like), self.config.widths[number])
        return zeros, zeros


class PRUForCausalLM(PRUPreTrainedModel, GenerationMixin):
    """A language model with a tied softmax, or a mixture of them.

    Example:
        >>> config = PRUConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2)
        >>> PRUForCausalLM(config)(torch.zeros(5, 7, dtype=torch.long)).logits.shape
        torch.Size([5, 7, 100])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: PRUConfig) -> None:
        super().__init__(config)
        self.model = PRUModel(config)
        width = config.embedding_size or config.hidden_size
        self.lm_head = nn.Linear(width, config.vocab_size)
        if config.experts > 1:
            self.prior = nn.Linear(config.hidden_size, config.experts, bias=False)
            self.latent = nn.Linear(config.hidden_size, config.experts * width)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the cache is a `PRUCache`

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: PRUCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> tuple[Any, ...] | CausalLMOutputWithPast:
        """Read words and predict the next ones; see `PRUModel.forward`.

        Args:
            labels: (B, T), the words themselves: they are shifted inside. -100 is ignored.
            logits_to_keep: how many positions to compute logits for, counted from the end; 0 is all of them.
        """
        found = self.model(
            input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self._logits(found.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
        )
        return (
            output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()
        )

    def _logits(self, hidden: Tensor) -> Tensor:
        """(B, T, H) to (B, T, V); of a mixture, the log-probabilities."""
        experts = self.config.experts
        if experts == 1:
            return self.lm_head(hidden)
        latent = torch.tanh(self.latent(hidden))
        if self.training:
            latent = dropout(latent, self.config.latent_dropout, shared=True)
        logits = self.lm_head(latent.unflatten(-1, (experts, -1)))
        prior = F.log_softmax(self.prior(hidden), -1)
        return torch.logsumexp(prior.unsqueeze(-1) + F.log_softmax(logits, -1), -2)


def masks_on(like: Tensor) -> Masks:
    """Dropout masks from PyTorch's own generator of a tensor's device."""
    if like.is_cuda:
        return Masks(torch.cuda.default_generators[like.get_device()])
    return Masks(torch.default_generator)


def dropout(values: Tensor, rate: float, *, shared: bool) -> Tensor:
    """Dropout of (B, T, D); with ``shared`` one mask serves all steps."""
    return masks_on(values).dropout(values.transpose(0, 1), rate, shared=shared).transpose(0, 1)
