"""The paper's analyses for any run: confidence, embeddings, saliency, gradients, learning curves, sweeps.

Functions return plain dataclasses; `analyze` writes them with their figures and one HTML page. Matplotlib and
NLTK (the extra ``[analysis]``) are imported only when figures are drawn and words are tagged.
"""

from torch_pru.analysis.confidence import Confidence, confidence, next_word_entropies
from torch_pru.analysis.coverage import Coverage, gradient_coverage, input_gradient
from torch_pru.analysis.curves import LearningCurve, learning_curve
from torch_pru.analysis.embeddings import EmbeddingVariance, embedding_variance
from torch_pru.analysis.kinds import ANALYSES
from torch_pru.analysis.runs import Comparison, open_runs
from torch_pru.analysis.saliency import Saliency, Sentence, parse_sentence, saliency
from torch_pru.analysis.speech import majority_tags
from torch_pru.analysis.sweep import SweepPoint, sweep_point
from torch_pru.analysis.write import analyze

__all__ = [
    "ANALYSES",
    "Comparison",
    "Confidence",
    "Coverage",
    "EmbeddingVariance",
    "LearningCurve",
    "Saliency",
    "Sentence",
    "SweepPoint",
    "analyze",
    "confidence",
    "embedding_variance",
    "gradient_coverage",
    "input_gradient",
    "learning_curve",
    "majority_tags",
    "next_word_entropies",
    "open_runs",
    "parse_sentence",
    "saliency",
    "sweep_point",
]
