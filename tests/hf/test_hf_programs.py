"""Programs of others on an exported run. They run where their packages are installed:

pip install 'torch-pru[lm,hf]' 'lm_eval[hf]'    (or minicons, or pyctcdecode; each in its own environment)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra torch-pru[hf]")

from torch_pru.hf.export import from_language_model
from torch_pru.hf.tokenization import fast_tokenizer
from torch_pru.lm import kenlm
from torch_pru.lm.config import ModelConfig, RegularizationConfig
from torch_pru.lm.data import Vocabulary
from torch_pru.lm.data.tokenizer import Tokenizer
from torch_pru.lm.model import LanguageModel
from torch_pru.lm.scoring import Scorer

pytestmark = pytest.mark.slow

SPOKEN = (
    "i have a good deal of will you remember and what i have set my mind upon "
    "no doubt i shall some day achieve"
)
"""What pyctcdecode's sample data says."""


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    """Of random weights: the programs must agree with it, whatever it says."""
    torch.manual_seed(0)
    words = Vocabulary(["<eos>", "<unk>", *dict.fromkeys(SPOKEN.split())])
    config = ModelConfig(embedding=16, hidden=(24, 16), groups=2)
    model = LanguageModel(config, RegularizationConfig(), len(words)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Scorer(model, words)


@pytest.fixture(scope="module")
def exported(scorer: Scorer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    from_language_model(scorer.model, scorer.vocabulary).save_pretrained(folder)
    fast_tokenizer(Tokenizer("spaces"), scorer.vocabulary).save_pretrained(folder)
    return folder


def test_lm_evaluation_harness(scorer: Scorer, exported: Path, tmp_path: Path):
    pytest.importorskip("lm_eval", reason="needs lm_eval[hf]")
    text = f"{SPOKEN}\n" * 100  # 2,400 words: several windows
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text}))
    task = {
        "task": "text",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "text.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    (tmp_path / "text.yaml").write_text(json.dumps(task))  # JSON is YAML
    command = [sys.executable, "-m", "torch_pru.hf.harness", "run", "--model", "pru", "--device", "cpu"]
    command += ["--model_args", f"pretrained={exported}", "--include_path", str(tmp_path), "--tasks", "text"]
    command += ["--output_path", str(tmp_path / "out"), "--log_samples"]
    subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    found, _ = json.loads(samples.read_text())["bits_per_byte"]
    assert found == pytest.approx(scorer.score(Tokenizer("spaces")(text)).total, rel=1e-6)


def test_minicons(scorer: Scorer, exported: Path):
    minicons = pytest.importorskip("minicons.scorer", reason="needs minicons")
    model = minicons.IncrementalLMScorer(str(exported), "cpu")
    ((begin, *found),) = model.token_score(SPOKEN, surprisal=True, base_two=True)
    assert begin[0] == "<eos>"  # which the tokenizer begins with
    expected = list(scorer.score(SPOKEN.split()))
    assert [word for word, _ in found] == [each.word for each in expected]
    surprisals = [each.surprisal for each in expected]
    assert [surprisal for _, surprisal in found] == pytest.approx(surprisals, abs=1e-4)


def test_pyctcdecode(scorer: Scorer):
    pyctcdecode = pytest.importorskip("pyctcdecode", reason="needs pyctcdecode")
    from pyctcdecode.language_model import AbstractLanguageModel

    class PRULanguageModel(AbstractLanguageModel):
        order = 10
        scored: list[str] = []  # noqa: RUF012

        def __init__(self) -> None:
            self.model = kenlm.Model(scorer)

        def get_start_state(self) -> kenlm.State:
            state = kenlm.State()
            self.model.BeginSentenceWrite(state)
            return state

        def score_partial_token(self, partial_token: str) -> float:
            return 0.0

        def score(self, prev_state, word, is_last_word=False):
            self.scored.append(word)
            state = kenlm.State()
            found = self.model.BaseFullScore(prev_state, word, state)
            return 0.3 * found.log_prob + (-5.0 if found.oov else 1.0), state

    sample = resources.files("pyctcdecode") / "tests" / "sample_data" / "libri_logits.json"
    logits = torch.tensor(json.loads(sample.read_text())).numpy()
    labels = [" ", *"abcdefghijklmnopqrstuvwxyz", "'", ""]
    language_model = PRULanguageModel()
    alphabet = pyctcdecode.Alphabet.build_alphabet(labels)
    decoder = pyctcdecode.BeamSearchDecoderCTC(alphabet, language_model=language_model)
    assert decoder.decode(logits) == SPOKEN
    assert set(SPOKEN.split()) <= set(language_model.scored)
