"""What a run is made of: four frozen sections of documented settings, and what finetuning changes of them.

A setting's name occurs in one section only, so ``--set epochs=3`` needs no section. The text beside each
setting is what `pru settings` shows.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch_pru.errors import (
    PRUError,
    check_choice,
    check_not_negative,
    check_positive,
    check_probability,
    did_you_mean,
    shown,
)
from torch_pru.lm.corpora import BUILT_IN, CORPORA
from torch_pru.lm.setting import check_encodable, check_types, setting
from torch_pru.pooling import POOLINGS

PRECISIONS = ("float32", "bfloat16", "float16", "float64", "auto")


@dataclass(frozen=True)
class DataConfig:
    """The text."""

    corpus: str = setting(
        BUILT_IN,
        f"{', '.join(CORPORA)}, {BUILT_IN}, a corpus prepared with pru data, or a folder with train.txt, "
        f"valid.txt and test.txt",
    )
    tokenizer: str = setting(
        "auto",
        "how prompts and --text files are split into tokens: auto (as the corpus was), words, cased-words, "
        "characters or spaces. bpe:N (N subwords) or a *.json file of Hugging Face tokenizers splits the "
        "corpus, too",
    )

    def __post_init__(self) -> None:
        check_types(self)
        if not self.corpus:
            raise PRUError(f"corpus='' is not a text; use {', '.join(CORPORA)}, {BUILT_IN} or a folder")
        check_tokenizer(self.tokenizer)


MOST_LAYERS = 1_000

SUBWORDS = re.compile(r"bpe:([1-9]\d{0,6})")
FEWEST_SUBWORDS = 300  # 256 bytes, <eos>, and some that are longer
MOST_SUBWORDS = 9_999_999

TOKENIZER_KINDS = ("auto", "words", "cased-words", "characters", "spaces")


def is_subwords(tokenizer: str) -> bool:
    """Whether a tokenizer's name is that of a byte-level BPE: ``bpe:N``, or a file.

    Example:
        >>> is_subwords("bpe:8000"), is_subwords("my/tokenizer.json"), is_subwords("words")
        (True, True, False)
    """
    return SUBWORDS.fullmatch(tokenizer) is not None or tokenizer.endswith(".json")


def check_tokenizer(tokenizer: str) -> None:
    """Refuse a name that is not that of a tokenizer.

    Example:
        >>> check_tokenizer("bpe")
        Traceback (most recent call last):
        torch_pru.errors.PRUError: tokenizer='bpe' needs a vocabulary size, such as bpe:8000
    """
    name = f"tokenizer={shown(tokenizer)}"
    if found := SUBWORDS.fullmatch(tokenizer):
        if int(found[1]) < FEWEST_SUBWORDS:
            raise PRUError(f"{name} is too small; use at least bpe:{FEWEST_SUBWORDS}")
    elif tokenizer in ("bpe", "bpe:"):
        raise PRUError(f"{name} needs a vocabulary size, such as bpe:8000")
    elif tokenizer.lower().startswith("bpe"):
        raise PRUError(
            f"{name} is not known; for subwords, write bpe: and a number from {FEWEST_SUBWORDS} to "
            f"{MOST_SUBWORDS}, such as bpe:8000"
        )
    elif not is_subwords(tokenizer) and tokenizer not in TOKENIZER_KINDS:
        raise PRUError(
            f"{name} is not known; use {', '.join(map(repr, TOKENIZER_KINDS))}, a number of subwords such as "
            f"'bpe:8000', or the path of a *.json file{did_you_mean(tokenizer, TOKENIZER_KINDS)}"
        )
    check_encodable("tokenizer", tokenizer)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and kind of the network. What only a PRU has is refused for an LSTM."""

    unit: str = setting(
        "pru", "recurrent unit: pru, lstm (nn.LSTM), or fused-lstm (the same unit on the PRU's kernels)"
    )
    embedding: int = setting(400, "E, size of the word vectors, which are also the weights of the decoder")
    hidden: tuple[int, ...] = setting(
        (1150, 1150, 400),
        "size of each layer's output, first layer first; the last is E, because the decoder is tied "
        "(any size with a mixture of softmaxes)",
    )
    levels: int = setting(2, "K, levels of the PRU's pyramidal input transform")
    groups: int = setting(1, "g, groups of the PRU's context transform")
    input_groups: int = setting(1, "groups of the PRU's input transform, or of each pyramid level")
    pooling: str = setting("average", f"sub-sampling between levels: {', '.join(POOLINGS)}")
    level_split: str = setting(
        "halving", "output sizes of the levels: halving (the paper's tables) or equal (its text)"
    )
    pool_window: int | tuple[int, ...] = setting(
        3, "sub-sampling window, or a list with one per level below the first"
    )
    residual: str | bool = setting(
        "auto", "add the input to all gates: auto (if the sizes match), true or false"
    )
    input_transform: str = setting("pyramidal", "transform of the PRU's input: linear, grouped or pyramidal")
    context_transform: str = setting(
        "grouped", "transform of the PRU's context: linear, grouped or pyramidal"
    )
    init: str = setting(
        "authors",
        "initial weights of the PRU: authors (as in the authors' code), orthogonal or lstm (as in nn.LSTM)",
    )
    experts: int = setting(1, "softmaxes in the mixture; 1 is the plain softmax")

    @property
    def kind(self) -> str:
        """``"pru"`` or ``"lstm"``, however it is run."""
        return "pru" if self.unit == "pru" else "lstm"

    @property
    def layers(self) -> int:
        """How many recurrent layers there are."""
        return len(self.hidden)

    def __post_init__(self) -> None:
        check_types(self)
        check_choice("unit", self.unit, ("pru", "lstm", "fused-lstm"))
        for name in ("embedding", "levels", "groups", "input_groups", "experts"):
            check_positive(name, getattr(self, name))
        if not self.hidden:
            raise PRUError("hidden=[] has no layer; give one size per layer, as in hidden=[1400, 1400, 400]")
        if len(self.hidden) > MOST_LAYERS:
            raise PRUError(f"hidden has {len(self.hidden):,} layers; use at most {MOST_LAYERS:,}")
        for layer, size in enumerate(self.hidden):
            check_positive(f"hidden[{layer}]", size)
        if self.experts == 1 and self.hidden[-1] != self.embedding:
            raise PRUError(
                f"hidden={list(self.hidden)} ends in {self.hidden[-1]}, but the decoder is tied to "
                f"embedding={self.embedding}; the last layer must have that size"
            )
        if self.unit != "pru" and (others := pru_settings(self)):  # they would have no effect
            given = ", ".join(f"{name}={shown(value)}" for name, value in others.items())
            raise PRUError(f"{given}: for a PRU only; leave it out, or set unit to 'pru'")


def pru_settings(model: ModelConfig) -> dict[str, Any]:
    """The settings of a model that only a PRU has, where they are not the defaults.

    Example:
        >>> pru_settings(ModelConfig(groups=4))
        {'groups': 4}
    """
    return {
        item.name: getattr(model, item.name)
        for item in dataclasses.fields(model)
        if item.name in PRU_SETTINGS and getattr(model, item.name) != item.default
    }


PRU_SETTINGS = frozenset(item.name for item in dataclasses.fields(ModelConfig)) - {
    "unit",
    "embedding",
    "hidden",
    "experts",
}
"""The settings of a model that only a PRU has."""


@dataclass(frozen=True)
class RegularizationConfig:
    """Regularization, against overfitting. The defaults are AWD-LSTM's for the Penn Treebank."""

    input_dropout: float = setting(0.4, "dropout probability of the embedding's output")
    hidden_dropout: float = setting(0.25, "dropout probability between layers")
    output_dropout: float = setting(0.4, "dropout probability of the last layer's output")
    latent_dropout: float = setting(0.0, "dropout probability inside a mixture of softmaxes")
    embedding_dropout: float = setting(
        0.1, "probability that a word is dropped wherever it occurs in a window"
    )
    weight_drop: float = setting(0.5, "dropout probability of the hidden-to-hidden weights, per window")
    variational: bool = setting(True, "use one dropout mask for all steps of a window; false: one per step")
    activation: float = setting(2.0, "AR: weight of the penalty on squared outputs after dropout")
    temporal: float = setting(
        1.0, "TAR: weight of the penalty on squared changes of the output between steps"
    )
    weight_decay: float = setting(1.2e-6, "L2 weight decay of all weights")

    def __post_init__(self) -> None:
        check_types(self)
        for item in dataclasses.fields(self):
            if "drop" in item.name:
                check_probability(item.name, getattr(self, item.name))
        for name in ("activation", "temporal", "weight_decay"):
            check_not_negative(name, getattr(self, name))


@dataclass(frozen=True)
class TrainingConfig:
    """How the model is trained."""

    batch: int = setting(20, "batch size: columns of text that are read in parallel, over all processes")
    window: int = setting(70, "usual number of steps per window; the length of each window is random")
    rotate_columns: bool = setting(
        False, "every epoch, start each column of text at another random position and wrap around"
    )
    epochs: int = setting(500, "passes over the training text; for finetuning, the largest number of passes")
    minutes: float = setting(0.0, "stop after this many minutes of training; 0: no limit")
    cooldown: float = setting(
        0.0, "final fraction of the training in which the learning rate falls linearly to 0; 0: none"
    )
    early_stop_from: int = setting(
        0,
        "early stopping: from this epoch on, stop after more than trigger_window epochs without improvement; "
        "0: never",
    )
    learning_rate: float = setting(
        30.0, "learning rate of a window of the usual length; it is proportional to the length"
    )
    clip: float = setting(0.25, "gradients are clipped to this norm")
    trigger_window: int = setting(
        5,
        "averaging of the weights starts after an epoch whose validation loss is higher than that of some "
        "epoch more than this many epochs before it; in finetuning, the round ends then; early_stop_from "
        "uses it, too",
    )
    valid_batch: int = setting(10, "batch size (columns of text) in validation after each epoch")
    seed: int = setting(1, "seed of the initial weights, the window lengths and the dropout masks")
    precision: str = setting(
        "auto",
        "compute precision: float32, bfloat16, float16, float64, or auto: bfloat16 on a GPU that supports "
        "it, else float32",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...; auto uses a GPU if there is one")
    graphs: bool = setting(True, "on a GPU, replay each training step as a CUDA graph (not with nn.LSTM)")
    log_steps: int = setting(50, "steps between reports of the loss")
    checkpoint_minutes: float = setting(10.0, "minutes between checkpoints; 0: none")
    checkpoint_steps: int = setting(0, "steps between checkpoints; 0: none")

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("batch", "window", "epochs", "trigger_window", "valid_batch", "log_steps"):
            check_positive(name, getattr(self, name))
        for name in ("minutes", "early_stop_from", "seed", "checkpoint_minutes", "checkpoint_steps"):
            check_not_negative(name, getattr(self, name))
        check_probability("cooldown", self.cooldown, one_allowed=True)
        for name in ("learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise PRUError(f"{name}={getattr(self, name)!r} must be greater than 0")
        if self.window < 5:
            raise PRUError(f"window={self.window} must be at least 5, the shortest window that is drawn")
        check_choice("precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class Config:
    """A whole run: what a recipe file holds once it is read.

    ``finetuning`` holds the settings that the second stage changes, see `second_stage`.
    """

    name: str = setting("unnamed", "of the recipe")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    regularization: RegularizationConfig = field(default_factory=RegularizationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    finetuning: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_encodable("name", self.name)
        if self.name in ("", ".", "..") or set(self.name) & set("/\\\0"):
            raise PRUError(f"name={shown(self.name)} must be usable as the name of a folder, without / or \\")
        if self.model.experts == 1 and self.regularization.latent_dropout:
            raise PRUError(
                f"latent_dropout={self.regularization.latent_dropout} belongs to a mixture of softmaxes; "
                f"experts=1 has none"
            )
        if self.finetuning:
            try:
                second_stage(self)
            except PRUError as error:
                raise PRUError(f"[finetuning] {error}") from error


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "regularization": RegularizationConfig,
    "training": TrainingConfig,
}


@cache
def section_of() -> dict[str, str]:
    """Every setting's name with that of its section."""
    return {item.name: section for section, kind in SECTIONS.items() for item in dataclasses.fields(kind)}


def is_text(key: str) -> bool:
    """Whether a setting is always a string.

    Example:
        >>> is_text("corpus"), is_text("epochs"), is_text("residual")  # the last may be true or false, too
        (True, False, False)
    """
    return typing.get_type_hints(SECTIONS[section_of()[key]])[key] is str


def build_config(name: str, values: Mapping[str, Any], finetuning: Mapping[str, Any] | None = None) -> Config:
    """A Config from settings without their sections; those left out take their defaults.

    Example:
        >>> build_config("mine", {"epochs": 3, "corpus": "ptb"}).training.epochs
        3
    """
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    known = section_of()
    for key, value in values.items():
        if key not in known:
            raise PRUError(f"{shown(key)} is not a setting{did_you_mean(key, known)}")
        sections[known[key]][key] = tuple(value) if isinstance(value, list) else value
    parts = {section: kind(**sections[section]) for section, kind in SECTIONS.items()}
    return Config(name=name, **parts, finetuning=dict(finetuning or {}))


def settings_of(config: Config) -> dict[str, dict[str, Any]]:
    """All settings of a config, by section: what ``build_config`` was given and the defaults."""
    return {section: dataclasses.asdict(getattr(config, section)) for section in SECTIONS}


def flat_settings(config: Config) -> dict[str, Any]:
    """All settings of a config, without their sections."""
    return {key: value for section in settings_of(config).values() for key, value in section.items()}


def second_stage(config: Config, changes: Mapping[str, Any] | None = None) -> Config:
    """The settings of finetuning: those of ``config``, then its ``finetuning``, then ``changes``.

    Example:
        >>> config = Config(finetuning={"hidden_dropout": 0.4})
        >>> second_stage(config, {"epochs": 3}).regularization.hidden_dropout
        0.4
    """
    changes = {**config.finetuning, **(changes or {})}
    for key in changes:
        if section_of().get(key) in ("data", "model"):
            raise PRUError(
                f"{key} cannot be changed in finetuning; only settings of [regularization] and [training] can"
            )
    return build_config(config.name, flat_settings(config) | changes)
