"""The model in Transformers computes what the toolkit's does, in any pieces and with any padding."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra torch-pru[hf]")

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

from torch_pru import PRUError
from torch_pru.hf import PRUCache, PRUConfig, PRUForCausalLM, PRUModel
from torch_pru.hf.export import from_language_model
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import generate
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.scoring import Scorer


@pytest.fixture(scope="module")
def exported(model: LanguageModel, vocabulary: Vocabulary) -> PRUForCausalLM:
    return from_language_model(model, vocabulary)


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(2, 40, (3, 12), generator=torch.Generator().manual_seed(1))


def test_log_probabilities_are_those_of_the_scorer(
    model: LanguageModel, exported: PRUForCausalLM, vocabulary: Vocabulary, ids: Tensor
):
    words = [vocabulary.word(number) for number in ids[0].tolist()]
    expected = Scorer(model, vocabulary).score(words).log_probabilities
    with torch.no_grad():
        logits = exported(torch.cat([torch.zeros(1, 1, dtype=torch.long), ids[:1]], 1)).logits
    found = logits.log_softmax(-1)[0, :-1].gather(1, ids[0, :, None]).squeeze(1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_greedy_text_is_that_of_generate(
    model: LanguageModel, exported: PRUForCausalLM, vocabulary: Vocabulary
):
    prompt = ["word3", "word7"]
    expected = list(itertools.islice(generate(model, vocabulary, prompt, temperature=0), 30))
    start = vocabulary.encode(["<eos>", *prompt])[None]
    settings = {"max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    found = exported.generate(start, attention_mask=torch.ones_like(start), **settings)
    assert [vocabulary.word(number) for number in found[0, 3:].tolist()] == expected
    assert "<unk>" not in expected


@pytest.mark.parametrize("beams", [1, 3])
def test_left_padding_makes_no_difference(exported: PRUForCausalLM, ids: Tensor, beams: int):
    settings = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False}
    alone = [exported.generate(ids[row : row + 1, row:], **settings)[0, 12 - row :] for row in range(3)]
    padded, mask = ids.clone(), torch.ones_like(ids)
    for row in range(3):
        padded[row, :row], mask[row, :row] = 0, 0
    together = exported.generate(padded, attention_mask=mask, **settings)[:, 12:]
    for row in range(3):
        assert together[row, : len(alone[row])].tolist() == alone[row].tolist()


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_cache_makes_no_difference(exported: PRUForCausalLM, ids: Tensor, use_cache: bool):
    settings = {"max_new_tokens": 10, "num_beams": 4, "do_sample": False}
    found = exported.generate(ids, use_cache=use_cache, **settings)
    assert found.tolist() == exported.generate(ids, use_cache=not use_cache, **settings).tolist()


def test_sampling_repeats_with_a_seed(exported: PRUForCausalLM, ids: Tensor):
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(exported.generate(ids, max_new_tokens=20, do_sample=True, eos_token_id=None).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@torch.no_grad()
def test_pieces_and_padding_anywhere(exported: PRUForCausalLM, ids: Tensor):
    """Padding before, between and after words, across a continued call, in a row of padding alone."""
    mask = torch.tensor(
        [
            [0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 1, 1],
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
        ]
    )
    whole = exported(ids, attention_mask=mask).logits
    for row in range(3):
        valid = mask[row].bool()
        alone = exported(ids[row, valid][None]).logits[0]
        torch.testing.assert_close(whole[row, valid], alone, atol=1e-5, rtol=0)
    for cut in (1, 5, 7):  # up to 7 the last row has padding alone
        first = exported(ids[:, :cut], attention_mask=mask[:, :cut], use_cache=True)
        assert isinstance(first.past_key_values, PRUCache)
        second = exported(ids[:, cut:], attention_mask=mask, past_key_values=first.past_key_values)
        pieces = torch.cat([first.logits, second.logits], 1)
        torch.testing.assert_close(pieces[mask.bool()], whole[mask.bool()], atol=1e-5, rtol=0)


@torch.no_grad()
def test_hidden_states_and_embeddings(exported: PRUForCausalLM, ids: Tensor):
    found = exported(ids, output_hidden_states=True)
    widths = [each.shape[-1] for each in found.hidden_states]
    assert widths == [exported.config.embedding_size, *exported.config.widths]
    embedded = exported(inputs_embeds=exported.get_input_embeddings()(ids))
    assert torch.equal(found.logits, embedded.logits)
    for arguments in ({}, {"input_ids": ids, "inputs_embeds": found.hidden_states[0]}):
        with pytest.raises(PRUError, match="give either input_ids or inputs_embeds"):
            exported(**arguments)


@torch.no_grad()
def test_saved_and_loaded_by_the_auto_classes(exported: PRUForCausalLM, ids: Tensor, tmp_path: Path):
    exported.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), PRUConfig)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is PRUForCausalLM
    assert torch.equal(loaded(ids).logits, exported(ids).logits)
    assert loaded.lm_head.weight is loaded.model.embedding.weight
    assert loaded.generation_config.suppress_tokens == [1]
    backbone = AutoModel.from_pretrained(tmp_path)
    assert type(backbone) is PRUModel
    assert torch.equal(backbone(ids).last_hidden_state, exported.model(ids).last_hidden_state)


def test_dropout_acts_in_training_only(pru: LanguageModel, vocabulary: Vocabulary, ids: Tensor):
    model = from_language_model(pru, vocabulary)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.equal(model(ids).logits, model(ids).logits)
    for name in ("input_dropout", "hidden_dropout", "output_dropout", "embedding_dropout"):
        quiet = PRUConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, **{name: 0.5})
        noisy = PRUForCausalLM(quiet).train()
        torch.manual_seed(1)
        first = noisy(ids).logits
        assert not torch.equal(first, noisy(ids).logits), name
        torch.manual_seed(1)
        assert torch.equal(first, noisy(ids).logits), name


def test_the_trainer_trains(pru: LanguageModel, vocabulary: Vocabulary, tmp_path: Path):
    model = from_language_model(pru, vocabulary)
    text = torch.arange(2, 34).repeat(4)
    data = [{"input_ids": text, "labels": text}] * 8
    settings = TrainingArguments(
        tmp_path, max_steps=40, per_device_train_batch_size=2, learning_rate=0.05, report_to=[], use_cpu=True
    )
    before = model(text[None], labels=text[None]).loss.item()
    Trainer(model, settings, train_dataset=data).train()
    model.eval()
    assert model(text[None], labels=text[None]).loss.item() < before - 0.5


def test_configurations_round_trip():
    model = ModelConfig(embedding=16, hidden=(24, 16), levels=3, pooling="max", pool_window=(3, 5), groups=4)
    dropouts = RegularizationConfig()
    config = PRUConfig.of(model, dropouts, 40)
    again = PRUConfig.from_dict(config.to_dict())
    assert again.model() == model
    assert again.regularization().weight_drop == dropouts.weight_drop
    assert PRUConfig.of(ModelConfig(unit="lstm"), dropouts, 40).model().unit == "fused-lstm"
    with pytest.raises(PRUError, match="groups=3 does not divide"):
        PRUModel(PRUConfig(vocab_size=9, hidden_size=16, num_hidden_layers=1, groups=3))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("torch_pru.hf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers; pip install 'torch-pru\[hf\]'"):
        import torch_pru.hf  # noqa: F401


def test_the_harness_names_what_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "torch_pru.hf.harness", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(
        ImportError, match=r"harness needs lm_eval and its extra hf; pip install 'lm_eval\[hf\]'"
    ):
        import torch_pru.hf.harness  # noqa: F401
