"""Entropies against a loop that reads one word after the other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from analysis_runs import MODELS, model_of

from torch_pru.analysis import confidence, next_word_entropies
from torch_pru.errors import PRUError
from torch_pru.lm.data import load_corpus

WORDS = 17


def literal_entropies(model, ids) -> list[float]:
    """-sum p ln p after each word, word by word, in Python's floats."""
    found = []
    state = model.initial_state(1)
    with torch.no_grad():
        for word in ids[:-1]:
            hidden = model.hidden(word.view(1, 1), state)
            state = hidden.state
            probabilities = model.log_probabilities(hidden.raw[0, 0]).double().exp().tolist()
            found.append(-sum(p * math.log(p) for p in probabilities))
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_entropies_are_those_of_the_literal_loop(kind: str) -> None:
    model, ids = model_of(kind, WORDS), torch.randint(0, WORDS, (40,))
    entropies, losses = next_word_entropies(model, ids, window=7)
    torch.testing.assert_close(entropies.tolist(), literal_entropies(model, ids), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        hidden = model.hidden(ids[:-1, None], model.initial_state(1)).raw[:, 0]
        torch.testing.assert_close(losses.float(), model.nll(hidden, ids[1:]), rtol=1e-5, atol=1e-5)


def test_histogram_counts_the_contexts_of_one_column() -> None:
    model, ids = model_of("pru", WORDS), torch.randint(0, WORDS, (205,))
    found = confidence(model, ids, batch=4)
    entropies = literal_entropies(model, ids[:51])  # 205 // 4 rows of the first column
    assert found.contexts == sum(found.counts) == 50
    assert found.mean == pytest.approx(sum(entropies) / 50, rel=1e-5)
    with torch.no_grad():
        hidden = model.hidden(ids[:50, None], model.initial_state(1)).raw[:, 0]
        assert found.loss == pytest.approx(model.nll(hidden, ids[1:51]).sum().item() / 50, rel=1e-5)
    assert len(found.counts) == 40
    assert found.edges[0] == 0
    assert found.edges[-1] == pytest.approx(math.log(WORDS))
    slow = [0] * 40
    for entropy in entropies:
        slow[min(39, int(entropy / math.log(WORDS) * 40))] += 1
    assert found.counts == slow


def test_even_distributions_fall_into_the_last_bin() -> None:
    model = model_of("lstm", WORDS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = confidence(model, torch.arange(16), batch=2)
    assert found.counts == [0] * 39 + [7]
    assert found.mean == pytest.approx(math.log(WORDS)) == found.loss


def test_the_default_contexts_of_ptb_are_the_papers(data_folder: Path) -> None:
    ids = load_corpus("ptb", data_root=data_folder).valid
    found = confidence(model_of("pru", 10_000), ids)
    assert found.contexts == sum(found.counts) == 3687
    assert found.edges[1] == pytest.approx(0.23, abs=0.0005)


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(PRUError, match="too large for a text of 10 tokens"):
        confidence(model_of("pru", WORDS), torch.arange(10))
