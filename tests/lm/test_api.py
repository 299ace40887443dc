"""``from torch_pru.lm import ...``: the functions for everyday use."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from torch_pru import PRUError, lm
from torch_pru.lm import evaluate, finetune, generate, load, load_recipe, resume, train
from torch_pru.lm import evaluation as evaluation_package
from torch_pru.lm.evaluation.scores import load_scores

SETTINGS = {
    "embedding": "8",
    "hidden": "[12, 8]",
    "levels": "2",
    "groups": "2",
    "batch": "4",
    "window": "10",
    "epochs": "2",
    "valid_batch": "2",
    "device": "cpu",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    for split, count in (("train", 60), ("valid", 12), ("test", 12)):
        lines = [" ".join(f"w{(number * step) % 9}" for step in range(8)) for number in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    config = load_recipe("ptb-awd-pru-g4", SETTINGS | {"corpus": str(folder)})
    return train(config, folder / "run").path


def test_a_run_is_loaded_with_its_best_or_its_last_weights(run: Path) -> None:
    model = load(run, device="cpu")
    assert not model.training
    expected = lm.RunFolder.open(run).checkpoint()
    assert expected is not None
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected.best[name])
    for name, value in load(run, "last", device="cpu").state_dict().items():
        assert torch.equal(value, expected.weights[name])


def test_scores_are_those_of_the_functions_below_and_are_recorded(run: Path) -> None:
    found = evaluate(run, "valid", ("static", "dynamic", "cache"), device="cpu")
    corpus, model = lm.RunFolder.open(run).corpus(), load(run, device="cpu")
    assert found["static"]["nll"] == evaluation_package.score(model, corpus.valid).nll
    assert found["cache"]["nll"] == evaluation_package.score_cache(model, corpus.valid).nll
    assert found["dynamic"]["tokens"] == len(corpus.valid) - 1
    recorded = load_scores(run)
    assert recorded is not None
    for method, entry in found.items():
        assert recorded.perplexity(method, "valid") == entry["perplexity"]
    with pytest.raises(PRUError, match="split"):
        evaluate(run, "tset", device="cpu")


def test_text_continues_the_prompt(run: Path) -> None:
    words = list(generate(run, "w1 w2", words=12, seed=3, device="cpu"))
    assert len(words) == 12
    assert words == list(generate(run, "w1 w2", words=12, seed=3, device="cpu"))
    vocabulary = lm.RunFolder.open(run).vocabulary
    below = evaluation_package.generate(load(run, device="cpu"), vocabulary, ["w1", "w2"], seed=3)
    assert words == list(islice(below, 12))


def test_a_finished_run_is_resumed_and_finetuned(run: Path) -> None:
    before = lm.RunFolder.open(run).metrics()
    assert resume(run).metrics() == before
    assert finetune(run, run.parent / "second").stage == "finetune"


def test_unknown_names_raise_and_known_ones_are_listed() -> None:
    assert {"train", "resume", "finetune", "load", "evaluate", "generate"} <= set(dir(lm))
    with pytest.raises(AttributeError, match="'evalute'"):
        lm.evalute  # noqa: B018


def test_importing_the_package_is_light() -> None:
    code = "import torch_pru.lm, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"tensorboard", "torch_pru.lm.training", "torch_pru.lm.model"} & set(modules.stdout.split())
