"""Training on a GPU: the host never waits inside a step, and weight drop reaches cuDNN."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small import small_config, small_model

from torch_pru.lm.model import Masks
from torch_pru.lm.training import resume, train
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _waiting_is_allowed_again() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("unit", ["lstm", "pru"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_step_does_not_wait(unit: str, precision: str) -> None:
    device = torch.device("cuda")
    model = small_model(unit=unit).to(device).train()
    optimizer = AveragedSGD(model.parameters(), clip=0.25, weight_decay=1e-6)
    optimizer.start_averaging()
    masks = Masks(torch.Generator(device).manual_seed(1))
    step = TrainingStep(model, optimizer, masks, precision=precision)
    tokens, state = torch.randint(0, 40, (9, 4), device=device), model.initial_state(4)
    for number in range(3):
        if number == 1:  # the first step compiles and allocates
            torch.cuda.set_sync_debug_mode("error")
        optimizer.prepare_step(1.0)
        state, loss = step(tokens, tokens, state)
    torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite()
    assert step.first_bad_step == -1


def test_weight_drop_reaches_cudnn() -> None:
    rates = {"input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "embedding_dropout": 0.0}
    model = small_model(unit="lstm", weight_drop=0.5, **rates).cuda().train()
    tokens = torch.randint(0, 40, (9, 4), device="cuda")

    def output(seed: int) -> torch.Tensor:
        masks = Masks(torch.Generator("cuda").manual_seed(seed))
        return model.hidden(tokens, model.initial_state(4), masks).raw

    assert not torch.allclose(output(1), output(2), rtol=1e-3)
    torch.testing.assert_close(output(1), output(1))
    output(1).square().sum().backward()
    for layer in model.layers:
        gradient = layer.get_parameter("weight_hh_l0").grad
        assert gradient is not None
        assert 0.3 < (gradient == 0).float().mean() < 0.7


def test_a_run_trains_and_resumes(text_folder: Path, tmp_path: Path) -> None:
    config = small_config(corpus=str(text_folder), device="cuda", precision="bfloat16", checkpoint_steps=10)
    run = train(config, tmp_path / "run")
    assert run.metrics()[-1]["decision"] == "stop"
    assert resume(run.path).metrics() == run.metrics()
