"""Scores and samples of trained language models.

There are three ways to score a text: `score` with fixed weights, `score_dynamic` with weights that adapt to
the text, and `score_cache` with a cache of recent words. The settings of the last two are tuned on the
validation text by `tune_dynamic` and `tune_cache`. `Evaluation` does all of this for a run folder and records
the results there. Reported scores are at batch 1 and cover every predicted token.
"""

from torch_pru.lm.evaluation.cache import CacheSettings, score_cache
from torch_pru.lm.evaluation.dynamic import (
    DynamicSettings,
    GradientStatistics,
    gradient_statistics,
    score_dynamic,
)
from torch_pru.lm.evaluation.evaluation import Evaluation
from torch_pru.lm.evaluation.generate import generate
from torch_pru.lm.evaluation.static import Score, score
from torch_pru.lm.evaluation.tune import Try, Tuning, tune_cache, tune_dynamic

__all__ = [
    "CacheSettings",
    "DynamicSettings",
    "Evaluation",
    "GradientStatistics",
    "Score",
    "Try",
    "Tuning",
    "generate",
    "gradient_statistics",
    "score",
    "score_cache",
    "score_dynamic",
    "tune_cache",
    "tune_dynamic",
]
