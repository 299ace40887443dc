"""kenlm's interface: its names, its base of logarithms, its states."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from torch_pru import PRUError
from torch_pru.lm import kenlm
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import CacheSettings, DynamicSettings, gradient_statistics
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.scoring import Scorer

SENTENCE = "word3 word4 golf word5"


@pytest.fixture(scope="module", params=[None, CacheSettings(0.2, 0.5, 40)])
def scorer(request: pytest.FixtureRequest, pru: LanguageModel, vocabulary: Vocabulary) -> Scorer:
    return Scorer(pru, vocabulary, cache=request.param)


@pytest.fixture
def model(scorer: Scorer) -> kenlm.Model:
    return kenlm.Model(scorer)


def test_scores_are_those_of_the_scorer_to_base_10(model: kenlm.Model, scorer: Scorer):
    expected = scorer.score([*SENTENCE.split(), "<eos>"])
    found = list(model.full_scores(SENTENCE))
    for (log_prob, length, oov), (_, log_probability, unknown), number in zip(
        found, expected, range(5), strict=True
    ):
        assert log_prob == pytest.approx(log_probability / math.log(10), abs=1e-5)
        assert (length, oov) == (number + 2, unknown)
    assert model.score(SENTENCE) == pytest.approx(expected.total / math.log(10), abs=1e-5)
    assert model.perplexity(SENTENCE) == pytest.approx(math.exp(-expected.total / 5), rel=1e-5)
    without_end = scorer.score(SENTENCE.split()).total / math.log(10)
    assert model.score(SENTENCE, eos=False) == pytest.approx(without_end, abs=1e-5)


def test_states_are_copied_and_continued(model: kenlm.Model, scorer: Scorer):
    begin, one, two, three = (kenlm.State() for _ in range(4))
    model.BeginSentenceWrite(begin)
    model.BaseScore(begin, "word3", one)
    kept = copy.copy(one)
    assert kept == one
    assert hash(kept) == hash(one)
    assert model.BaseScore(one, "word4", two) == model.BaseScore(kept, "word4", three)
    assert two != kept
    before = model.BaseScore(one, "word4", two)
    model.BaseScore(one, "word9", one)  # in place, as kenlm allows
    assert one != kept
    assert model.BaseScore(kept, "word4", two) == before
    assert copy.deepcopy(kept) == kept


def test_without_a_context_the_first_word_has_a_probability(model: kenlm.Model, scorer: Scorer):
    state, after = kenlm.State(), kenlm.State()
    model.NullContextWrite(state)
    total = sum(10 ** model.BaseScore(state, word, after) for word in scorer.vocabulary.words)
    assert total == pytest.approx(1.0, abs=1e-4)
    bias = scorer.model.decoder.bias.detach()
    expected = torch.log_softmax(bias, 0)[3] / math.log(10)
    assert model.BaseScore(state, "word3", after) == pytest.approx(float(expected), abs=1e-5)
    (first, second) = model.full_scores("word3 word4", bos=False, eos=False)
    assert first[0] == pytest.approx(float(expected), abs=1e-5)
    assert second[0] < 0


def test_words(model: kenlm.Model):
    assert "word3" in model
    assert "golf" not in model
    state, after = kenlm.State(), kenlm.State()
    model.BeginSentenceWrite(state)
    assert model.BaseScore(state, "</s>", after) == model.BaseScore(state, "<eos>", after)
    assert model.BaseFullScore(state, "golf", after).oov is True


def test_what_cannot_be(model: kenlm.Model, pru: LanguageModel, vocabulary: Vocabulary, train_text):
    with pytest.raises(PRUError, match="the state is empty"):
        model.BaseScore(kenlm.State(), "word3", kenlm.State())
    statistics = gradient_statistics(pru, train_text[:200], batch=20)
    learning = Scorer(pru, vocabulary, adapt=DynamicSettings(), statistics=statistics)
    with pytest.raises(PRUError, match="adapt=True cannot be used"):
        kenlm.Model(learning)
