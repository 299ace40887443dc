"""What commands write is whole, is of the weights it says, and is nobody else's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from datetime import datetime
from pathlib import Path

import pytest
import torch
from command import invoke, pru, refusal, write_corpus

from torch_pru import PRUError
from torch_pru.cli.train import new_folders
from torch_pru.lm.evaluation.scores import load_log_probabilities, load_scores
from torch_pru.lm.records import keep, read_compact
from torch_pru.lm.run import RunFolder
from torch_pru.lm.verify import accept


def test_sixteen_bits_do_not_replace_a_score_in_float32(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    pru("evaluate", copy, "--precision", "bfloat16")
    assert "bfloat16" in (copy / "scores.json").read_text()
    pru("evaluate", copy)
    before = json.loads((copy / "scores.json").read_text())
    assert before["results"]["static"]["valid"]["precision"] == "float32"
    _, _, said = invoke("evaluate", copy, "--precision", "bfloat16")
    assert "valid: not recorded in bfloat16; the run keeps its score in float32" in said
    after = json.loads((copy / "scores.json").read_text())
    assert after["results"] == before["results"]
    assert [one["kept"] for one in after["history"]] == [True, True, False]


def test_the_history_of_scores_is_only_added_to(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    pru("evaluate", copy)
    pru("evaluate", copy, "--split", "test", "--cache")
    first = json.loads((copy / "scores.json").read_text())
    assert [(one["split"], one["method"]) for one in first["history"]] == [
        ("valid", "static"),
        ("test", "static"),
        ("test", "cache"),
    ]
    for one in first["history"]:
        assert one["weights"] == first["weights"]
        assert one["perplexity"] == first["results"][one["method"]][one["split"]]["perplexity"]
        assert datetime.fromisoformat(one["time"]).tzinfo is not None
        assert "commit" in one
        content = (copy / one["log_probabilities"]["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == one["log_probabilities"]["sha256"]
    assert first["history"][2]["settings"]["window"] == 500
    RunFolder.open(copy).forget_scores()  # as training does before it changes the weights
    forgotten = load_scores(copy)
    assert forgotten is not None
    assert (forgotten.weights, forgotten.results, forgotten.history) == ("", {}, first["history"])
    pru("evaluate", copy)
    again = json.loads((copy / "scores.json").read_text())
    assert again["history"][:3] == first["history"]
    assert len(again["history"]) == 4
    assert list(again["results"]) == ["static"]


def test_log_probabilities_belong_to_the_score(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    assert load_log_probabilities(copy, "valid") is None
    pru("evaluate", copy, "--dynamic")
    for method in ("static", "dynamic"):
        found = load_log_probabilities(copy, "valid", method)
        scores = load_scores(copy)
        assert found is not None
        assert scores is not None
        entry = scores.results[method]["valid"]
        assert len(found) == entry["tokens"]
        assert float(-found.double().mean()) == pytest.approx(entry["nll"], abs=1e-3)  # float16
    kept = keep(copy, tmp_path / "kept")
    again = load_log_probabilities(kept, "valid", "dynamic")
    assert again is not None
    assert torch.equal(again, found)
    (copy / "logprobs-valid-static.npz").write_bytes((copy / "logprobs-valid-dynamic.npz").read_bytes())
    with pytest.raises(PRUError, match=r"logprobs-valid-static\.npz does not match its checksum in scores"):
        load_log_probabilities(copy, "valid")
    (copy / "logprobs-valid-static.npz").unlink()
    assert load_log_probabilities(copy, "valid") is None


def test_what_is_kept_never_lands_on_its_source(run: Path, tmp_path: Path) -> None:
    metrics = (run / "metrics.jsonl").read_bytes()
    assert "choose another folder" in refusal("report", run, "--keep", run.parent)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    twin = shutil.copytree(run, tmp_path / "other" / run.name)
    errors = refusal("report", run, twin, "--keep", tmp_path / "kept")
    assert "several runs are named tiny-1" in errors
    assert not (tmp_path / "kept").exists()


def test_finetuning_that_betters_nothing_says_so(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    shown = pru("finetune", copy, "--set", "learning_rate=20", "--set", "epochs=1", "--set", "clip=1")
    source = json.loads((copy / "metrics.jsonl").read_text().splitlines()[-1])["best_valid_loss"]
    assert "(before the first epoch)" in shown
    lines = (tmp_path / "copy-finetuned" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["best_valid_loss"] == pytest.approx(source, abs=1e-6)


def test_a_folder_is_taken_at_once(tmp_path: Path) -> None:
    found: list[Path] = []

    def take() -> None:
        with new_folders(tmp_path / "runs", ["a", "a"]) as folders:
            (folders[0] / "run.json").touch()
            found.extend(folders)
            together.wait()

    together = threading.Barrier(4)
    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in found) == [f"a-{number}" for number in range(1, 9)]
    assert len(list((tmp_path / "runs").iterdir())) == 4  # those without a run are gone


def test_a_mistake_leaves_no_folder(recipe: Path, tmp_path: Path) -> None:
    refusal("train", recipe, "--set", "corpus=nowhere", "--out", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_corpus_that_is_not_there_is_found_before_the_first_run(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text()
    (tmp_path / "good.toml").write_text(text)
    (tmp_path / "bad.toml").write_text(text.replace(str(recipe.parent / "corpus"), "nowhere"))
    errors = refusal("train", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path / "runs")
    assert "there is no corpus 'nowhere'" in errors
    assert not (tmp_path / "runs").exists()


def test_a_batch_that_cannot_be_is_found_before_the_first_run(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text()
    (tmp_path / "good.toml").write_text(text)
    for wrong in ("batch = 9000", "batch = 8\nvalid_batch = 9000"):
        (tmp_path / "bad.toml").write_text(text.replace("batch = 8", wrong))
        errors = refusal("train", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path / "runs")
        assert errors.startswith("pru: error: bad: ")
        assert f"{wrong.split()[-3]}=9000" in errors
        assert not (tmp_path / "runs").exists()


def test_data_that_is_not_there_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path))
    errors = refusal("train", "ptb-pru-g4", "--seeds", 3, "--out", tmp_path / "runs")
    assert len(errors.splitlines()) == 1
    assert errors.count("is not at") == 1


def test_finetuning_twice_says_what_can_be_done(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    second = shutil.copytree(run, tmp_path / "copy-finetuned")
    assert f"continue it (pru resume {second}) or move it away" in refusal("finetune", copy)


@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_device_of_no_use(command: str, run: Path) -> None:
    assert "--device meta is not known; use " in refusal(command, run, "--device", "meta")


def test_a_model_that_cannot_be_has_the_name_of_its_recipe(recipe: Path, tmp_path: Path) -> None:
    text = recipe.read_text()
    (tmp_path / "good.toml").write_text(text)
    (tmp_path / "bad.toml").write_text(text.replace("hidden = [8]", "hidden = [8]\nlevels = 4"))
    assert "bad: " in refusal("train", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path)


@pytest.mark.parametrize("name", ["😀 é", "a\x7fb", 'quote"d'])
def test_a_corpus_of_any_name(name: str, recipe: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / name)
    out = tmp_path / "runs"
    pru("train", recipe, "--set", f"corpus={corpus}", "--set", "epochs=1", "--out", out)
    assert pru("evaluate", out / "tiny-1")


@pytest.mark.skipif(os.name != "posix", reason="pipes with a name")
def test_a_pipe_is_read(run: Path, tmp_path: Path) -> None:
    text = "the cat saw a zebra\n" * 50
    (tmp_path / "a.txt").write_text(text)
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(text,))
    writer.start()
    piped = json.loads(pru("evaluate", run, "--text", tmp_path / "pipe", "--json"))
    writer.join()
    filed = json.loads(pru("evaluate", run, "--text", tmp_path / "a.txt", "--json"))
    assert piped["static"]["nll"] == filed["static"]["nll"]
    assert piped["unknown_tokens"] == 50


def test_dynamic_evaluation_after_a_very_short_training_text(recipe: Path, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    lines = (corpus / "train.txt").read_text().splitlines()
    (corpus / "train.txt").write_text("\n".join([*lines[:16], "<unk>"]) + "\n")
    settings = ["--set", f"corpus={corpus}", "--set", "batch=2", "--set", "epochs=1"]
    pru("train", recipe, *settings, "--out", tmp_path / "runs")
    assert "dynamic" in pru("evaluate", tmp_path / "runs" / "tiny-1", "--dynamic")


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_seeds_that_are_none(seed: str, recipe: Path, run: Path, tmp_path: Path) -> None:
    assert "seed" in refusal("train", recipe, "--seed", seed, "--out", tmp_path / "none")
    assert "seed" in refusal("generate", run, "--seed", seed)


def test_a_temperature_near_zero_takes_the_likeliest(run: Path) -> None:
    likeliest = pru("generate", run, "--temperature", 0, "--words", 8)
    assert pru("generate", run, "--temperature", "1e-320", "--words", 8) == likeliest


def test_weights_of_another_model_are_told_of_in_short(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    text = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(text.replace("hidden = [8]", f"hidden = {[8] * 40}"))
    accept(copy)
    errors = refusal("generate", copy)
    assert "does not fit the run's config.toml and vocabulary.txt: weights lacks 'layers.1." in errors
    assert len(errors) < 500


def test_the_runs_of_a_folder_are_kept_in_one_file(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "runs" / "sweep" / "one")
    shutil.copytree(run, tmp_path / "runs" / "two")
    pru("report", tmp_path / "runs", "--keep", tmp_path / "kept.jsonl")
    assert [record.name for record in read_compact(tmp_path / "kept.jsonl")] == ["one", "two"]
    assert pru("report", tmp_path / "runs", tmp_path / "runs" / "two").count("| two") == 1
    errors = refusal("report", tmp_path / "missing.jsonl")
    assert "missing.jsonl" in errors
    assert "No such file" in errors
    assert "PRUError" not in errors
