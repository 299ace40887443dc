"""`Scorer` gives every word the log-probability that evaluation sums up, in any pieces the text comes in."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from small_models import small_model
from torch import Tensor

from torch_pru import PRUError
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.evaluation import (
    CacheSettings,
    DynamicSettings,
    GradientStatistics,
    gradient_statistics,
    score,
    score_cache,
    score_dynamic,
)
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.scoring import Context, Scorer

CACHE = CacheSettings(mixture=0.2, theta=0.5, window=40)
DYNAMIC = DynamicSettings(learning_rate=1e-3, segment=5)


def words_of(vocabulary: Vocabulary, ids: Tensor) -> list[str]:
    return [vocabulary.word(number) for number in ids.tolist()]


def literal_log_probabilities(model: LanguageModel, ids: list[int]) -> list[float]:
    """log p of every id but the first, one step at a time, from the full distribution in float64."""
    wide = small_model_like(model).double()
    state = wide.initial_state(1)
    found = []
    with torch.no_grad():
        for before, after in itertools.pairwise(ids):
            hidden = wide.hidden(torch.tensor([[before]]), state)
            state = hidden.state
            found.append(float(wide.log_probabilities(hidden.raw[0, 0])[after]))
    return found


def small_model_like(model: LanguageModel) -> LanguageModel:
    other = LanguageModel(model.config, model.regularization, model.vocabulary_size)
    other.load_state_dict(model.state_dict())
    return other.eval()


@pytest.fixture
def learner(pru: LanguageModel) -> LanguageModel:
    return small_model_like(pru)  # its weights will change


@pytest.fixture(scope="module")
def statistics(pru: LanguageModel, train_text: Tensor) -> GradientStatistics:
    return gradient_statistics(pru, train_text, batch=20)


def test_every_word_has_its_log_probability(model: LanguageModel, vocabulary: Vocabulary, text: Tensor):
    found = Scorer(model, vocabulary).score(words_of(vocabulary, text[:60]))
    expected = literal_log_probabilities(model, [0, *text[:60].tolist()])
    torch.testing.assert_close(
        found.log_probabilities.double(), torch.tensor(expected).double(), atol=1e-5, rtol=0
    )
    assert found.count == 60
    assert found.total == pytest.approx(sum(expected), abs=1e-4)


@pytest.mark.parametrize("length", [2, 303, 1001, 1002, 2500])
def test_sums_are_those_of_evaluation(
    model: LanguageModel, vocabulary: Vocabulary, text: Tensor, length: int
):
    ids = text.repeat(9)[:length]
    scorer = Scorer(model, vocabulary)
    total = count = 0.0
    for part in scorer.read(words_of(vocabulary, ids), scorer.begin(bos=False)):
        total, count = total + part.total, count + part.count
    expected = score(model, ids)
    assert (-total / count, count) == (expected.nll, expected.tokens)  # to the last bit


def test_a_text_begins_after_eos(pru: LanguageModel, vocabulary: Vocabulary, text: Tensor):
    found = Scorer(pru, vocabulary).score(words_of(vocabulary, text))
    expected = score(pru, torch.cat([torch.tensor([0]), text]))
    assert -found.total / found.count == pytest.approx(expected.nll, rel=1e-12)


def test_a_first_word_without_context_has_no_score(pru: LanguageModel, vocabulary: Vocabulary):
    scorer = Scorer(pru, vocabulary)
    for words in (["word3"], ["word3", "word4"]):
        found = scorer.score(words, scorer.begin(bos=False))
        assert math.isnan(found.log_probabilities[0])
        assert found.unscored == 1
        assert found.count == len(words) - 1
        assert not found.log_probabilities[1:].isnan().any()


def test_the_cache_sums_are_those_of_evaluation(
    pru: LanguageModel, vocabulary: Vocabulary, repeating: Tensor
):
    ids = repeating.repeat(4)
    scorer = Scorer(pru, vocabulary, cache=CACHE)
    total = sum(part.total for part in scorer.read(words_of(vocabulary, ids), scorer.begin(bos=False)))
    expected = score_cache(pru, ids, CACHE)
    assert -total / expected.tokens == expected.nll
    assert expected.nll < score(pru, ids).nll - 0.1  # and it did something


@pytest.mark.parametrize("length", [2, 6, 301, 303])  # whole segments, and not
def test_adapting_sums_are_those_of_evaluation(
    learner: LanguageModel,
    vocabulary: Vocabulary,
    repeating: Tensor,
    statistics: GradientStatistics,
    length: int,
):
    ids = repeating.repeat(2)[:length]
    expected = score_dynamic(learner, ids, statistics, DYNAMIC)
    scorer = Scorer(learner, vocabulary, adapt=DYNAMIC, statistics=statistics)
    parts = scorer.read(words_of(vocabulary, ids), scorer.begin(bos=False))
    total = sum(part.total for part in parts)
    assert -total / expected.tokens == expected.nll


@pytest.mark.parametrize("cache", [None, CACHE])
@pytest.mark.parametrize("adapt", [None, DYNAMIC])
@pytest.mark.parametrize("bos", [True, False])
def test_pieces_make_no_difference(
    pru: LanguageModel,
    vocabulary: Vocabulary,
    repeating: Tensor,
    statistics: GradientStatistics,
    cache: CacheSettings | None,
    adapt: DynamicSettings | None,
    bos: bool,
):
    words = words_of(vocabulary, repeating[:120])
    pieces = [1, 1, 1, 7, 2, 40, 1, 3, 60, 4]

    def read(sizes: list[int]) -> Tensor:
        scorer = Scorer(small_model_like(pru), vocabulary, cache=cache, adapt=adapt, statistics=statistics)
        context, start, found = scorer.begin(bos=bos), 0, []
        for size in sizes:
            part = scorer.score(words[start : start + size], context)
            found.append(part.log_probabilities)
            context, start = part.context, start + size
        return torch.cat(found)

    torch.testing.assert_close(read(pieces), read([120]), atol=2e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("cache", [None, CACHE])
def test_a_context_can_be_continued_many_times(
    pru: LanguageModel, vocabulary: Vocabulary, cache: CacheSettings | None
):
    scorer = Scorer(pru, vocabulary, cache=cache)
    context = scorer.score(["word3", "word4", "word5"]).context
    first = scorer.score(["word6", "word7"], context)
    scorer.score(["word8"] * 50, context)
    again = scorer.score(["word6", "word7"], context)
    assert torch.equal(first.log_probabilities, again.log_probabilities)


def test_probabilities_of_all_words_agree_with_scores(model: LanguageModel, vocabulary: Vocabulary):
    scorer = Scorer(model, vocabulary)
    context = scorer.score(["word3", "word4"]).context
    every = scorer.log_probabilities(context)
    assert every.exp().sum() == pytest.approx(1.0, abs=1e-5)
    scores = [scorer.score([word], context).total for word in vocabulary.words]
    torch.testing.assert_close(every, torch.tensor(scores), atol=1e-5, rtol=0)


def test_a_stream_is_read_as_it_comes(pru: LanguageModel, vocabulary: Vocabulary):
    taken = 0

    def endless():
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield f"word{number % 20 + 2}"

    parts = Scorer(pru, vocabulary).read(endless())
    sizes = [len(next(parts)) for _ in range(3)]
    assert taken == sum(sizes) == 3000


def test_unknown_words_are_flagged_and_read_as_unk(pru: LanguageModel, vocabulary: Vocabulary):
    scorer = Scorer(pru, vocabulary)
    found = list(scorer.score(["word3", "golf", "<unk>", "word4"]))
    assert [each.unknown for each in found] == [False, True, True, False]
    same = list(scorer.score(["word3", "<unk>", "<unk>", "word4"]))
    assert [each.log_probability for each in found] == [each.log_probability for each in same]
    assert found[1].surprisal == pytest.approx(-found[1].log_probability / math.log(2))


def test_an_unknown_word_without_unk_is_refused(pru: LanguageModel):
    scorer = Scorer(pru, Vocabulary(["<eos>", *(f"w{number}" for number in range(29))]))
    with pytest.raises(PRUError, match="'golf' is not in the vocabulary"):
        scorer.score(["golf"])


def test_a_file_is_read_with_eos_after_every_line(pru: LanguageModel, vocabulary: Vocabulary, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("word3 word4\n\nword5")
    scorer = Scorer(pru, vocabulary)
    (part,) = scorer.read_file(path)
    assert part.words == ["word3", "word4", "<eos>", "<eos>", "word5", "<eos>"]
    assert torch.equal(part.log_probabilities, scorer.score(part.words).log_probabilities)


class TestLearning:
    def test_undo_restores_the_weights(
        self,
        learner: LanguageModel,
        vocabulary: Vocabulary,
        repeating: Tensor,
        statistics: GradientStatistics,
        tmp_path: Path,
    ):
        words = words_of(vocabulary, repeating[:100])
        trained = {name: value.clone() for name, value in learner.state_dict().items()}
        scorer = Scorer(learner, vocabulary, adapt=DYNAMIC, statistics=statistics)
        first = scorer.score(words)
        learned = {name: value.clone() for name, value in learner.state_dict().items()}
        assert any(not torch.equal(learned[name], trained[name]) for name in trained)
        scorer.save_learned(tmp_path / "learned.safetensors")
        second = scorer.score(words)
        assert second.total > first.total  # it has read them before
        scorer.undo()
        assert all(torch.equal(value, trained[name]) for name, value in learner.state_dict().items())
        assert torch.equal(scorer.score(words).log_probabilities, first.log_probabilities)
        scorer.load_learned(tmp_path / "learned.safetensors")
        assert all(torch.equal(value, learned[name]) for name, value in learner.state_dict().items())
        assert torch.equal(scorer.score(words).log_probabilities, second.log_probabilities)

    def test_a_word_is_scored_before_it_is_learned_from(
        self,
        learner: LanguageModel,
        pru: LanguageModel,
        vocabulary: Vocabulary,
        statistics: GradientStatistics,
    ):
        words = [f"word{number}" for number in (3, 9, 27, 5, 8, 4, 12)]
        adapting = Scorer(learner, vocabulary, adapt=DYNAMIC, statistics=statistics).score(words)
        fixed = Scorer(pru, vocabulary).score(words)
        close = torch.isclose(adapting.log_probabilities, fixed.log_probabilities, atol=1e-5)
        assert close.tolist() == [True] * 5 + [False] * 2

    def test_what_cannot_be(
        self, learner: LanguageModel, vocabulary: Vocabulary, statistics: GradientStatistics, tmp_path: Path
    ):
        fixed = Scorer(learner, vocabulary)
        for call in (fixed.undo, lambda: fixed.save_learned("x"), lambda: fixed.load_learned("x")):
            with pytest.raises(PRUError, match="does not learn: make it with adapt=True"):
                call()
        with pytest.raises(PRUError, match="adapt needs statistics"):
            Scorer(learner, vocabulary, adapt=DYNAMIC)
        adapting = Scorer(learner, vocabulary, adapt=DYNAMIC, statistics=statistics)
        (tmp_path / "bad.safetensors").write_bytes(b"no")
        for path in (tmp_path / "none.safetensors", tmp_path / "bad.safetensors"):
            with pytest.raises(PRUError, match="cannot read learned weights"):
                adapting.load_learned(path)
        other = Scorer(small_model("lstm"), vocabulary)
        other._adaptation = adapting._adaptation
        other.save_learned(tmp_path / "lstm.safetensors")
        with pytest.raises(PRUError, match="holds the weights of another model"):
            adapting.load_learned(tmp_path / "lstm.safetensors")


def test_nothing_to_score(pru: LanguageModel, vocabulary: Vocabulary):
    scorer = Scorer(pru, vocabulary)
    found = scorer.score([])
    assert (list(found), found.total, found.count) == ([], 0.0, 0)
    assert isinstance(found.context, Context)
    with pytest.raises(PRUError, match="must be a list of words"):
        scorer.score("word3 word4")
