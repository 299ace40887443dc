"""The settings of a PRU language model, as Transformers keeps them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from torch_pru.errors import PRUError
from torch_pru.lm.config import MOST_LAYERS, ModelConfig, RegularizationConfig


class PRUConfig(PreTrainedConfig):
    """Sizes, kind and dropouts of a PRU language model.

    The settings of the unit and the dropouts are those of ``pru settings``, by the same names. The dropouts
    are 0 by default.

    Args:
        vocab_size: V.
        hidden_size: width of the layers and of the word vectors.
        num_hidden_layers: how many recurrent layers there are.
        layer_sizes: width of each layer, where they differ. It overrides the two above.
        embedding_size: width of the word vectors, where it is not that of the last layer: with a mixture of
            softmaxes (``experts``) only.
        unit: ``"pru"``, or ``"lstm"``.

    Example:
        >>> PRUConfig(vocab_size=100, layer_sizes=[64, 32], groups=2).hidden_size
        32
    """

    model_type: ClassVar[str] = "pru"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 10_000
    hidden_size: int = 400
    num_hidden_layers: int = 3
    layer_sizes: list[int] | None = None
    embedding_size: int | None = None

    unit: str = "pru"
    levels: int = 2
    groups: int = 1
    input_groups: int = 1
    pooling: str = "average"
    level_split: str = "halving"
    pool_window: int | list[int] | tuple[int, ...] = 3
    residual: bool | str = "auto"
    input_transform: str = "pyramidal"
    context_transform: str = "grouped"
    init: str = "authors"
    experts: int = 1

    input_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    embedding_dropout: float = 0.0
    latent_dropout: float = 0.0
    weight_drop: float = 0.0
    variational: bool = True

    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.layer_sizes:
            self.hidden_size, self.num_hidden_layers = self.layer_sizes[-1], len(self.layer_sizes)
        super().__post_init__(**kwargs)

    @property
    def widths(self) -> list[int]:
        """The width of each layer."""
        if self.layer_sizes:
            return list(self.layer_sizes)
        if self.num_hidden_layers > MOST_LAYERS:
            raise PRUError(
                f"num_hidden_layers={self.num_hidden_layers} is too large; use at most {MOST_LAYERS:,}"
            )
        return [self.hidden_size] * self.num_hidden_layers

    def model(self) -> ModelConfig:
        """The settings of the network as the toolkit has them; those that do not go together are refused.

        Example:
            >>> PRUConfig(hidden_size=32, num_hidden_layers=2, levels=3).model().hidden
            (32, 32)
        """
        windows = self.pool_window
        given: dict[str, Any] = {
            item.name: getattr(self, item.name, None) for item in dataclasses.fields(ModelConfig)
        }
        given["unit"] = "fused-lstm" if self.unit == "lstm" else self.unit  # the same function
        given["embedding"] = self.embedding_size or self.hidden_size
        given["hidden"] = tuple(self.widths)
        given["pool_window"] = windows if isinstance(windows, int) else tuple(windows)
        return ModelConfig(**given)

    def regularization(self) -> RegularizationConfig:
        """The dropouts as the toolkit has them; penalties on the activations are not part of a model here."""
        names = {item.name for item in dataclasses.fields(RegularizationConfig)}
        given = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return RegularizationConfig(**{**given, "activation": 0.0, "temporal": 0.0})

    @classmethod
    def of(
        cls, model: ModelConfig, regularization: RegularizationConfig, vocab_size: int, **others: Any
    ) -> PRUConfig:
        """The configuration of a model of the toolkit.

        Example:
            >>> model = ModelConfig(embedding=32, hidden=(64, 32), groups=2)
            >>> PRUConfig.of(model, RegularizationConfig(), 100).model() == model
            True
        """
        names = {item.name for item in dataclasses.fields(cls)}
        settings = dataclasses.asdict(model) | dataclasses.asdict(regularization)
        given = {name: value for name, value in settings.items() if name in names}
        given |= {"unit": model.kind, "embedding_size": model.embedding, "layer_sizes": list(model.hidden)}
        return cls(vocab_size=vocab_size, **given, **others)
