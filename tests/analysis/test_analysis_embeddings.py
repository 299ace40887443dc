"""Variances against sums written out, and the pyramid against Eq. 3."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from analysis_runs import model_of

from torch_pru.analysis import embedding_variance, majority_tags, speech
from torch_pru.analysis.speech import sentences_of
from torch_pru.errors import PRUError
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary, load_corpus
from torch_pru.lm.model import LanguageModel

TAGS = {"dog": "NOUN", "cat": "NOUN", "runs": "VERB", "man": "NOUN", "sees": "VERB", "the": "DET"}


def literal_variance(vectors: list[list[float]]) -> float:
    """Mean squared Euclidean distance to the mean."""
    mean = [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]
    distances = [sum((x - m) ** 2 for x, m in zip(vector, mean, strict=True)) for vector in vectors]
    return sum(distances) / len(vectors)


def literal_level(vector: list[float]) -> list[float]:
    """Every second mean of three neighbors, zeros beyond the ends."""
    padded = [0.0, *vector, 0.0]
    return [sum(padded[at : at + 3]) / 3 for at in range(0, len(vector), 2)]


@pytest.mark.parametrize(("kind", "levels"), [("pru", 2), ("deep", 3), ("flat", 1), ("lstm", 1)])
def test_variances_of_every_level(kind: str, levels: int) -> None:
    vocabulary = Vocabulary(["<eos>", *TAGS])
    model = model_of(kind, len(vocabulary))
    found = embedding_variance(model, vocabulary, TAGS)
    assert found.pyramid == (levels > 1)
    assert [level.dimensions for level in found.levels] == [8, 4, 2][:levels]
    assert found.words == {"NOUN": 3, "VERB": 2}
    for tag in found.words:
        words = [word for word, own in TAGS.items() if own == tag]
        vectors = model.embedding.weight[vocabulary.encode(words)].tolist()
        for level in found.levels:
            slow = literal_variance(vectors)
            assert level.variances[tag].total == pytest.approx(slow, rel=1e-5)
            assert level.variances[tag].per_dimension == pytest.approx(slow / len(vectors[0]), rel=1e-5)
            vectors = [literal_level(vector) for vector in vectors]


def test_the_control_has_the_scale_of_each_dimension() -> None:
    """Of random vectors the total is the sum of the dimensions' variances, a category's n - 1 n-th of it."""
    words = [f"w{number}" for number in range(2000)]
    vocabulary = Vocabulary(words)
    model = model_of("deep", len(words))
    with torch.no_grad():
        model.embedding.weight.mul_(torch.linspace(0.1, 3, 8))
    found = embedding_variance(model, vocabulary, dict.fromkeys(words, "NOUN"))
    weight = model.embedding.weight.double()
    assert found.levels[0].variances["NOUN"].control == pytest.approx(weight.var(0).sum().item(), rel=0.02)
    # Independent dimensions: a mean of three has a ninth of the three variances, zeros beyond the ends.
    scales = [0.0, *weight.var(0).tolist(), 0.0]
    expected = sum(sum(scales[at : at + 3]) / 9 for at in range(0, 8, 2))
    assert found.levels[1].variances["NOUN"].control == pytest.approx(expected, rel=0.02)


def test_the_control_has_the_mean_of_each_dimension() -> None:
    """Where every second dimension is far above its neighbors, the maxima are those dimensions."""
    words = [f"w{number}" for number in range(2000)]
    config = ModelConfig(embedding=8, hidden=(8,), levels=2, pooling="max")
    model = LanguageModel(config, RegularizationConfig(), len(words))
    with torch.no_grad():
        model.embedding.weight.normal_(generator=torch.Generator().manual_seed(1))
        model.embedding.weight[:, ::2] += 100
    found = embedding_variance(model, Vocabulary(words), dict.fromkeys(words, "NOUN"))
    expected = model.embedding.weight[:, ::2].double().var(0).sum().item()
    assert found.levels[1].variances["NOUN"].control == pytest.approx(expected, rel=0.02)


def test_the_control_is_a_mean_of_ten_draws() -> None:
    """Two words differ in 8 dimensions: a draw deviates by a half of its mean, ten by a sixth of it."""
    tags = {"dog": "NOUN", "cat": "NOUN"}
    model = model_of("lstm", 2)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.tensor([[1.0], [-1.0]]).expand(2, 8))
    found = [embedding_variance(model, Vocabulary(tags), tags, seed=seed) for seed in range(60)]
    controls = torch.tensor([one.levels[0].variances["NOUN"].control for one in found])
    assert 0.1 < (controls.std() / controls.mean()).item() < 0.25


def test_the_control_is_reproducible() -> None:
    vocabulary = Vocabulary(TAGS)
    model = model_of("pru", len(vocabulary))
    assert embedding_variance(model, vocabulary, TAGS) == embedding_variance(model, vocabulary, TAGS)


def test_categories_of_one_word_alone_are_refused() -> None:
    with pytest.raises(PRUError, match="no category with two or more words"):
        embedding_variance(model_of("pru", 1), Vocabulary(["dog"]), {"dog": "NOUN"})


@pytest.mark.usefixtures("tagger")
def test_each_word_has_its_majority_tag(corpus: Path) -> None:
    text = load_corpus(str(corpus))
    done: list[tuple[int, int]] = []
    tags = majority_tags(sentences_of(text.valid, text.vocabulary), progress=lambda *step: done.append(step))
    assert tags["the"] == "DET"
    assert tags["dog"] == tags["house"] == "NOUN"
    assert tags["sees"] == "VERB"
    assert not {"<unk>", "<eos>"} & set(tags)
    assert done[-1] == (41, 41)


def test_the_most_frequent_tag_wins_and_of_equals_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tagger:
        @staticmethod
        def pos_tag_sents(block: list[list[str]], tagset: str) -> list[list[tuple[str, str]]]:
            return [[(word.partition("/")[0], word.partition("/")[2]) for word in words] for words in block]

    monkeypatch.setattr(speech, "load_tagger", Tagger)
    text = [["run/VERB", "run/NOUN", "old/ADJ"], ["run/NOUN", "old/NOUN", "<unk>/NOUN"]]
    assert majority_tags(text) == {"run": "NOUN", "old": "ADJ"}


def test_without_tagger_data_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")

    def missing(*_: object, **__: object) -> None:
        raise LookupError("averaged_perceptron_tagger_eng not found")

    monkeypatch.setattr(nltk, "pos_tag", missing)
    with pytest.raises(PRUError, match=r"nltk\.downloader averaged_perceptron_tagger_eng.*NLTK_DATA"):
        majority_tags([["dog"]])


def test_without_nltk_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(PRUError, match=r"torch-pru\[analysis\]"):
        majority_tags([["dog"]])
