"""Language models of PRU or LSTM layers: data, model, training, evaluation.

from torch_pru.lm import evaluate, generate, load_recipe, train

run = train(load_recipe("quickstart"), "runs/first")
print(evaluate(run.path, "test")["static"]["perplexity"])
print(" ".join(generate(run.path, "in the beginning", words=20)))
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pru.lm.api import evaluate, generate, load
    from torch_pru.lm.recipe import load_recipe
    from torch_pru.lm.run import RunFolder
    from torch_pru.lm.training import finetune, resume, train

if find_spec("safetensors") is None:
    raise ImportError("torch_pru.lm needs safetensors; pip install 'torch-pru[lm]'")

_MODULES = {
    "RunFolder": "torch_pru.lm.run",
    "evaluate": "torch_pru.lm.api",
    "finetune": "torch_pru.lm.training",
    "generate": "torch_pru.lm.api",
    "load": "torch_pru.lm.api",
    "load_recipe": "torch_pru.lm.recipe",
    "resume": "torch_pru.lm.training",
    "train": "torch_pru.lm.training",
}

__all__ = [
    "RunFolder",
    "evaluate",
    "finetune",
    "generate",
    "load",
    "load_recipe",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: TensorBoard alone takes a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
