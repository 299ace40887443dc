"""``pru score``: every word with its score, in the sums of ``pru evaluate``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import WORDS, invoke, pru, refusal


def evaluated(run: Path, text: Path, *options: str) -> dict:
    return json.loads(pru("evaluate", run, "--text", text, "--json", *options))


@pytest.fixture(scope="module")
def text(run: Path) -> Path:
    path = run.parent / "text.txt"
    path.write_text("the cat sat\n\non golf and saw\nthe dog\n" * 200)
    return path


@pytest.mark.parametrize(
    ("options", "method"), [([], "static"), (["--adapt"], "dynamic"), (["--cache"], "cache")]
)
def test_sums_are_those_of_evaluate(run: Path, text: Path, options: list[str], method: str):
    wanted = [] if method == "static" else [f"--{method}"]
    expected = evaluated(run, text, *wanted)[method]
    status, shown, summary = invoke("score", run, text, "--no-bos", *options)
    assert status == 0
    total = float(re.search(r"log-probability (-[\d.]+)", summary)[1])
    assert -total / expected["tokens"] == pytest.approx(expected["nll"], abs=1e-9)
    header, *lines = shown.splitlines()
    assert header == "token\tlog_probability\tsurprisal\tunknown"
    assert lines[0] == "the\t\t\t0"
    assert len(lines) == expected["tokens"] + 1
    assert sum(float(line.split("\t")[1]) for line in lines[1:]) == pytest.approx(total, abs=1e-5)


def test_json_lines(run: Path, text: Path):
    table = [line.split("\t") for line in pru("score", run, text).splitlines()[1:]]
    objects = [json.loads(line) for line in pru("score", run, text, "--format", "jsonl").splitlines()]
    assert " ".join(each["token"] for each in objects[:8]) == "the cat sat <eos> <eos> on golf and"
    assert [each["unknown"] for each in objects[:8]] == [False] * 6 + [True, False]
    for (token, log_probability, surprisal, unknown), found in zip(table, objects, strict=True):
        assert (token, int(unknown)) == (found["token"], found["unknown"])
        assert (float(log_probability), float(surprisal)) == (found["log_probability"], found["surprisal"])
    first = pru("score", run, text, "--format", "jsonl", "--no-bos").splitlines()[0]
    assert json.loads(first)["log_probability"] is None


def test_standard_input(run: Path, text: Path):
    command = [sys.executable, "-m", "torch_pru", "score", str(run), "-", "--device", "cpu"]
    with open(text, "rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    assert done.stdout == pru("score", run, text, "--device", "cpu")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "pru: error: standard input has no tokens to score\n"


def test_tokens_are_counted_and_one_less_without_bos(run: Path, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("the cat saw golf\n")
    for options, start in (([], "5 tokens, "), (["--no-bos"], "4 tokens, ")):
        _, _, summary = invoke("score", run, text, *options)
        assert summary.startswith(start)
    assert evaluated(run, text)["static"]["tokens"] == 4


def test_an_unknown_token_has_the_score_of_unk(run: Path, tmp_path: Path):
    found = []
    for word in ("golf", "<unk>"):
        (tmp_path / "text.txt").write_text(f"the cat saw {word}\n")
        line = pru("score", run, tmp_path / "text.txt").splitlines()[4].split("\t")
        found.append(line)
    assert [line[0] for line in found] == ["golf", "<unk>"]
    assert found[0][1:3] == found[1][1:3]
    assert found[0][3] == "1"


def test_the_first_column_is_named_after_what_it_has(run: Path, text: Path):
    assert pru("score", run, text, "--per", "word").startswith("word\tlog_probability\t")
    assert json.loads(pru("score", run, text, "--per", "word", "--format", "jsonl").splitlines()[0])["word"]


def test_what_is_refused(run: Path, text: Path, tmp_path: Path):
    empty, one, latin = tmp_path / "empty.txt", tmp_path / "one.txt", tmp_path / "latin.txt"
    empty.write_text("")
    one.write_text("\n")
    latin.write_bytes(b"caf\xe9\n")
    assert "empty.txt has no tokens to score\n" in refusal("score", run, empty)
    assert "one.txt has no tokens to score; with --no-bos, a text needs at least 2" in refusal(
        "score", run, one, "--no-bos"
    )
    assert "is not UTF-8" in refusal("score", run, latin)
    status, shown, errors = invoke("score", run, tmp_path / "none.txt")
    assert (status, shown) == (2, "")
    assert "cannot read" in errors
    assert "--format csv is not known" in refusal("score", run, text, "--format", "csv")
    assert "there is no run" in refusal("score", tmp_path, text)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_megabytes_take_the_memory_of_one(run: Path, tmp_path: Path):
    def megabytes(size: int) -> float:
        path = tmp_path / "text.txt"
        line = " ".join(WORDS) + "\n"
        with open(path, "w") as file:
            for _ in range(size * 2**20 // len(line) + 1):
                file.write(line)
        command = [sys.executable, "-m", "torch_pru", "score", str(run), str(path), "--device", "cpu"]
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen(command, stdout=nowhere)
            _, status, usage = os.wait4(process.pid, 0)
        assert status == 0
        return usage.ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)

    assert megabytes(100) - megabytes(1) <= 50
