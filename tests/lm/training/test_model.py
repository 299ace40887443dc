"""The language model's layers, masks and decoders."""

from __future__ import annotations

import pytest
import torch
from small import WORDS, small_masks, small_model
from torch.nn import functional as F

from torch_pru import PRU, PRUError
from torch_pru.lm.model import LanguageModel, Masks, MixtureOfSoftmaxes, Softmax

UNITS = ["lstm", "pru"]
TOKENS = torch.randint(0, WORDS, (9, 4), generator=torch.Generator().manual_seed(1))


def raw_output(model: LanguageModel, masks: Masks | None) -> torch.Tensor:
    return model.hidden(TOKENS, model.initial_state(4), masks).raw


def loss_of(model: LanguageModel, masks: Masks | None) -> torch.Tensor:
    hidden = model.hidden(TOKENS, model.initial_state(4), masks)
    return model.nll(hidden.dropped, TOKENS, masks).mean()


@pytest.mark.parametrize("unit", UNITS)
def test_a_literal_forward_pass_without_dropout(unit: str) -> None:
    model = small_model(unit=unit).eval()
    hidden = model.hidden(TOKENS, model.initial_state(4))
    values = model.embedding.weight[TOKENS]
    for layer in model.layers:
        values, _ = layer(values)
    logits = values @ model.embedding.weight.T + model.decoder.bias
    assert torch.equal(hidden.raw, hidden.dropped)
    torch.testing.assert_close(hidden.raw, values)
    expected = -torch.log_softmax(logits, -1).gather(-1, TOKENS[..., None]).squeeze(-1)
    torch.testing.assert_close(model.nll(hidden.raw, TOKENS), expected)
    torch.testing.assert_close(model.nll(hidden.raw.flatten(0, 1), TOKENS.flatten()), expected.flatten())
    torch.testing.assert_close(model.log_probabilities(hidden.raw), torch.log_softmax(logits, -1))


@pytest.mark.parametrize("unit", UNITS)
def test_the_state_carries_a_text_over_windows(unit: str) -> None:
    model = small_model(unit=unit).eval()
    whole = model.hidden(TOKENS, model.initial_state(4))
    first = model.hidden(TOKENS[:4], model.initial_state(4))
    second = model.hidden(TOKENS[4:], first.state)
    torch.testing.assert_close(torch.cat([first.raw, second.raw]), whole.raw)
    for (h, c), size in zip(whole.state, (12, 8), strict=True):
        assert h.shape == c.shape == (1, 4, size)


@pytest.mark.parametrize("unit", UNITS)
def test_weight_drop_changes_the_output_and_its_gradient_reaches_the_raw_weight(unit: str) -> None:
    rates = {"input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0, "embedding_dropout": 0.0}
    model = small_model(unit=unit, weight_drop=0.5, **rates).train()
    plain = small_model(unit=unit, weight_drop=0.0, **rates).train()
    names = [name for name, _ in model.named_parameters() if "weight_hh" in name]
    assert len(names) == 2
    dropped = raw_output(model, small_masks())
    assert not torch.allclose(dropped, raw_output(plain, small_masks()), rtol=1e-3)
    assert not torch.allclose(dropped, raw_output(model, small_masks(6)), rtol=1e-3)
    torch.testing.assert_close(dropped, raw_output(model, small_masks()))
    before = {name: model.get_parameter(name).detach().clone() for name in names}
    dropped.square().sum().backward()
    for name in names:
        gradient = model.get_parameter(name).grad
        assert torch.equal(model.get_parameter(name), before[name])  # nothing was patched
        zero = (gradient == 0).float().mean()
        assert 0.3 < zero < 0.7  # the dropped half has no gradient, the other half has one
    torch.testing.assert_close(raw_output(model.eval(), None), raw_output(plain.eval(), None))


def test_training_needs_masks_and_evaluation_ignores_them() -> None:
    model = small_model().train()
    with pytest.raises(PRUError, match="masks=None"):
        model.hidden(TOKENS, model.initial_state(4))
    model.eval()
    assert torch.equal(loss_of(model, small_masks()), loss_of(model, None))


@pytest.mark.parametrize("unit", UNITS)
def test_masks_of_the_global_batch_are_sliced(unit: str) -> None:
    model = small_model(unit=unit, embedding_dropout=0.3).double().train()
    state = model.initial_state(4)
    whole = model.hidden(TOKENS, state, small_masks())
    for first in (0, 2):
        masks = Masks(torch.Generator().manual_seed(5), batch=4, first=first)
        own = slice(first, first + 2)
        part = model.hidden(TOKENS[:, own], model.initial_state(2), masks)
        torch.testing.assert_close(part.dropped, whole.dropped[:, own])


def test_layers_of_any_size_and_kind() -> None:
    model = small_model(unit="pru", hidden=[16, 24, 8], groups=4)
    assert [type(layer) for layer in model.layers] == [PRU] * 3
    assert [layer.hidden_size for layer in model.layers] == [16, 24, 8]


def test_the_decoder_is_the_embedding_with_a_bias() -> None:
    model = small_model(words=2000)
    weight = model.embedding.weight
    assert weight.min() >= -0.1
    assert weight.max() <= 0.1
    assert abs(weight.std() - 0.2 / 12**0.5) < 0.002
    assert (model.decoder.bias == 0).all()
    names = [name for name, _ in model.named_parameters() if name.startswith("decoder")]
    assert names == ["decoder.bias"]  # the decoder's weight is the embedding


def test_a_mixture_of_one_is_the_softmax_of_its_vector() -> None:
    torch.manual_seed(0)
    mixture, softmax = MixtureOfSoftmaxes(6, 5, 1, 30), Softmax(30)
    with torch.no_grad():
        mixture.bias.normal_()
        softmax.bias.copy_(mixture.bias)
    weight, hidden, targets = torch.randn(30, 5), torch.randn(7, 4, 6), torch.randint(0, 30, (7, 4))
    vector = torch.tanh(mixture.latent(hidden))
    torch.testing.assert_close(
        mixture.log_probabilities(hidden, weight), softmax.log_probabilities(vector, weight)
    )
    torch.testing.assert_close(mixture.nll(hidden, targets, weight), softmax.nll(vector, targets, weight))


def test_a_mixture_is_a_mixture() -> None:
    torch.manual_seed(0)
    mixture = MixtureOfSoftmaxes(6, 5, 3, 30)
    weight, hidden, targets = torch.randn(30, 5), torch.randn(7, 4, 6), torch.randint(0, 30, (7, 4))
    prior = torch.softmax(hidden @ mixture.prior.weight.T, -1)
    latent = torch.tanh(hidden @ mixture.latent.weight.T + mixture.latent.bias)
    total = sum(
        prior[..., k : k + 1] * torch.softmax(latent[..., 5 * k : 5 * k + 5] @ weight.T + mixture.bias, -1)
        for k in range(3)
    )
    torch.testing.assert_close(mixture.log_probabilities(hidden, weight), torch.log(total))
    expected = -torch.log(total).gather(-1, targets[..., None]).squeeze(-1)
    torch.testing.assert_close(mixture.nll(hidden, targets, weight), expected)


def test_a_model_with_experts_trains_with_its_latent_mask() -> None:
    model = small_model(unit="lstm", experts=3, hidden=[12, 10], latent_dropout=0.5).train()
    assert model.logits_per_token == 3 * WORDS
    hidden = torch.randn(9, 4, 10)
    masked = model.nll(hidden, TOKENS, small_masks())
    assert not torch.allclose(masked, model.nll(hidden, TOKENS))
    assert torch.equal(model.eval().nll(hidden, TOKENS, small_masks()), model.nll(hidden, TOKENS))


def test_the_latent_mask_is_one_for_all_steps_and_another_for_each_column() -> None:
    model = small_model(unit="lstm", experts=3, hidden=[12, 10], latent_dropout=0.5).train()
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.normal_()
    hidden = torch.randn(10).expand(9, 4, 10)
    found = model.nll(hidden, torch.zeros_like(TOKENS), small_masks())
    torch.testing.assert_close(found, found[:1].expand(9, 4))
    assert len(set(found[0].tolist())) == 4


@pytest.mark.parametrize(
    ("unit", "dtype"), [("pru", torch.bfloat16), ("pru", torch.float16), ("lstm", torch.bfloat16)]
)
def test_under_autocast_state_and_loss_stay_float32(unit: str, dtype: torch.dtype) -> None:
    model = small_model(unit=unit).train()
    with torch.autocast("cpu", dtype):
        hidden = model.hidden(TOKENS, model.initial_state(4), small_masks())
        loss = model.nll(hidden.dropped, TOKENS, small_masks())
    assert hidden.raw.dtype == dtype
    assert loss.dtype == torch.float32
    assert all(h.dtype == c.dtype == torch.float32 for h, c in hidden.state)
    exact = F.cross_entropy(
        hidden.dropped.float().flatten(0, 1) @ model.embedding.weight.T, TOKENS.flatten(), reduction="none"
    )
    torch.testing.assert_close(loss.flatten(), exact, atol=0.02, rtol=0.02)
