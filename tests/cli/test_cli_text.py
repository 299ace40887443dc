"""``pru train --text`` and ``pru data --from``: from a file to a model."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import invoke, pru, refusal

from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.recipe import load_recipe
from torch_pru.lm.run import RunFolder


@pytest.fixture(autouse=True)
def _own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)


def english(path: Path, lines: int = 300, seed: int = 1) -> Path:
    numbers = random.Random(seed)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dogs"]
    text = "".join(
        f"{' '.join(numbers.choices(words, k=8)).capitalize()}, x{n % 90}.\n" for n in range(lines)
    )
    path.write_text(text)
    return path


def train(path: object, *more: object) -> tuple[str, str]:
    """Standard output and standard error of a short training on a text."""
    status, shown, errors = invoke("train", "--text", path, "--epochs", 2, "--device", "cpu", *more)
    assert status == 0, errors
    return shown, errors


def test_a_file_becomes_a_model(tmp_path: Path) -> None:
    path = english(tmp_path / "my book.txt")
    out = tmp_path / "runs"
    shown, errors = train(path, "--out", out)
    lines = errors.splitlines()
    assert lines[0].startswith("my book.txt (")
    assert "split into lower-cased words" in lines[0]
    assert re.match(r"read as <unk>: [\d,]+ of [\d,]+ validation tokens \(\d+\.\d%\), which are ", lines[1])
    assert [line.split(":")[0] for line in lines[2:7]] == ["text", "model", "device", "plan", "run"]
    assert "PRU with 1 layer of 64 units, 2 levels, 2 groups" in lines[3]
    assert "in validation" in lines[7]
    assert "this PRU" in shown
    assert "Kneser-Ney bigram (baseline)" in shown
    assert "/my-book-1/config.toml --unit lstm" in shown
    run = RunFolder.open(out / "my-book-1")
    assert run.config.data.tokenizer == "words"
    assert run.config.training.minutes == 0
    assert "<unk>" in run.vocabulary
    other = tmp_path / "other.txt"
    other.write_text("The ZEBRA sat, on a mat.\n" * 3)
    assert "read as <unk>: 3 of 27 tokens (11.1%), which " in pru("evaluate", run.path, "--text", other)
    written = pru("generate", run.path, "--prompt", "The zebra", "--seed", 1)
    assert written.startswith("The zebra")
    assert " ," not in written


def test_several_files_a_name_and_another_unit(tmp_path: Path) -> None:
    first, second = english(tmp_path / "a.txt"), english(tmp_path / "b.txt", seed=2)
    out = tmp_path / "runs"
    train(first, second, "--name", "mine", "--unit", "lstm", "--out", out)
    run = RunFolder.open(out / "mine")
    assert run.config.model.unit == "lstm"
    assert run.config.name == "mine"
    assert "choose another --name" in refusal("train", "--text", first, "--name", "mine", "--out", out)


def test_two_seeds_end_in_one_table(tmp_path: Path) -> None:
    shown, _ = train(english(tmp_path / "a.txt"), "--seeds", 2, "--out", tmp_path / "runs")
    *_, heading, first, second = shown.splitlines()
    assert heading.split()[-2:] == ["validation", "test"]
    for line, name in ((first, "a-1"), (second, "a-2")):
        scores = load_scores(tmp_path / "runs" / name)
        assert scores is not None
        expected = [f"{scores.perplexity('static', split):.2f}" for split in ("valid", "test")]
        assert line.split() == [name, *expected]


def test_ctrl_c_while_the_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    path, said = english(tmp_path / "a.txt"), "stopped by Ctrl-C before training started; nothing was saved\n"
    for place in ("torch_pru.lm.training.train", "torch_pru.cli.train.prepared"):
        monkeypatch.setattr(place, stopped)
        status, _, errors = invoke("train", "--text", path, "--out", tmp_path / "runs")
        assert status == 130
        assert errors.endswith(said)


def test_a_recipe_learns_a_text(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    sizes = ["--set", "embedding=16", "--set", "hidden=[16]", "--groups", 2]
    train(english(tmp_path / "a.txt"), "quickstart", *sizes, "--out", out)
    assert RunFolder.open(out / "quickstart-1").config.model.hidden == (16,)


def test_tokens_read_as_unk_are_counted_the_same_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    seen, valid = "the cat sat on the <unk> mat\n", "the cat <unk> a zebra\n<unk> yak sat\n"
    for split, text in (("train", seen * 80), ("valid", valid * 10), ("test", seen * 10)):
        (folder / f"{split}.txt").write_text(text)
    line = "read as <unk>: 50 of 100 {}tokens (50.0%), which are outside the vocabulary or <unk> in the text"
    said = line.format("validation ")  # a, zebra, yak, and <unk> twice
    assert said in pru("data", "cats", "--from", folder, "--tokens", "words")
    _, errors = train(folder, "--tokens", "words", "--out", tmp_path / "runs")
    assert said in errors
    (run,) = (tmp_path / "runs").iterdir()
    assert line.format("") in pru("evaluate", run, "--text", folder / "valid.txt")
    status, shown, summary = invoke("score", run, folder / "valid.txt")
    assert status == 0
    assert summary.endswith(", read as <unk>: 50\n")
    unknown = [row.split("\t")[0] for row in shown.splitlines() if row.endswith("\t1")]
    assert unknown == ["<unk>", "a", "zebra", "<unk>", "yak"] * 10


def test_prepared_text_is_used_by_its_name(tmp_path: Path) -> None:
    shown = pru("data", "cats", "--from", english(tmp_path / "a.txt"), "--tokens", "cased-words")
    assert "split into words as written" in shown
    assert "%), which are outside the vocabulary or <unk> in the text itself\n" in shown
    assert shown.endswith("next: pru train --corpus cats\n")
    out = tmp_path / "runs"
    pru("train", "--corpus", "cats", "--epochs", 1, "--out", out, "--device", "cpu")
    assert RunFolder.open(out / "cats-1").config.data.tokenizer == "cased-words"
    assert "--from FILE" in refusal("data", "dogs")
    assert "cannot be used together" in refusal("train", "--corpus", "cats", "--text", "a.txt")


def test_an_lstm_leaves_the_settings_of_the_pru_out(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart")
    assert recipe.model.groups > 1
    changed = load_recipe("quickstart", {"unit": "lstm"})
    assert changed.model.groups == 1
    out = tmp_path / "runs"
    sizes = ["--set", "embedding=16", "--set", "hidden=[16]", "--epochs", 1, "--device", "cpu"]
    _, errors = train(english(tmp_path / "a.txt"), "quickstart", *sizes, "--unit", "lstm", "--out", out)
    settings = f"levels={recipe.model.levels}, groups={recipe.model.groups} and init={recipe.model.init}"
    assert f"note: {settings} are settings of a PRU and are ignored\n" in errors
    assert "--groups 4: for a PRU only" in refusal("train", "--unit", "lstm", "--groups", 4)


CHINESE = "道可道，非常道。名可名，非常名。無名天地之始；有名萬物之母。\n" * 60
ARABIC = "كان يا ما كان في قديم الزمان ملك له ثلاثة أبناء، وكان يحبهم.\n" * 60
CODE = "def add(a, b):\n    return a + b\n\n\nclass Tree(object):\n    value = [x for x in (1, 2)]\n" * 30


@pytest.mark.parametrize(
    ("content", "said", "tokenizer"),
    [
        (CHINESE.encode(), "written without spaces, so the text is split into characters", "characters"),
        (ARABIC.encode(), "split into lower-cased words", "words"),
        (CODE.encode(), "looks like source code, so the text is split into characters", "characters"),
        (b"One two three four.\r\n" * 200, "split into lower-cased words", "words"),
        (b"\xef\xbb\xbf" + b"One two three four.\n" * 200, "split into lower-cased words", "words"),
    ],
    ids=["chinese", "arabic", "code", "crlf", "bom"],
)
def test_texts_of_all_kinds(content: bytes, said: str, tokenizer: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    out = tmp_path / "runs"
    _, errors = train(tmp_path / "a.txt", "--out", out)
    assert said in errors
    run = RunFolder.open(out / "a-1")
    assert run.config.data.tokenizer == tokenizer
    assert not any("\ufeff" in word or "\r" in word for word in run.vocabulary.words)
    written = pru("generate", run.path, "--seed", 1, "--words", 40)
    assert written.strip()
    if tokenizer == "characters":
        assert "▁" not in written


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        ("caf\xe9\n".encode("latin-1") * 500, "iconv -f LATIN1 -t UTF-8"),
        (b"a\0b" * 500, "has a NUL byte"),
        (b"only three words", "give at least 500 words"),
        (b"\n \n" * 500, "has only white space; give at least 500 words"),
    ],
    ids=["empty", "latin-1", "nul", "short", "blank"],
)
def test_texts_that_cannot_be_used(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    errors = refusal("train", "--text", tmp_path / "a.txt", "--out", tmp_path / "runs")
    (line,) = errors.splitlines()
    assert said in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "standard input is empty"),
        (b"caf\xe9\n" * 500, "standard input is not UTF-8: byte 0xe9 at offset 3; convert it first"),
    ],
    ids=["empty", "latin-1"],
)
def test_an_error_in_standard_input_does_not_name_a_file(content: bytes, said: str, tmp_path: Path) -> None:
    status, _, errors = invoke("train", "--text", "-", "--out", tmp_path / "runs", stdin=content)
    assert status == 2
    assert errors.startswith(f"pru: error: {said}")
    assert "stdin.txt" not in errors
    assert "NEW_FILE" not in errors


def test_the_option_is_named_as_it_was_typed(tmp_path: Path) -> None:
    text = english(tmp_path / "a.txt")
    said = "pru: error: --tokens bpe needs a vocabulary size, such as bpe:8000\n"
    assert refusal("train", "--text", text, "--tokens", "bpe") == said
    assert refusal("data", "mine", "--from", text, "--tokens", "bpe") == said


def test_a_model_that_writes_only_line_breaks_has_an_empty_sample(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 10 + "\n" * 1500)
    shown, _ = train(path, "--out", tmp_path / "runs")
    assert "What to do next:" in shown


def test_standard_input(tmp_path: Path) -> None:
    text = english(tmp_path / "a.txt").read_bytes()
    command = [sys.executable, "-m", "torch_pru", "train", "--text", "-", "--epochs", "1", "--device", "cpu"]
    done = subprocess.run([*command, "--out", str(tmp_path / "runs")], input=text, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "runs" / "stdin-1" / "run.json").exists()
