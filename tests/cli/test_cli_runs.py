"""The commands on a real run: a tiny model on a tiny text."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import invoke, pru, refusal, write_recipe

from torch_pru.lm.evaluation import tune
from torch_pru.lm.verify import accept


def test_evaluate_keeps_the_scores_of_a_split(run: Path) -> None:
    shown = json.loads(pru("evaluate", run, "--json"))
    table = pru("evaluate", run, "--split", "test")
    kept = json.loads((run / "scores.json").read_text())["results"]["static"]
    assert kept["valid"]["perplexity"] == shown["static"]["perplexity"]
    assert f"{kept['test']['perplexity']:.2f}" in table
    tokens = len((run.parents[1] / "corpus" / "test.txt").read_text().replace("\n", " <eos> ").split())
    assert kept["test"]["tokens"] == tokens - 1


def test_a_larger_batch_or_another_text_is_not_kept(run: Path, tmp_path: Path) -> None:
    assert invoke("evaluate", run)[2] == ""
    before = (run / "scores.json").read_text()
    _, _, said = invoke("evaluate", run, "--batch", 4)
    assert said.splitlines()[-1] == "not recorded: only scores with --batch 1 are recorded"
    (tmp_path / "a.txt").write_text("the cat saw a zebra\n")
    shown = json.loads(pru("evaluate", run, "--text", tmp_path / "a.txt", "--json"))
    assert shown["static"]["tokens"] == 5  # five words and <eos>; the first is not predicted
    assert (run / "scores.json").read_text() == before


def test_words_of_a_text_that_are_unknown_are_counted(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("the cat saw a zebra\nand <unk>\na yak\n")
    line = (
        "read as <unk>: 3 of 12 tokens (25.0%), which are outside the vocabulary or <unk> in the text itself"
    )
    assert pru("evaluate", run, "--text", text).splitlines()[-1] == line
    shown = json.loads(pru("evaluate", run, "--text", text, "--json"))
    assert (shown["unknown_tokens"], shown["tokens_in_text"]) == (3, 12)
    text.write_text("the cat saw a mat\n")
    assert "<unk>" not in pru("evaluate", run, "--text", text)
    assert "unknown_tokens" not in json.loads(pru("evaluate", run, "--json"))


def test_scores_are_whole_on_a_narrow_terminal(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "a-file-with-a-long-name.txt"
    text.write_text("the cat saw a dog\n" * 200)
    _, shown, _ = invoke("evaluate", run, "--text", text, COLUMNS="40")
    table, *after = shown.split("left out for lack of room: ")
    assert after == ["nats/token, seconds\n"]
    assert max(map(len, table.splitlines())) <= 40
    assert "…" not in shown
    assert shown.split()[:2] == ["perplexity", "tokens"]
    assert "1,199" in shown


def test_tuned_settings_are_used_from_then_on(run: Path) -> None:
    assert "published defaults, not tuned" in pru("evaluate", run, "--cache")
    tuned = pru("evaluate", run, "--cache", "--tune")
    assert "tuned on validation" in tuned
    on_test = json.loads(pru("evaluate", run, "--split", "test", "--cache", "--json"))
    kept = json.loads((run / "scores.json").read_text())["tuning"]["cache"]
    assert on_test["cache"]["settings"] == kept["best"]
    assert len(kept["tries"]) == 108


def test_dynamic_evaluation(run: Path) -> None:
    shown = json.loads(pru("evaluate", run, "--dynamic", "--json"))
    assert shown["dynamic"]["tokens"] == shown["static"]["tokens"]
    assert shown["dynamic"]["perplexity"] != shown["static"]["perplexity"]
    assert shown["dynamic"]["settings"]["learning_rate"] == 5e-5
    pru("evaluate", run, "--dynamic", "--tune", "--tune-tokens", 30)
    tuning = json.loads((run / "scores.json").read_text())["tuning"]["dynamic"]
    tries = tuning["tries"]
    assert tuning["tokens"] == 30
    assert 24 < len(tries) <= 24 + tune.MAX_BEYOND + 1  # the grid, and beyond its edge


def test_scores_of_other_weights_are_dropped(run: Path) -> None:
    pru("evaluate", run)
    path = run / "scores.json"
    path.write_text(path.read_text().replace('"weights": "', '"weights": "0'))
    assert "does not match its checksum" in refusal("evaluate", run)
    accept(run)
    pru("evaluate", run, "--split", "test")
    assert list(json.loads(path.read_text())["results"]["static"]) == ["test"]


def test_a_run_whose_scores_were_dropped_has_its_parameters_in_the_report(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    pru("evaluate", copy)
    path = copy / "scores.json"
    total = json.loads(path.read_text())["parameters"]["total"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parameters": {}, "results": {}}))
    accept(copy)
    shown = pru("report", copy)
    assert f"{total:,}" in shown
    assert "No validation score: copy." in shown


def test_generate(run: Path) -> None:
    first = pru("generate", run, "--prompt", "the cat", "--words", 30, "--seed", 1)
    assert first.startswith("The cat")
    assert first == pru("generate", run, "--prompt", "the cat", "--words", 30, "--seed", 1)
    assert "<" not in first
    assert pru("generate", run, "--temperature", 0, "--words", 5) == pru(
        "generate", run, "--top-k", 1, "--words", 5
    )


def test_several_texts_that_end_where_asked(run: Path) -> None:
    shown = pru("generate", run, "--count", 3, "--until", "mat", "--words", 500, "--seed", 1)
    alone = [
        pru("generate", run, "--until", "mat", "--words", 500, "--seed", seed).rstrip("\n")
        for seed in (1, 2, 3)
    ]
    assert shown == "\n\n".join(alone) + "\n"
    for text in alone:
        assert text.endswith("mat")
        assert text.count("mat") == 1


def test_raw_tokens(run: Path) -> None:
    shown = pru("generate", run, "--raw", "--prompt", "the cat", "--seed", 1, "--words", 20)
    assert shown.startswith("the cat")
    assert shown.lower() == shown


def test_a_vocabulary_that_was_cut_short(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    lines = (copy / "vocabulary.txt").read_text().splitlines(keepends=True)
    (copy / "vocabulary.txt").write_text("".join(lines[:-2]))
    accept(copy)
    text = tmp_path / "a.txt"
    text.write_text("the cat saw a dog\n")
    for arguments in (["generate", copy], ["evaluate", copy, "--text", text]):
        line = f"weights.embedding.weight has shape ({len(lines)}, 8); expected ({len(lines) - 2}, 8)"
        assert line in refusal(*arguments)


def test_words_of_a_prompt_that_are_unknown_are_named(run: Path) -> None:
    status, shown, errors = invoke("generate", run, "--prompt", "the zebra saw a yak", "--words", 3)
    assert status == 0
    assert shown.startswith("The zebra saw a yak")
    assert errors == "outside the vocabulary, read as <unk>: zebra, yak\n"


def test_a_finished_run_without_metrics_is_left_as_it_is(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "metrics.jsonl").unlink()
    assert pru("resume", copy) == f"{copy} is already finished; nothing to resume\n"


def test_a_finished_run_says_why_there_is_nothing_to_resume(run: Path) -> None:
    assert pru("resume", run) == f"{run} is already finished (all epochs done); nothing to resume\n"
    assert "| all epochs done |" in pru("report", run)
    assert "2 epochs, ended: all epochs done" in pru("verify", run)


def test_finetune_and_report(run: Path) -> None:
    status, _, errors = invoke("finetune", run, "--set", "groups=2")
    assert status == 2
    assert "pru: error: groups cannot be changed in finetuning" in errors
    pru("finetune", run, "--set", "temporal=2.5")
    finetuned = run.with_name("tiny-1-finetuned")
    document = pru("report", run, finetuned, "--paper")
    first, second = (line for line in document.splitlines() if line.startswith("| `tiny-1"))
    for line in (first, second):  # a text of one's own: no recipe of the package
        assert line.split(" | ")[1:3] == ["–", "–"]
    assert max(map(len, document.splitlines())) > 120  # tables are not wrapped to the terminal's width
    heading, _, first, second, *_ = pru("report", run, finetuned).splitlines()
    assert heading.startswith("| run | differs in |")
    assert first.startswith("| tiny-1 | ")
    assert "temporal=1.0" in first
    assert "temporal=2.5" in second
    assert "finetuned" in second


def test_a_report_on_a_terminal_is_no_markdown(run: Path) -> None:
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}
    _, wide, _ = invoke("report", run, COLUMNS="100", **terminal)
    _, narrow, _ = invoke("report", run, COLUMNS="40", **terminal)
    assert "|" not in wide + narrow
    assert "parameters" in wide
    assert "left out for lack of room: " in narrow
    assert "left out" not in wide
    assert max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", narrow).splitlines())) <= 40


def test_a_run_that_is_named_by_a_dot(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    monkeypatch.chdir(copy)
    assert f"next: pru evaluate {copy}-finetuned" in pru("finetune", ".")
    pru("report", ".", "--keep", tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["copy"]


def test_brackets_and_colons_in_a_path_are_printed(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "[bold]:smile:"
    _, shown, errors = invoke("train", recipe, "--out", out, "--set", "epochs=1")
    assert f"run:    {out / 'tiny-1'} (seed 1)" in errors
    assert f"next: pru evaluate '{out / 'tiny-1'}'\n" in shown  # as a shell takes it


def test_a_second_run_has_its_own_folder(run: Path, recipe: Path) -> None:
    pru("train", recipe, "--out", run.parent, "--set", "epochs=1")
    assert (run.parent / "tiny-2" / "run.json").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on(tmp_path: Path, number: int, status: int) -> None:
    recipe = write_recipe(tmp_path, epochs=100_000, log_steps=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "torch_pru", "train", str(recipe), "--out", str(tmp_path / "runs")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    run = tmp_path / "runs" / "tiny-1"
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors.splitlines()[-1].endswith(f"continue with: pru resume {run}")
    assert "Traceback" not in errors
    reason = f"interrupted by {signal.Signals(number).name}"
    shown = pru("verify", run)
    assert f"ended: {reason}" in shown
    assert "not scored yet" in shown
    assert shown.endswith("all files match their checksums\n")
    assert f"| {reason} |" in pru("report", run)
