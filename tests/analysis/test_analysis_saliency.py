"""Saliency and coverage against finite differences of a model that reads given vectors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from analysis_runs import MODELS, literal_log_softmax, model_of
from torch import Tensor

from torch_pru.analysis import gradient_coverage, input_gradient, parse_sentence, saliency
from torch_pru.analysis.saliency import PAPER, Sentence, default_sentences
from torch_pru.errors import PRUError
from torch_pru.lm.data import Vocabulary, load_corpus
from torch_pru.lm.model import LanguageModel

VOCABULARY = Vocabulary(["<eos>", "<unk>", "two", "or", "three", "weeks", "years", "ago"])
SENTENCE = parse_sentence("two or three [weeks] ago")


def log_probabilities(model: LanguageModel, vectors: Tensor) -> Tensor:
    """(T, V) after each of ``vectors`` (T, E): the layers one by one, without the embedding."""
    values = vectors[:, None]
    for layer in model.layers:
        values, _ = layer(values)
    return model.log_probabilities(values[:, 0])


def finite_differences(function, vectors: Tensor, step: float = 1e-5) -> Tensor:
    """The gradient (T, E) of ``function``, entry by entry."""
    gradient = torch.zeros_like(vectors)
    for entry in range(vectors.numel()):
        change = torch.zeros_like(vectors)
        change.view(-1)[entry] = step
        gradient.view(-1)[entry] = (function(vectors + change) - function(vectors - change)) / (2 * step)
    return gradient


def word_vectors(model: LanguageModel, ids: Tensor) -> Tensor:
    return model.embedding.weight.detach()[ids].clone()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("top1", [False, True])
def test_relevance_is_the_squared_norm_of_the_gradient(kind: str, top1: bool) -> None:
    model = model_of(kind, len(VOCABULARY), dtype=torch.float64)
    found = saliency(model, VOCABULARY, SENTENCE, top1=top1)
    ids = VOCABULARY.encode(["<eos>", *SENTENCE.words])
    with torch.no_grad():
        vectors = word_vectors(model, ids)
        log_p = log_probabilities(model, vectors)[3]
        word = int(log_p.argmax()) if top1 else int(ids[4])
        gradient = finite_differences(lambda x: log_probabilities(model, x)[3, word], vectors)
    assert found.explained == VOCABULARY.word(word)
    slow = [sum(entry**2 for entry in row) for row in gradient.tolist()]
    torch.testing.assert_close(found.relevance, slow, rtol=1e-5, atol=1e-12)
    assert min(found.relevance[:4]) > 0


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_from_the_predicted_word_on_is_relevant(kind: str) -> None:
    found = saliency(model_of(kind, len(VOCABULARY)), VOCABULARY, SENTENCE)
    assert found.words == ["<eos>", "two", "or", "three", "weeks", "ago"]
    assert found.words[found.predicted] == found.reference == "weeks"
    assert found.relevance[found.predicted :] == [0.0, 0.0]


@pytest.mark.parametrize("kind", MODELS)
def test_a_caller_without_gradients_has_the_same_numbers(kind: str) -> None:
    model, ids = model_of(kind, len(VOCABULARY)), torch.arange(7)
    expected = saliency(model, VOCABULARY, SENTENCE), gradient_coverage(model, ids)
    with torch.no_grad():
        assert (saliency(model, VOCABULARY, SENTENCE), gradient_coverage(model, ids)) == expected
        assert not torch.is_grad_enabled()


def test_guesses_are_the_likeliest_words() -> None:
    model = model_of("lstm", len(VOCABULARY), dtype=torch.float64)
    found = saliency(model, VOCABULARY, SENTENCE)
    ids = VOCABULARY.encode(["<eos>", *SENTENCE.words])
    with torch.no_grad():
        output = model.hidden(ids[:, None], model.initial_state(1)).raw[3, 0]
        logits = (model.embedding.weight @ output + model.decoder.bias).tolist()
    log_p = literal_log_softmax(logits)
    ranked = sorted(range(len(log_p)), key=lambda word: -log_p[word])[:5]
    assert [guess.word for guess in found.guesses] == [VOCABULARY.word(word) for word in ranked]
    expected = torch.tensor([log_p[word] for word in ranked]).exp().tolist()
    torch.testing.assert_close([guess.probability for guess in found.guesses], expected, rtol=1e-5, atol=0)
    assert found.probability == pytest.approx(torch.tensor(log_p[5]).exp().item(), rel=1e-5)


def test_gradients_leave_no_trace() -> None:
    model = model_of("lstm", len(VOCABULARY)).train()
    saliency(model, VOCABULARY, SENTENCE)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.layers[0]._forward_pre_hooks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two or three weeks", Sentence(("two", "or", "three", "weeks"), 3)),
        ("cost about [$] N", Sentence(("cost", "about", "$", "N"), 2)),
        ("be [light], and", Sentence(("be", "light", ",", "and"), 1)),
        ("[the]", Sentence(("the",), 0)),
        ("[ ] [light]", Sentence(("[", "]", "light"), 2)),
    ],
)
def test_sentences_as_typed(text: str, expected: Sentence) -> None:
    assert parse_sentence(text) == expected


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_sentence_is_refused(text: str) -> None:
    with pytest.raises(PRUError, match="is empty"):
        parse_sentence(text)


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("the [old dog] sees", "'[old'"),
        ("the [old dog", "'[old'"),
        ("the old] dog", "'old]'"),
        ("the [] dog", "'[]'"),
        ("the ([old]) dog", "'([old])'"),
        ("the [old][dog]", "'[old][dog]'"),
    ],
)
def test_brackets_that_hold_no_single_word_are_refused(text: str, piece: str) -> None:
    with pytest.raises(PRUError, match=re.escape(f"has {piece}; put one whole word in brackets")):
        parse_sentence(text)


def test_two_marked_words_are_refused() -> None:
    with pytest.raises(PRUError, match="2 words in brackets"):
        parse_sentence("[two] or [three]")


@pytest.mark.parametrize("text", ["golf balls", "<unk> golf [<unk>]"])
def test_a_sentence_of_unknown_words_is_refused(text: str) -> None:
    with pytest.raises(PRUError, match="no word that the model knows"):
        saliency(model_of("pru", len(VOCABULARY)), VOCABULARY, parse_sentence(text))


def test_the_papers_sentences_stand_in_ptb(data_folder: Path) -> None:
    text = (data_folder / "penn" / "valid.txt").read_text()
    vocabulary = load_corpus("ptb", data_root=data_folder).vocabulary
    sentences = default_sentences(vocabulary, [])
    assert [sentence.words[sentence.predicted] for sentence in sentences] == [
        *("san", "$", "weeks", "billion", "year")
    ]
    for sentence in sentences:
        assert f"\n {' '.join(sentence.words)} " in text


def test_other_corpora_show_sentences_of_their_own() -> None:
    short, long = ["the", "end", "."], ["and", "the", "old", "man", "sees", "the", "river", "and", "it", "."]
    (sentence,) = default_sentences(Vocabulary(dict.fromkeys(short + long)), [short, long])
    assert sentence == Sentence(tuple(long), 8)
    assert len(PAPER) == 5


@pytest.mark.parametrize(
    ("words", "predicted"),
    [
        ("w1 w2 w3 w4 w5 w6 w7 w8", 7),
        ("w1 w2 w3 w4 w5 w6 ##w7 <unk>", 6),
        ("w1 w2 w3 word w5 w6 w7 .", 3),
    ],
)
def test_words_need_not_be_of_letters(words: str, predicted: int) -> None:
    sentence = words.split()
    assert default_sentences(Vocabulary(sentence), [sentence]) == [Sentence(tuple(sentence), predicted)]


@pytest.mark.parametrize("text", ["the end .", "<unk> " * 9])
def test_a_text_without_a_sentence_to_show(text: str) -> None:
    words = text.split()
    with pytest.raises(PRUError, match="give one: --sentence"):
        default_sentences(Vocabulary(dict.fromkeys(words)), [words])


@pytest.mark.parametrize("kind", MODELS)
def test_coverage_is_the_gradient_of_the_loss_of_the_first_guesses(kind: str) -> None:
    model, ids = model_of(kind, 9, dtype=torch.float64), torch.arange(7)
    with torch.no_grad():
        vectors = word_vectors(model, ids)
        labels = log_probabilities(model, vectors).argmax(-1)
        slow = finite_differences(
            lambda x: -sum(log_probabilities(model, x)[step, label] for step, label in enumerate(labels)) / 7,
            vectors,
        )
    torch.testing.assert_close(input_gradient(model, ids), slow, rtol=1e-5, atol=1e-10)
    found = gradient_coverage(model, torch.arange(9), length=7)
    entries = slow.abs().flatten().tolist()
    assert found.largest == pytest.approx(max(entries))
    assert found.share == sum(entry > max(entries) / 10 for entry in entries) / len(entries)
    torch.testing.assert_close(torch.tensor(found.gradient).double(), slow, rtol=1e-4, atol=1e-10)
    assert found.shares[-1] == 0
    assert found.shares == sorted(found.shares, reverse=True)
