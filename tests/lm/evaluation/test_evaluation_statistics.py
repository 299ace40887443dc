"""An evaluation gathers the statistics of dynamic evaluation as they were published."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_pru.lm.data import Corpus, Vocabulary
from torch_pru.lm.evaluation import Evaluation, gradient_statistics
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.progress import no_progress_bar


@pytest.mark.parametrize(("tokens", "batch"), [(404, 100), (61, 30)])
def test_statistics_are_of_100_columns_where_the_text_has_them(
    pru: LanguageModel, train_text: Tensor, vocabulary: Vocabulary, tokens: int, batch: int
) -> None:
    text = train_text[:tokens]
    evaluation = Evaluation.__new__(Evaluation)  # without a run folder
    evaluation.model, evaluation.corpus = pru, Corpus(text, text, text, vocabulary)
    evaluation.device, evaluation.precision = torch.device("cpu"), "float32"
    evaluation.progress_bar = no_progress_bar
    expected = gradient_statistics(pru, text, batch=batch)
    found = evaluation.statistics
    assert found.segments == expected.segments
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found.rms, expected.rms, strict=True))
