"""Scores and samples of trained language models.

Reported numbers are at batch 1 over every predicted token. Three ways to score a text: `score` leaves
the weights alone, `score_dynamic` goes on learning, `score_cache` remembers recent words. The settings
of the last two are tuned on validation by `tune_dynamic` and `tune_cache`. `Evaluation` does all of it for a
run folder, and keeps there what it found.
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
