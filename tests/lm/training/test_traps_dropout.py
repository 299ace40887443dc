"""The dropouts of AWD-LSTM's recipe, by literal computations."""

from __future__ import annotations

import pytest
import torch
from small import NO_DROPOUT, WORDS, small_config, small_corpus, small_masks, small_model
from torch import Tensor

from torch_pru.lm.model import LanguageModel
from torch_pru.lm.training.distributed import World
from torch_pru.lm.training.trainer import Trainer

# ---------------------------------------------------------------------- embedding, variational


def test_embedding_dropout_drops_whole_types_scaled_on_the_input_side_only() -> None:
    model = small_model(unit="lstm", **NO_DROPOUT | {"embedding_dropout": 0.4}).train()
    inputs: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    tokens = torch.arange(WORDS).repeat(3, 4)[:, : WORDS * 2]  # every word several times
    hidden = model.hidden(tokens, model.initial_state(tokens.shape[1]), small_masks())
    ratio = inputs[0] / model.embedding.weight[tokens]  # (T, B, E)
    by_word = {}
    for word in range(WORDS):
        values = ratio[tokens == word]
        assert torch.allclose(values, values[0, 0].expand_as(values), rtol=1e-4)  # a whole type at once
        by_word[word] = round(values[0, 0].item(), 4)
    assert set(by_word.values()) == {0.0, round(1 / 0.6, 4)}
    dropped = sum(value == 0 for value in by_word.values()) / WORDS
    assert 0.2 < dropped < 0.6
    logits = model.log_probabilities(hidden.raw)
    full = torch.log_softmax(hidden.raw @ model.embedding.weight.T + model.decoder.bias, -1)
    torch.testing.assert_close(logits, full)  # the tied decoder is whole


@pytest.mark.parametrize(
    ("rate", "where"), [("input_dropout", 0), ("hidden_dropout", 1), ("output_dropout", 2)]
)
@pytest.mark.parametrize("variational", [True, False])
def test_variational_masks_are_one_for_all_steps(rate: str, where: int, variational: bool) -> None:
    model = small_model(unit="lstm", **NO_DROPOUT | {rate: 0.3}, variational=variational).train()
    plain = small_model(unit="lstm", **NO_DROPOUT).train()

    def pieces(model: LanguageModel) -> tuple[Tensor, Tensor, Tensor]:
        inputs: list[Tensor] = []
        for layer in model.layers:
            layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        hidden = model.hidden(tokens, model.initial_state(5), small_masks())
        return (*inputs, hidden.dropped)

    tokens = torch.randint(0, WORDS, (30, 5))
    ratio = pieces(model)[where] / pieces(plain)[where]
    kept = ratio != 0
    assert torch.allclose(ratio[kept], torch.tensor(1 / 0.7), rtol=1e-3)
    assert 0.15 < 1 - kept.float().mean() < 0.45
    constant = bool((kept == kept[:1]).all())
    assert constant == variational
    assert not (kept == kept[:, :1]).all()  # every column has its own


def test_masks_are_drawn_anew_for_each_window() -> None:
    masks, ones = small_masks(), torch.ones(5, 4, 50)
    assert not torch.equal(masks.dropout(ones, 0.5, shared=True), masks.dropout(ones, 0.5, shared=True))


# ---------------------------------------------------------------------- weight drop


@pytest.mark.parametrize("unit", ["lstm", "pru"])
def test_weight_drop_is_elementwise_on_every_layer_shared_over_time_and_batch(unit: str) -> None:
    model = small_model(unit=unit, **NO_DROPOUT | {"weight_drop": 0.5}, hidden=[12, 12, 8]).train()
    tokens = torch.randint(0, WORDS, (6, 1)).expand(6, 3)
    hidden = model.hidden(tokens, model.initial_state(3), small_masks())
    # Shared over the batch: equal columns stay equal.
    torch.testing.assert_close(hidden.raw[:, :1].expand_as(hidden.raw), hidden.raw)
    hidden.raw.sum().backward()
    recurrent = [name for name, _ in model.named_parameters() if "weight_hh" in name]
    assert len(recurrent) == 3
    for name, weight in model.layers.named_parameters(prefix="layers"):
        zero = (weight.grad == 0).float().mean().item()
        if name in recurrent:
            assert 0.3 < zero < 0.7  # over time one mask: else every element would have some gradient
            rows = (weight.grad == 0).flatten(0, -2)
            assert not (rows == rows[:1]).all()  # elementwise, neither rows nor columns
        else:
            assert zero < 0.05  # input weights and biases are whole


def test_the_masks_follow_the_seed() -> None:
    one, same, other = (
        Trainer(small_config(seed=seed), small_corpus(), World(torch.device("cpu"))).masks
        for seed in (1, 1, 2)
    )
    drawn = one.weights(torch.ones(100), 0.5)
    assert torch.equal(drawn, same.weights(torch.ones(100), 0.5))
    assert not torch.equal(drawn, other.weights(torch.ones(100), 0.5))


def test_the_kept_weights_are_scaled() -> None:
    weight = torch.ones(300, 300)
    dropped = small_masks().weights(weight, 0.5)
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
