"""Training and finetuning: one loop, one run folder, nothing lost."""

from torch_pru.lm.training.api import finetune, resume, train
from torch_pru.lm.training.progress import Progress
from torch_pru.lm.training.signals import Interrupted
from torch_pru.lm.training.together import (
    Failures,
    RunsFailed,
    finetune_together,
    resume_together,
    train_together,
)
from torch_pru.lm.training.trainer import Diverged

__all__ = [
    "Diverged",
    "Failures",
    "Interrupted",
    "Progress",
    "RunsFailed",
    "finetune",
    "finetune_together",
    "resume",
    "resume_together",
    "train",
    "train_together",
]
