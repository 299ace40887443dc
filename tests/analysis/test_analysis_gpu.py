"""The same numbers on a GPU, in seconds."""

from __future__ import annotations

import time

import pytest
import torch
from analysis_runs import model_of

from torch_pru.analysis import confidence, input_gradient, parse_sentence, saliency
from torch_pru.analysis.gradients import read_with_gradients
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.recipe import load_recipe

pytestmark = pytest.mark.gpu


def text_without_ties(model: LanguageModel, length: int = 120, lead: float = 3e-4) -> torch.Tensor:
    """A text in which the likeliest word leads at each step: where two are level, rounding chooses the label
    of the input's gradient, and two devices may rightly choose differently."""
    for seed in range(100):
        seeded = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, model.vocabulary_size, (length,), generator=seeded)
        log_p = model.log_probabilities(read_with_gradients(model, ids[:, None]).hidden[:, 0])
        first, second = log_p.topk(2).values.unbind(-1)
        if (first - second).min() > lead:
            return ids
    raise AssertionError(f"none of 100 texts has a lead of {lead} at each of {length} steps")


@pytest.mark.parametrize("kind", ["pru", "lstm"])
def test_a_gpu_gives_the_numbers_of_the_cpu(kind: str) -> None:
    vocabulary = Vocabulary(["<eos>", "<unk>", *(f"w{number}" for number in range(15))])
    cpu, gpu = model_of(kind, 17), model_of(kind, 17).cuda()
    sentence, ids = parse_sentence("w1 w2 [w3] w4"), text_without_ties(cpu)
    here, there = (saliency(model, vocabulary, sentence) for model in (cpu, gpu))
    torch.testing.assert_close(there.relevance, here.relevance, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(input_gradient(gpu, ids), input_gradient(cpu, ids), rtol=1e-2, atol=1e-4)
    assert confidence(gpu, ids).mean == pytest.approx(confidence(cpu, ids).mean, rel=1e-3)


def test_the_papers_contexts_take_seconds() -> None:
    config = load_recipe("ptb-awd-pru-g4")
    model = LanguageModel(config.model, config.regularization, 10_000).cuda().eval()
    ids = torch.randint(0, 10_000, (73_760,))
    confidence(model, ids[:400])  # compiles the kernels
    start = time.perf_counter()
    assert confidence(model, ids).contexts == 3687
    assert time.perf_counter() - start < 10
