"""A run on subwords: every command."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pytest
from command import pru, refusal, write_recipe

pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra torch-pru[lm]")

TEXT = "the cat sat on a mat\nand golf, naïve\n"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("subwords"), epochs=2)


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    out = recipe.parent / "runs"
    pru("train", recipe, "--out", out, "--set", "tokenizer=bpe:300", "--name", "subwords")
    return out / "subwords"


@pytest.fixture(scope="module")
def text(recipe: Path) -> Path:
    path = recipe.parent / "text.txt"
    path.write_text(TEXT)
    return path


def scores_of(run: Path, text: Path, *options: str) -> list[dict]:
    return [json.loads(line) for line in pru("score", run, text, "--format", "jsonl", *options).splitlines()]


def test_scores_agree(run: Path, text: Path):
    found = json.loads(pru("evaluate", run, "--text", text, "--json"))["static"]
    tokens = scores_of(run, text, "--no-bos")
    total = sum(each["log_probability"] for each in tokens[1:])
    assert total == pytest.approx(-found["nll"] * found["tokens"], rel=1e-6)
    first = len(tokens[0]["token"].encode())
    assert found["bytes"] == len(TEXT.encode()) - first
    assert found["words"] == len(TEXT.split()) + 2 - 1
    assert found["word_perplexity"] == pytest.approx(math.exp(-total / found["words"]), rel=1e-6)
    assert found["byte_perplexity"] == pytest.approx(math.exp(-total / found["bytes"]), rel=1e-6)
    words = scores_of(run, text, "--per", "word")
    assert [each["word"] for each in words] == TEXT.replace("\n", " <eos> ").split()
    assert sum(each["log_probability"] for each in words) == pytest.approx(
        sum(each["log_probability"] for each in scores_of(run, text)), rel=1e-6
    )
    assert "per word" in pru("evaluate", run, "--split", "test")


def test_text_and_resuming(run: Path, recipe: Path):
    shown = pru("generate", run, "--prompt", "the cat", "--words", 12, "--seed", 1)
    assert shown.startswith("the cat")
    assert "Ġ" not in shown
    assert re.search(r"^tokenizer\.json +ok ", pru("verify", run), flags=re.M)
    pru("resume", run)
    pru("train", recipe, "--out", run.parent, "--set", f"tokenizer={run / 'tokenizer.json'}", "--name", "b")
    assert (run.parent / "b" / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()


def test_runs_with_other_tokens_are_compared_by_words(run: Path, recipe: Path):
    pru("train", recipe, "--out", run.parent, "--name", "words")
    other = run.parent / "words"
    for each in (run, other):
        pru("evaluate", each, "--split", "test")
    assert "test per word" in pru("report", run, other)
    found = json.loads(pru("compare", run, "--against", other, "--json"))
    (first,), (second,) = found["runs"], found["against"]
    assert first["tokens"] > second["tokens"]
    assert first["words"] == second["words"] == second["tokens"]
    assert found["difference"] == pytest.approx(first["word_perplexity"] - second["word_perplexity"])
    assert second["perplexity"] == pytest.approx(second["word_perplexity"], rel=1e-9)


def test_figures(run: Path, tmp_path: Path):
    pru("analyze", run, "--out", tmp_path, "--only", "confidence", "--only", "coverage", "--only", "curves")
    assert (tmp_path / "confidence.svg").exists()


def test_hugging_face(run: Path, text: Path, tmp_path: Path):
    pytest.importorskip("transformers", reason="needs the extra torch-pru[hf]")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import torch_pru.hf  # noqa: F401

    pru("export", run, tmp_path / "hf", "--to", "hf")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours, theirs = (json.loads((folder / "tokenizer.json").read_text()) for folder in (run, tmp_path / "hf"))
    assert theirs == ours
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0, 1:]) == TEXT.replace("\n", "<eos>")
    found = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).squeeze(1)
    expected = [each["log_probability"] for each in scores_of(run, text)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_onnx(run: Path, text: Path, tmp_path: Path):
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra torch-pru[onnx]")
    from torch_pru.onnx import OnnxLanguageModel

    pru("export", run, tmp_path / "onnx", "--to", "onnx")
    model = OnnxLanguageModel(tmp_path / "onnx")
    tokens = model.vocabulary.encode(["<eos>", *model.tokenizer(TEXT)]).numpy()
    found, _ = model(tokens[:-1, None], model.initial_state(1))
    picked = [found[step, 0, word] for step, word in enumerate(tokens[1:])]
    expected = [each["log_probability"] for each in scores_of(run, text)]
    assert picked == pytest.approx(expected, abs=1e-5)
    (tmp_path / "onnx" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*tokenizer.json"):
        OnnxLanguageModel(tmp_path / "onnx")


def test_what_is_refused(run: Path, text: Path, tmp_path: Path):
    import shutil

    from torch_pru.lm import kenlm

    with pytest.raises(ValueError, match="kenlm's interface scores words"):
        kenlm.Model(str(run)).score("the cat")
    copied = Path(shutil.copytree(run, tmp_path / "copied"))
    path = copied / "tokenizer.json"
    path.write_bytes(path.read_bytes() + b" ")
    assert "tokenizer.json has changed since the run began" in refusal("score", copied, text)
    content = json.loads(path.read_text())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed"}
    path.write_text(json.dumps(content))
    about = json.loads((copied / "run.json").read_text())
    about["files"]["tokenizer.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
    del about["sha256"]
    (copied / "run.json").write_text(json.dumps(about))
    assert "is not the file of a byte-level BPE" in refusal("score", copied, text)
