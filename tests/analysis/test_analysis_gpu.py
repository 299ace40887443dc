"""The same numbers on a GPU, in seconds."""

from __future__ import annotations

import time

import pytest
import torch
from analysis_runs import model_of

from torch_pru.analysis import confidence, input_gradient, parse_sentence, saliency
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.recipe import load_recipe

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["pru", "lstm"])
def test_a_gpu_gives_the_numbers_of_the_cpu(kind: str) -> None:
    vocabulary = Vocabulary(["<eos>", "<unk>", *(f"w{number}" for number in range(15))])
    sentence, ids = parse_sentence("w1 w2 [w3] w4"), torch.randint(0, 17, (120,))
    cpu, gpu = model_of(kind, 17), model_of(kind, 17).cuda()
    here, there = (saliency(model, vocabulary, sentence) for model in (cpu, gpu))
    torch.testing.assert_close(there.relevance, here.relevance, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(input_gradient(gpu, ids), input_gradient(cpu, ids), rtol=1e-2, atol=1e-4)
    assert confidence(gpu, ids).mean == pytest.approx(confidence(cpu, ids).mean, rel=1e-3)


def test_the_papers_contexts_take_seconds() -> None:
    config = load_recipe("ptb-awd-pru-g4")
    model = LanguageModel(config.model, config.regularisation, 10_000).cuda().eval()
    ids = torch.randint(0, 10_000, (73_760,))
    confidence(model, ids[:400])  # compiles the kernels
    start = time.perf_counter()
    assert confidence(model, ids).contexts == 3687
    assert time.perf_counter() - start < 10
