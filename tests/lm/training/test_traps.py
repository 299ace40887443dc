"""What is easily got wrong in AWD-LSTM's recipe, by literal computations.

What a step reads: test_windows.py; dropouts: test_traps_dropout.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small import NO_DROPOUT, WORDS, small_config, small_corpus, small_masks, small_model, step_along
from torch import Tensor

from torch_pru.lm.config import TrainingConfig
from torch_pru.lm.evaluation.static import score
from torch_pru.lm.model import LanguageModel, Masks
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.optimizer import AveragedSGD
from torch_pru.lm.training.progress import StopRequest
from torch_pru.lm.training.schedule import Decision, Schedule
from torch_pru.lm.training.step import TrainingStep
from torch_pru.lm.training.trainer import Trainer

CPU = World(torch.device("cpu"))


# ---------------------------------------------------------------------- learning rate


@pytest.mark.parametrize("averaging", [False, True])
def test_each_step_has_the_rate_of_its_own_window(averaging: bool) -> None:
    trainer = Trainer(small_config(unit="lstm", learning_rate=30.0, window=70), small_corpus(), CPU)
    if averaging:
        trainer.optimizer.start_averaging()
    for length in (13, 70, 35):
        trainer._take_step(0, length)
        assert trainer.optimizer.lr.item() == pytest.approx(30 * length / 70)


def test_the_averaged_phase_is_not_one_rate_behind() -> None:
    weight = torch.nn.Parameter(torch.tensor([10.0], dtype=torch.float64))
    optimizer = AveragedSGD([weight], clip=1e9, weight_decay=0.0)
    optimizer.start_averaging()
    path = [10.0]
    for rate in (1.0, 3.0, 0.5):
        optimizer.prepare_step(rate)
        step_along(optimizer, [torch.tensor([1.0], dtype=torch.float64)])
        path.append(path[-1] - rate)
        assert weight.item() == pytest.approx(path[-1])


# ---------------------------------------------------------------------- trigger, average


def decisions(losses: list[float], **settings: int) -> list[str]:
    schedule = Schedule(TrainingConfig(**{"epochs": 100} | settings), "train")
    return [schedule.end_epoch(loss).value for loss in losses]


def test_the_trigger() -> None:
    # Six on record are needed (more than 5); the new loss is compared with all but the last 5 of them.
    falling = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]
    assert decisions([*falling, 8.9]) == ["continue"] * 7  # below 9.0, the only one that counts
    assert decisions([*falling, 9.1]) == ["continue"] * 6 + ["average"]
    assert decisions([9.0, 9.5, 9.5, 9.5, 9.5, 9.5]) == ["continue"] * 6  # five on record are not enough
    assert decisions([9.0, 9.5, 9.5, 9.5, 9.5, 9.5, 9.5])[-1] == "average"
    # The new loss is appended afterwards: were it first, 6.5 would be compared with [.., 6.0] as well.
    assert decisions([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 7.5])[-1] == "continue"
    assert decisions([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 8.5])[-1] == "average"
    assert decisions([9.0] + [8.0] * 5 + [9.0])[-1] == "continue"  # equal is not above
    assert decisions([9.0] * 6 + [9.5] * 3) == ["continue"] * 6 + ["average"] + ["continue"] * 2  # fires once


def test_the_average_is_the_mean_of_the_weights_after_each_step() -> None:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(4))]
    optimizer = AveragedSGD(weights, clip=0.25, weight_decay=1e-3)
    for _ in range(3):
        optimizer.prepare_step(0.7)
        step_along(optimizer, [torch.randn(3, 2), torch.randn(4)])
    optimizer.start_averaging()
    seen = []
    for _ in range(9):
        optimizer.prepare_step(0.7)
        step_along(optimizer, [torch.randn(3, 2), torch.randn(4)])
        seen.append([weight.detach().clone() for weight in weights])
    raw = [weight.detach().clone() for weight in weights]
    with optimizer.averaged_weights():
        for index, weight in enumerate(weights):
            torch.testing.assert_close(weight.detach(), torch.stack([step[index] for step in seen]).mean(0))
    for weight, value in zip(weights, raw, strict=True):
        assert torch.equal(weight, value)  # training goes on from the raw weights


def test_the_average_is_what_is_validated_and_kept(tmp_path: Path) -> None:
    trainer = Trainer(small_config(unit="lstm"), small_corpus(), CPU)
    trainer._start(RunFolder.create(tmp_path, trainer.config, small_corpus()), StopRequest())
    trainer.optimizer.start_averaging()
    for first, length in trainer._windows():
        trainer._take_step(first, length)
    assert trainer.optimizer.averages is not None
    averages = [average.clone() for average in trainer.optimizer.averages]
    raw = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer._end_epoch()
    for weight, before in zip(trainer.model.parameters(), raw, strict=True):
        assert torch.equal(weight, before)  # training goes on from the raw weights
    for kept, average in zip(trainer.best.values(), averages, strict=True):
        assert torch.equal(kept, average)
    trainer.model.load_state_dict(trainer.best)
    assert trainer.valid_loss == pytest.approx(score(trainer.model, trainer.valid, batch=2).nll, rel=1e-6)


def test_the_raw_weights_come_back_after_an_error() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = AveragedSGD([weight], clip=1.0, weight_decay=0.0)
    optimizer.start_averaging()
    assert optimizer.averages is not None
    optimizer.averages[0].zero_()

    def fail() -> None:
        with optimizer.averaged_weights():
            assert (weight == 0).all()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (weight == 1).all()


# ---------------------------------------------------------------------- decay and clipping


def test_decay_is_coupled_and_comes_after_clipping() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    bias = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = AveragedSGD([weight, bias], clip=0.25, weight_decay=0.1)
    optimizer.prepare_step(0.5)
    norm = step_along(
        optimizer, [torch.tensor([0.0, 6.0], dtype=torch.float64), torch.tensor([8.0], dtype=torch.float64)]
    )
    assert norm.item() == pytest.approx(10.0)  # one norm over all weights
    # g = (0, 6, 8) / 40 + 0.1 p;  p <- p - 0.5 g
    assert weight.tolist() == pytest.approx([3 - 0.5 * 0.3, 4 - 0.5 * (0.15 + 0.4)], rel=1e-6)
    assert bias.tolist() == pytest.approx([2 - 0.5 * (0.2 + 0.2)], rel=1e-6)


def test_a_short_gradient_is_not_lengthened() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = AveragedSGD([weight], clip=0.25, weight_decay=0.0)
    optimizer.prepare_step(1.0)
    step_along(optimizer, [torch.tensor([0.1])])
    assert weight.item() == pytest.approx(-0.1)


def test_decay_covers_all_parameters_and_clipping_covers_the_penalties() -> None:
    """One whole step against autograd on a loss that is written out here."""
    rates = NO_DROPOUT | {"activation": 40.0, "temporal": 30.0, "weight_decay": 0.01}
    model = small_model(unit="lstm", **rates).double().train()
    copy = small_model(unit="lstm", **rates).double().train()
    tokens, targets = torch.randint(0, WORDS, (9, 4)), torch.randint(0, WORDS, (9, 4))
    optimizer = AveragedSGD(model.parameters(), clip=0.25, weight_decay=0.01)
    optimizer.prepare_step(2.0)
    TrainingStep(model, optimizer, small_masks())(tokens, targets, model.initial_state(4))

    hidden = copy.hidden(tokens, copy.initial_state(4), small_masks())
    change = hidden.raw[1:] - hidden.raw[:-1]
    loss = copy.nll(hidden.raw, targets).mean() + 40 * (hidden.raw**2).mean() + 30 * (change**2).mean()
    loss.backward()
    norm = math.sqrt(sum((weight.grad**2).sum().item() for weight in copy.parameters()))
    assert norm > 0.25
    for name, weight in copy.named_parameters():
        expected = weight - 2.0 * (weight.grad * (0.25 / norm) + 0.01 * weight)
        torch.testing.assert_close(model.get_parameter(name), expected, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------- AR and TAR


def gradient_of_step(model: LanguageModel, masks: Masks, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """The gradient a step used, read from the change of the weights: no clipping, no decay, rate 1."""
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = AveragedSGD(model.parameters(), clip=1e9, weight_decay=0.0)
    optimizer.prepare_step(1.0)
    TrainingStep(model, optimizer, masks)(tokens, targets, model.initial_state(4))
    return [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]


def test_ar_is_on_the_dropped_and_tar_on_the_raw_output() -> None:
    rates = NO_DROPOUT | {"output_dropout": 0.5, "activation": 2.0, "temporal": 1.0}
    model, copy = (small_model(unit="lstm", **rates).double().train() for _ in range(2))
    tokens, targets = torch.randint(0, WORDS, (9, 4)), torch.randint(0, WORDS, (9, 4))
    found = gradient_of_step(model, small_masks(), tokens, targets)

    raw = copy.hidden(tokens, copy.initial_state(4), small_masks()).raw
    keep = torch.empty(1, 4, 8, dtype=torch.float64).bernoulli_(0.5, generator=small_masks().generator) * 2
    dropped = raw * keep
    loss = copy.nll(dropped, targets).mean()
    loss = loss + 2 * dropped.pow(2).mean() + 1 * (raw[1:] - raw[:-1]).pow(2).mean()
    for value, expected in zip(found, torch.autograd.grad(loss, list(copy.parameters())), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-9, rtol=1e-6)


def test_the_reported_loss_is_the_cross_entropy_alone() -> None:
    model = small_model(unit="lstm", **NO_DROPOUT, activation=50.0).double().train()
    tokens, targets = torch.randint(0, WORDS, (9, 4)), torch.randint(0, WORDS, (9, 4))
    hidden = model.hidden(tokens, model.initial_state(4), small_masks())
    expected = model.nll(hidden.raw, targets).mean()
    optimizer = AveragedSGD(model.parameters(), clip=0.25, weight_decay=0.0)
    optimizer.prepare_step(1.0)
    _, loss = TrainingStep(model, optimizer, small_masks())(tokens, targets, model.initial_state(4))
    torch.testing.assert_close(loss, expected.detach())


# ---------------------------------------------------------------------- the carried state


def test_the_state_is_zero_at_an_epochs_start_and_else_carried_and_detached() -> None:
    trainer = Trainer(small_config(unit="lstm", **NO_DROPOUT, learning_rate=1e-9), small_corpus(), CPU)
    seen = []
    step = trainer.training_step

    def spy(tokens: Tensor, targets: Tensor, state: list[tuple[Tensor, Tensor]]) -> object:
        seen.append((tokens, targets, state))
        return TrainingStep.__call__(step, tokens, targets, state)

    trainer.training_step = spy  # type: ignore[assignment]
    starting = []
    for _ in range(2):
        starting.append(len(seen))
        for first, length in trainer._windows():
            trainer._take_step(first, length)
        trainer.step_in_epoch = 0
        trainer.schedule.epoch += 1
    for index, (tokens, targets, state) in enumerate(seen):
        starts = index in starting
        assert all((h == 0).all() and (c == 0).all() for h, c in state) == starts
        assert not any(h.requires_grad or c.requires_grad for h, c in state)
        assert torch.equal(tokens[1:], targets[:-1])
        if not starts:  # no shuffling: a window begins with the last target of the one before
            assert torch.equal(tokens[0], seen[index - 1][1][-1])
    # The carried state is that of reading the columns from their start.
    read = torch.cat([tokens for tokens, _, _ in seen[:2]])
    with torch.no_grad():
        whole = trainer.model.hidden(read, trainer.model.initial_state(4), small_masks()).state
    for (h, c), (h2, c2) in zip(seen[2][2], whole, strict=True):
        torch.testing.assert_close(h, h2, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(c, c2, atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------- what is scored


def test_validation_scores_exactly_the_predicted_tokens() -> None:
    config, corpus = small_config(unit="lstm", valid_batch=3), small_corpus()
    trainer = Trainer(config, corpus, CPU)
    trainer.model.train()
    found = trainer._validate()
    rows = len(corpus.valid) // 3
    text = corpus.valid[: rows * 3].view(3, rows)
    trainer.model.eval()
    total = 0.0
    with torch.no_grad():
        for row in text:
            hidden = trainer.model.hidden(row[:-1, None], trainer.model.initial_state(1))
            total += trainer.model.nll(hidden.raw[:, 0], row[1:]).double().sum().item()
    assert found == pytest.approx(total / (3 * (rows - 1)), rel=1e-6)  # not / (3 * rows)
    assert score(trainer.model, corpus.test, batch=1).tokens == len(corpus.test) - 1


def test_validation_is_in_the_precision_of_the_run() -> None:
    trainer = Trainer(small_config(unit="lstm", precision="bfloat16"), small_corpus(), CPU)
    exact = score(trainer.model, trainer.valid, batch=2).nll
    with torch.autocast("cpu", torch.bfloat16):
        expected = score(trainer.model, trainer.valid, batch=2).nll
    assert trainer._validate() == expected != exact


# ---------------------------------------------------------------------- float32 average


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_average_is_float32(precision: str) -> None:
    trainer = Trainer(small_config(precision=precision), small_corpus(), CPU)
    trainer.optimizer.start_averaging()
    assert trainer.optimizer.averages is not None
    assert {average.dtype for average in trainer.optimizer.averages} == {torch.float32}
    assert trainer.optimizer.average_weight.dtype == torch.float32


def test_late_steps_still_move_the_average() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = AveragedSGD([weight], clip=1e9, weight_decay=0.0)
    optimizer.start_averaging()
    optimizer.averaged_steps = 250_000  # 1/n = 4e-6: a 16-bit average would stand still
    for _ in range(50):
        optimizer.prepare_step(0.0)
        with torch.no_grad():
            weight.fill_(2.0)
        step_along(optimizer, [torch.zeros(1)])
    assert optimizer.averages is not None
    # 4e-6 on top of 1 is 33 units of float32's last place: right to a few per cent.
    assert optimizer.averages[0].item() - 1 == pytest.approx(50 / 250_050, rel=0.03)


# ---------------------------------------------------------------------- rounds


def test_finetuning_goes_on_while_validation_improves() -> None:
    schedule = Schedule.finetuning(TrainingConfig(epochs=100, trigger_window=2), best=4.0)
    assert schedule.averaging
    # Round 1: falls below 4.0, then the trigger fires (above all but the last two on record).
    first = [schedule.end_epoch(loss) for loss in (4.1, 3.9, 3.8, 3.85, 4.2)]
    assert first == [Decision.CONTINUE] * 4 + [Decision.RESTART]
    assert (schedule.round, schedule.best, schedule.best_epoch) == (2, 3.8, 3)
    # Round 2 has a record of its own, and does not get below 3.8: the end.
    second = [schedule.end_epoch(loss) for loss in (3.81, 3.82, 3.83, 3.84)]
    assert second == [Decision.CONTINUE] * 3 + [Decision.STOP]
    assert schedule.best == 3.8


def test_finetuning_has_an_end_over_all_its_rounds() -> None:
    schedule = Schedule.finetuning(TrainingConfig(epochs=5, early_stop_from=1, trigger_window=1), best=4.0)
    found = [schedule.end_epoch(loss).value for loss in (3.8, 3.7, 3.9, 3.6, 3.5)]
    assert found == ["continue", "continue", "restart", "continue", "stop"]
    assert (schedule.epochs, schedule.round, schedule.best) == (5, 2, 3.5)


# ---------------------------------------------------------------------- the last epoch


def test_a_run_ends_early_where_validation_no_longer_falls() -> None:
    still_falling = [5 - epoch / 100 for epoch in range(9)]
    assert decisions(still_falling, epochs=9, early_stop_from=4) == ["continue"] * 8 + ["stop"]
    assert decisions(still_falling[:1], epochs=1, early_stop_from=4) == ["stop"]  # epochs is always the most
    flat = [5.0, 4.0, *[4.5] * 10]
    found = decisions(flat, epochs=50, early_stop_from=4, trigger_window=3)
    assert found.index("stop") == 5  # the best is of epoch 2, and the sixth is the first four epochs later
    found = decisions(flat, epochs=50, early_stop_from=8, trigger_window=3)
    assert found.index("stop") == 7  # not before the eighth
    assert "stop" not in decisions(flat, epochs=50, trigger_window=3)


def test_the_last_epoch_is_known_when_the_run_stops_early() -> None:
    schedule = Schedule(TrainingConfig(epochs=8, early_stop_from=4, trigger_window=1), "train")
    known = []
    for loss in (5.0, 4.0, 3.0, 2.9, 3.1, 3.2):
        known.append(schedule.epochs)
        schedule.end_epoch(loss)
    assert (known, schedule.epochs) == ([8] * 6, 6)
