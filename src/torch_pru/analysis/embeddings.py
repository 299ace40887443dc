"""How much the vectors of words of one part of speech vary, at every level of the pyramid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_pru import PRU, pooling
from torch_pru.errors import PRUError
from torch_pru.lm.data.vocabulary import Vocabulary
from torch_pru.lm.model import LanguageModel

DRAWS = 10  # the control is averaged over these, because some categories have few words


@dataclass(frozen=True)
class Variance:
    """Variance of a group of vectors: their mean squared distance to their mean.

    Attributes:
        total: summed over the dimensions.
        per_dimension: ``total`` divided by the number of dimensions, to compare levels of different sizes.
        control: ``total`` of random vectors with the same scale in each dimension.
        control_per_dimension: ``control`` divided by the number of dimensions.
    """

    total: float
    per_dimension: float
    control: float
    control_per_dimension: float


@dataclass(frozen=True)
class Level:
    """The variances at one level of the pyramid; level 1 is the embedding itself.

    Attributes:
        level: number of the level, from 1.
        dimensions: number of dimensions at this level.
        variances: by category.
    """

    level: int
    dimensions: int
    variances: dict[str, Variance]


@dataclass(frozen=True)
class EmbeddingVariance:
    """The result of `embedding_variance`.

    Attributes:
        words: number of word types in each category.
        pyramid: whether the model has levels; an LSTM has only its embedding.
        levels: one entry per level.
    """

    words: dict[str, int]
    pyramid: bool
    levels: list[Level]


def embedding_variance(
    model: LanguageModel, vocabulary: Vocabulary, tags: Mapping[str, str], *, seed: int = 1
) -> EmbeddingVariance:
    """Variance of word vectors by category, beside that of random vectors.

    Part of the low variance of the upper levels is arithmetic: a level has fewer dimensions, and each is a
    mean. The control shows how much: normal vectors with the words' mean and standard deviation in each
    dimension, sub-sampled in the same way.

    Args:
        model: its embedding and the pyramid of its first layer are measured.
        vocabulary: of the model.
        tags: category of each word, as from `majority_tags`; categories with a single word are left out.
        seed: of the control.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> config = ModelConfig(embedding=8, hidden=(16, 8), levels=2)
        >>> model = LanguageModel(config, RegularizationConfig(), vocabulary_size=3)
        >>> tags = {"man": "NOUN", "woman": "NOUN", "sang": "VERB"}
        >>> found = embedding_variance(model, Vocabulary(tags), tags)
        >>> [level.dimensions for level in found.levels], found.words
        ([8, 4], {'NOUN': 2})
    """
    counts = Counter(tags.values())
    kept = {word: tag for word, tag in tags.items() if counts[tag] > 1}
    if not kept:
        raise PRUError("tags has no category with two or more words, so there is no variance to measure")
    weight = model.embedding.weight.detach()
    vectors = weight[vocabulary.encode(kept).to(weight.device)].double()  # (words, E)
    generator = torch.Generator().manual_seed(seed)
    random = [vectors.mean(0) + vectors.std(0) * _normal_like(vectors, generator) for _ in range(DRAWS)]
    groups = _rows_by_category(kept)
    controls = [[_variances(view, groups) for view in pyramid(model, draw)] for draw in random]
    levels = []
    for number, view in enumerate(pyramid(model, vectors)):
        size, found = view.shape[1], _variances(view, groups)
        control = {tag: sum(draw[number][tag] for draw in controls) / DRAWS for tag in groups}
        variances = {
            tag: Variance(found[tag], found[tag] / size, control[tag], control[tag] / size) for tag in groups
        }
        levels.append(Level(number + 1, size, variances))
    return EmbeddingVariance({tag: len(rows) for tag, rows in groups.items()}, len(levels) > 1, levels)


@torch.no_grad()
def pyramid(model: LanguageModel, vectors: Tensor) -> list[Tensor]:
    """The levels of word vectors (n, E) in the first layer, before its weights: (n, E), (n, E/2), ...

    For a model without levels, only the vectors themselves.

    Example:
        >>> from torch_pru.lm.config import ModelConfig, RegularizationConfig
        >>> model = LanguageModel(ModelConfig(unit="lstm"), RegularizationConfig(), vocabulary_size=10)
        >>> len(pyramid(model, model.embedding.weight))
        1
    """
    first = model.layers[0]
    if not isinstance(first, PRU):
        return [vectors]
    transform, kernels = first.specs[0].input, first.weights(0).input_kernels
    # In the dtype of the model, because learned pooling has weights; variances are summed in float64.
    values = vectors.to(model.embedding.weight.dtype)
    views = pooling.pyramid(values, transform.pooling, transform.windows, kernels)
    return [vectors, *(view.double() for view in views[1:])]


def _variances(vectors: Tensor, groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Mean squared distance to the mean of the group, for the rows of each group."""
    found = {}
    for tag, rows in groups.items():
        group = vectors[list(rows)]
        found[tag] = (group - group.mean(0)).square().sum(1).mean().item()
    return found


def _rows_by_category(tags: Mapping[str, str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, tag in enumerate(tags.values()):
        groups.setdefault(tag, []).append(row)
    return groups


def _normal_like(vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Normal values drawn on the CPU, so that the control is the same on every device."""
    return torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype).to(vectors.device)
