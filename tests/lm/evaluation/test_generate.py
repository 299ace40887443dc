"""Generated words: greedy, seeded, cut to the likeliest, never ``<unk>`` unless asked."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch
from small_models import UNITS, small_model

from torch_pru import PRUError
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import generate
from torch_pru.lm.evaluation.generate import sample
from torch_pru.lm.model import LanguageModel


def words(model: LanguageModel, vocabulary: Vocabulary, count: int, **options: object) -> list[str]:
    return list(islice(generate(model, vocabulary, **options), count))  # type: ignore[arg-type]


@pytest.mark.parametrize("unit", UNITS)
def test_temperature_zero_takes_the_likeliest_word(unit: str, vocabulary: Vocabulary) -> None:
    model = small_model(unit)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # large weights: what comes next depends on all that came before
    ids = vocabulary.encode(["<eos>", "word5", "word7"]).tolist()
    for _ in range(12):  # the whole text anew for every word
        hidden = model.hidden(torch.tensor(ids)[:, None], model.initial_state(1))
        scores = model.log_probabilities(hidden.raw[-1, 0]).tolist()
        scores[vocabulary.unknown] = -math.inf  # type: ignore[index]
        ids.append(max(range(len(scores)), key=scores.__getitem__))
    expected = [vocabulary.word(number) for number in ids[3:]]
    assert words(model, vocabulary, 12, prompt=["word5", "word7"], temperature=0) == expected
    assert words(model, vocabulary, 12, prompt=["word5", "word7"], top_k=1) == expected
    assert words(model, vocabulary, 12, prompt=["word5", "word7"], top_p=1e-9) == expected


def test_a_seed_gives_the_same_words(pru: LanguageModel, vocabulary: Vocabulary) -> None:
    first = words(pru, vocabulary, 40, seed=1)
    torch.manual_seed(99)  # the global state has no part in it
    assert words(pru, vocabulary, 40, seed=1) == first
    assert words(pru, vocabulary, 40, seed=2) != first
    assert words(pru, vocabulary, 40) != words(pru, vocabulary, 40)


def test_unknown_words_are_not_drawn_unless_asked(
    pru: LanguageModel, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A model that is nearly sure of <unk>.
    likely = torch.full((len(vocabulary),), -10.0)
    likely[vocabulary.unknown] = 0.0
    monkeypatch.setattr(pru, "log_probabilities", lambda hidden: likely.clone())
    for temperature in (0, 1.0):
        assert "<unk>" not in words(pru, vocabulary, 50, temperature=temperature, seed=1)
    assert "<unk>" in words(pru, vocabulary, 50, seed=1, unknown=True)


def test_a_prompt_outside_the_vocabulary(pru: LanguageModel, vocabulary: Vocabulary) -> None:
    as_unknown = words(pru, vocabulary, 20, prompt=["<unk>"], seed=1)
    assert words(pru, vocabulary, 20, prompt=["golf"], seed=1) == as_unknown
    without = Vocabulary([word.replace("<unk>", "word1") for word in vocabulary.words])
    with pytest.raises(PRUError, match="golf"):
        generate(pru, without, ["golf"])  # at once, not at the first word


def test_words_come_one_at_a_time(
    pru: LanguageModel, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    hidden = pru.hidden
    monkeypatch.setattr(pru, "hidden", lambda *inputs: passes.append(inputs[0].shape) or hidden(*inputs))
    stream = generate(pru, vocabulary, ["word5", "word6"], seed=1)
    assert passes == []
    next(stream)
    next(stream)
    assert passes == [(3, 1), (1, 1)]


def test_a_model_in_training_is_sampled_without_dropout(pru: LanguageModel, vocabulary: Vocabulary) -> None:
    expected = words(pru, vocabulary, 20, temperature=0)
    pru.train()
    try:
        assert words(pru, vocabulary, 20, temperature=0) == expected
        assert pru.training
    finally:
        pru.eval()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.5}, [1.0, 0, 0, 0]),
        ({"top_p": 0.6}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.81}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"temperature": 0.5}, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        ({"temperature": 0.5, "top_p": 0.7}, [0.25 / 0.34, 0.09 / 0.34, 0, 0]),
        ({"top_k": 3, "top_p": 0.6}, [0.625, 0.375, 0, 0]),
        ({"top_k": 99}, [0.5, 0.3, 0.15, 0.05]),
    ],
)
def test_the_distribution_that_words_are_drawn_from(options: dict[str, float], expected: list[float]) -> None:
    order = torch.tensor([2, 0, 3, 1])  # the likeliest is not the first
    scores = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()[order]
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(4)
    for _ in range(2000):
        counts[sample(scores, generator=generator, **options)] += 1  # type: ignore[arg-type]
    torch.testing.assert_close(counts / 2000, torch.tensor(expected)[order], atol=0.04, rtol=0)
    assert not counts[torch.tensor(expected)[order] == 0].any()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"temperature": -1}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}),
        *({"prompt": "god said"}, {"seed": 2**64}, {"seed": -1}, {"seed": 1.5}),
    ],
)
def test_mistakes_are_refused_at_once(
    pru: LanguageModel, vocabulary: Vocabulary, wrong: dict[str, object]
) -> None:
    with pytest.raises(PRUError, match=next(iter(wrong))):
        generate(pru, vocabulary, **wrong)  # type: ignore[arg-type]
