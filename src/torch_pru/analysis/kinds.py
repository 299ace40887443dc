"""The analyses. Each computes data (plain dataclasses) from runs, and draws figures from the data.

Modules that draw are imported inside functions, because they need Matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_pru.analysis.confidence import COLUMNS, Confidence, confidence
from torch_pru.analysis.coverage import Coverage, gradient_coverage
from torch_pru.analysis.curves import LearningCurve, learning_curve
from torch_pru.analysis.embeddings import EmbeddingVariance, embedding_variance
from torch_pru.analysis.runs import Comparison
from torch_pru.analysis.saliency import Saliency, Sentence, default_sentences, saliency
from torch_pru.analysis.speech import majority_tags
from torch_pru.analysis.sweep import SweepPoint, sweep_point
from torch_pru.lm.progress import ProgressBar

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Options:
    """Options of the analyses. Without sentences, saliency uses the default ones."""

    sentences: list[Sentence]
    top1: bool
    progress_bar: ProgressBar


class NamedFigure(NamedTuple):
    """A figure, the name of its files, its alternative text, and an optional caption."""

    name: str
    figure: Figure
    alt: str
    sentence: str = ""


Figures = tuple[str, list[NamedFigure]]
"""A sentence about all figures of an analysis, and the figures."""


@dataclass(frozen=True)
class Analysis:
    """An analysis.

    Attributes:
        title: its heading.
        weights: whether it needs the weights of the runs, not only their metrics.
        compute: computes data from runs.
        show: makes a sentence and figures from data.
    """

    title: str
    weights: bool
    compute: Callable[[Comparison, Options], Any]
    show: Callable[[Any], Figures]


def _compute_confidence(compared: Comparison, options: Options) -> dict[str, Confidence]:
    found, text = {}, compared.corpus.valid
    for name, model in compared.models.items():
        with options.progress_bar(f"confidence of {name}") as advance:
            found[name] = confidence(model, text, batch=min(COLUMNS, len(text) // 2), progress=advance)
    return found


def _show_confidence(data: Mapping[str, Confidence]) -> Figures:
    from torch_pru.analysis.figures import confidence as figure

    return figure.sentence(data), [NamedFigure("confidence", figure.draw(data), figure.describe(data))]


def _compute_embeddings(compared: Comparison, options: Options) -> dict[str, EmbeddingVariance]:
    with options.progress_bar("parts of speech") as advance:
        tags = majority_tags(compared.valid_sentences, progress=advance)
    return {
        name: embedding_variance(model, compared.vocabulary, tags) for name, model in compared.models.items()
    }


def _show_embeddings(data: Mapping[str, EmbeddingVariance]) -> Figures:
    from torch_pru.analysis.figures import embeddings as figure

    names = {"total": "embeddings-total", "per_dimension": "embeddings-per-dimension"}
    return figure.sentence(data), [
        NamedFigure(name, figure.draw(data, measure), figure.describe(data, measure))
        for measure, name in names.items()
    ]


def _compute_saliency(compared: Comparison, options: Options) -> list[dict[str, Saliency]]:
    sentences = options.sentences or default_sentences(compared.vocabulary, compared.valid_sentences)
    return [
        {
            name: saliency(model, compared.vocabulary, sentence, top1=options.top1)
            for name, model in compared.models.items()
        }
        for sentence in sentences
    ]


def _show_saliency(data: list[dict[str, Saliency]]) -> Figures:
    from torch_pru.analysis.figures import saliency as figure

    text = (
        "How much the prediction of a word depends on each word before it. In the figures, the predicted "
        "word has a frame, and darker words are more relevant. Relevance is the squared norm of the gradient "
        "of the log-probability with respect to the word's embedding."
    )
    return text, [
        NamedFigure(f"saliency-{number}", figure.draw(one), figure.describe(one), figure.sentence(one))
        for number, one in enumerate(data, start=1)
    ]


def _compute_coverage(compared: Comparison, options: Options) -> dict[str, Coverage]:
    return {name: gradient_coverage(model, compared.corpus.test) for name, model in compared.models.items()}


def _show_coverage(data: Mapping[str, Coverage]) -> Figures:
    from torch_pru.analysis.figures import coverage as figure

    return figure.sentence(data), [
        NamedFigure("coverage", figure.draw_maps(data), figure.describe_maps(data)),
        NamedFigure("coverage-thresholds", figure.draw_shares(data), figure.describe_shares(data)),
    ]


def _compute_curves(compared: Comparison, options: Options) -> dict[str, LearningCurve]:
    return {name: learning_curve(run) for name, run in compared.runs.items()}


def _show_curves(data: Mapping[str, LearningCurve]) -> Figures:
    from torch_pru.analysis.figures import curves as figure

    return figure.sentence(data), [NamedFigure("curves", figure.draw(data), figure.describe(data))]


def _compute_sweep(compared: Comparison, options: Options) -> dict[str, SweepPoint]:
    return {name: sweep_point(run) for name, run in compared.runs.items()}


def _show_sweep(data: Mapping[str, SweepPoint]) -> Figures:
    from torch_pru.analysis.figures import sweep as figure

    return figure.sentence(data), [NamedFigure("sweep", figure.draw(data), figure.describe(data))]


ANALYSES = {
    "confidence": Analysis("Confidence", True, _compute_confidence, _show_confidence),
    "embeddings": Analysis(
        "Embedding variance by part of speech", True, _compute_embeddings, _show_embeddings
    ),
    "saliency": Analysis("Saliency", True, _compute_saliency, _show_saliency),
    "coverage": Analysis("Gradient coverage", True, _compute_coverage, _show_coverage),
    "curves": Analysis("Learning curves", False, _compute_curves, _show_curves),
    "sweep": Analysis("Levels by groups", False, _compute_sweep, _show_sweep),
}
"""By the name that ``--only`` takes."""
