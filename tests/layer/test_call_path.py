"""How many source files a call passes through: few enough to follow one by hand.

``python tests/layer/test_call_path.py`` prints them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch

import torch_pru
from torch_pru import PRU
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.model import LanguageModel, Masks
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep
from torch_pru.ops import native

SOURCE = Path(torch_pru.__file__).parent


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of the package whose functions ``call`` enters, in order of first use, without a warm-up."""
    call()
    seen: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            seen.setdefault(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(seen)


def layer_call(steps: int) -> Callable[[], object]:
    """A layer of 256 units over some steps, forward and without a gradient."""
    pru, x = PRU(256, 256, levels=2, groups=4), torch.randn(steps, 2, 256)
    return torch.no_grad()(lambda: pru(x))


def training_step() -> Callable[[], object]:
    """A step of training with every regularizer on."""
    rates = RegularizationConfig(weight_drop=0.5, output_dropout=0.3, activation=1.0, temporal=1.0)
    model = LanguageModel(ModelConfig(unit="pru", embedding=8, hidden=(16, 8), levels=2, groups=2), rates, 12)
    optimizer = AveragedSGD(model.parameters(), clip=0.25)
    masks = Masks(torch.Generator().manual_seed(1))
    step = TrainingStep(model.train(), optimizer, masks)
    tokens = torch.arange(12).view(6, 2)

    def run() -> None:
        optimizer.prepare_step(lr=0.1)
        step(tokens, tokens, model.initial_state(2))

    return run


CALLS: dict[str, tuple[Callable[[], Callable[[], object]], int]] = {
    "a layer": (lambda: layer_call(8), 7),
    "a training step": (training_step, 16),
}


@pytest.mark.parametrize("name", CALLS)
def test_few_files(name: str):
    make, most = CALLS[name]
    if (reason := native.missing_reason()) is not None:
        pytest.skip(reason)  # the next test counts the files of this case
    files = files_of(make())
    assert len(files) <= most, files


@pytest.mark.usefixtures("without_compiled_kernels")
def test_few_files_without_compiled_kernels():
    for steps in (1, 8):
        files = files_of(layer_call(steps))
        assert len(files) <= 11, files
    files = files_of(training_step())
    assert len(files) <= 17, files


if __name__ == "__main__":
    for title, (make_call, _) in CALLS.items():
        found = files_of(make_call())
        print(f"{title}: {len(found)} files", *found, sep="\n  ")
