"""The registry: who runs a piece, and why not somebody else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from torch_pru import PRU, GroupedLinear, PRUCell, PRUError
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.evaluation.dynamic import Adaptation, GradientStatistics
from torch_pru.lm.evaluation.stepper import Stepper
from torch_pru.lm.model import LanguageModel, Masks
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.step import TrainingStep
from torch_pru.ops import backends, recurrence, reference

Fake = Any


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A backend that hands every piece to the reference and notes its name."""
    module: Fake = ModuleType("fake")
    module.seen, module.reasons = [], {}

    def noting(piece: str):
        def run(*arguments, **options):
            module.seen.append(piece)
            return getattr(reference, piece)(*arguments, **options)

        return run

    for piece in backends.PIECES:
        setattr(module, piece, noting(piece))
    module.unsupported_reason = lambda piece, *arguments, **options: module.reasons.get(piece)
    backends.register("fake", module, priority=100)
    yield module
    backends.unregister("fake")


def run_everything() -> None:
    """A training step, dynamic evaluation, generation, and what a layer is made of."""
    rates = RegularizationConfig(weight_drop=0.5, output_dropout=0.3, activation=1.0, temporal=1.0)
    model = LanguageModel(ModelConfig(unit="pru", embedding=8, hidden=(16, 8), levels=2, groups=2), rates, 12)
    optimizer = AveragedSGD(model.parameters(), clip=0.25)
    step = TrainingStep(model.train(), optimizer, Masks(torch.Generator().manual_seed(1)))
    tokens = torch.arange(12).view(6, 2)
    optimizer.prepare_step(lr=0.1)
    step(tokens, tokens, model.initial_state(2))
    Adaptation(model, GradientStatistics([torch.ones_like(weight) for weight in model.parameters()], 1))
    Stepper(model).read(torch.tensor([3]))
    GroupedLinear(8, 8, groups=2)(torch.randn(3, 8))
    recurrence(torch.randn(3, 2, 4, 8), torch.randn(2, 4, 4, 4), None)


def test_a_new_backend_gets_every_piece(fake: Fake):
    run_everything()
    assert set(fake.seen) == set(backends.PIECES)


def test_what_it_cannot_do_goes_to_the_next_one(fake: Fake, caplog: pytest.LogCaptureFixture):
    fake.reasons = dict.fromkeys(backends.PIECES, "out of order")
    with caplog.at_level(logging.INFO):
        run_everything()
        run_everything()
    assert fake.seen == []
    said = [record.message for record in caplog.records if "fake: out of order" in record.message]
    assert len(said) == 1


def test_a_piece_that_it_lacks_goes_to_the_next_one(fake: Fake):
    del fake.drop
    run_everything()
    assert set(fake.seen) == set(backends.PIECES) - {"drop"}


def test_a_layer_names_its_backend_and_the_reason(fake: Fake):
    rnn, x = PRU(8, 16, num_layers=2, batch_first=True), torch.randn(3, 20, 8)
    assert rnn.backend_for(x) == ("fake", None)
    fake.reasons["layer"] = "out of order"
    name, reason = rnn.backend_for(x)
    assert name != "fake"
    assert reason == "fake: out of order"
    assert PRU(8, 16, backend="reference").backend_for(x[0]) == ("reference", None)


def test_a_backend_that_was_asked_for_runs_or_raises(fake: Fake):
    x = torch.randn(1, 2, 8)
    rnn, cell = PRU(8, 16, backend="fake"), PRUCell(8, 16, backend="fake")
    rnn(x)
    cell(x[0])
    assert fake.seen == ["layer", "layer"]
    fake.reasons["layer"] = "out of order"
    for module, given in ((rnn, x), (cell, x[0])):
        with pytest.raises(PRUError, match=r"backend='fake' cannot run .*: out of order; use backend='auto'"):
            module(given)
    with pytest.raises(PRUError, match="did you mean 'fake'"):
        PRU(8, 16, backend="fak")


def test_derivatives_of_torch_func_go_to_the_reference(fake: Fake):
    rnn = PRU(8, 16)
    torch.func.grad(lambda x: rnn(x)[0].sum())(torch.randn(3, 2, 8))
    assert "layer" not in fake.seen


def test_a_compiler_sees_the_choice(fake: Fake):
    torch._dynamo.reset()
    rnn, x = PRU(8, 16), torch.randn(3, 2, 8)
    found = torch.compile(rnn, backend="eager", fullgraph=True)(x)[0]
    assert "layer" in fake.seen
    torch.testing.assert_close(found, rnn(x)[0])
    torch._dynamo.reset()


def test_every_registered_backend_can_be_loaded_and_has_pieces():
    for name in backends.names()[1:]:
        module = backends.module(name)
        assert callable(module.unsupported_reason)
        assert [piece for piece in backends.PIECES if hasattr(module, piece)]
    assert all(hasattr(reference, piece) for piece in backends.PIECES)
