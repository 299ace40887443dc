"""Training and finetuning of language models."""

from torch_pru.lm.training.api import finetune, resume, train
from torch_pru.lm.training.driver import Failures, RunsFailedError
from torch_pru.lm.training.progress import Interrupted, TrainingProgress
from torch_pru.lm.training.trainer import DivergenceError

__all__ = [
    "DivergenceError",
    "Failures",
    "Interrupted",
    "RunsFailedError",
    "TrainingProgress",
    "finetune",
    "resume",
    "train",
]
