"""``pru export``: folders that other programs load."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import pru, refusal


def test_hugging_face(run: Path, tmp_path: Path):
    pytest.importorskip("transformers", reason="needs the extra torch-pru[hf]")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    import torch_pru.hf  # noqa: F401

    folder = tmp_path / "exported"
    pru("export", run, folder, "--to", "hf")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat\nand golf\n")
    scores = [json.loads(line) for line in pru("score", run, text, "--format", "jsonl").splitlines()]
    ids = tokenizer(text.read_text(), return_tensors="pt").input_ids
    found = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).squeeze(1)
    assert found.tolist() == pytest.approx([each["log_probability"] for each in scores], abs=1e-5)
    expected = pru("generate", run, "--prompt", "the cat", "--temperature", 0, "--words", 12, "--raw")
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    ids = model.generate(**tokenizer("the cat", return_tensors="pt"), **settings)
    words = tokenizer.convert_ids_to_tokens(ids[0])[1:]
    assert words == expected.replace("\n", " <eos> ").split()[: len(words)]
    torch.manual_seed(0)
    (sampled,) = write("the cat ", max_new_tokens=12, do_sample=True, eos_token_id=None)
    shown = sampled["generated_text"].split()
    assert shown[:2] == ["the", "cat"]
    assert len(shown) > 2
    assert set(shown) <= set(tokenizer.get_vocab())


def test_onnx(run: Path, tmp_path: Path):
    for package in ("onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra torch-pru[onnx]")
    from torch_pru.onnx import OnnxLanguageModel

    folder = tmp_path / "exported"
    command = [sys.executable, "-m", "torch_pru", "export", str(run), str(folder), "--to", "onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""  # nothing of what PyTorch's exporter says to itself
    model = OnnxLanguageModel(folder)
    assert {path.name for path in folder.iterdir()} == {"README.md", "model.onnx", "vocabulary.txt"}
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat\nand golf\n")
    scores = [json.loads(line) for line in pru("score", run, text, "--format", "jsonl").splitlines()]
    words = model.tokenizer(text.read_text())
    tokens = model.vocabulary.encode(["<eos>", *words]).numpy()
    found, _ = model(tokens[:-1, None], model.initial_state(1))
    picked = [found[step, 0, word] for step, word in enumerate(tokens[1:])]
    assert picked == pytest.approx([each["log_probability"] for each in scores], abs=1e-5)
    pru("export", run, tmp_path / "int8", "--to", "onnx", "--int8")
    rounded, _ = OnnxLanguageModel(tmp_path / "int8")(tokens[:-1, None], model.initial_state(1))
    assert rounded == pytest.approx(found, abs=0.05)
    assert (rounded != found).any()
    assert "in 8 bits here" in (tmp_path / "int8" / "README.md").read_text()
    assert "in 8 bits here" not in (folder / "README.md").read_text()


def test_what_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert "is not known" in refusal("export", run, tmp_path / "x", "--to", "tf")
    assert "--int8 is for --to onnx" in refusal("export", run, tmp_path / "x", "--to", "hf", "--int8")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "transformers" else found(name, *rest),
    )
    message = refusal("export", run, tmp_path / "x", "--to", "hf")
    assert "--to hf needs transformers; pip install 'torch-pru[hf]'" in message
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: object())
    assert "is not an empty folder" in refusal("export", run, tmp_path / "full", "--to", "hf")
    assert not (tmp_path / "x").exists()
