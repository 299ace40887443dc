"""Twenty things that a new user tries, on a wide, a narrow and a dumb terminal, and piped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command import invoke

TERMINALS = {
    "wide": {"COLUMNS": "120", "FORCE_COLOR": "1", "TERM": "xterm"},
    "narrow": {"COLUMNS": "45", "FORCE_COLOR": "1", "TERM": "xterm"},
    "piped": {"COLUMNS": "80"},
    "dumb": {"COLUMNS": "80", "FORCE_COLOR": "1", "TERM": "dumb"},
}

INSIDERS = re.compile(
    r"which only steers|\bstatic\b|\btheta\b(?!.*cache)|goes on|begun|Traceback|None\b|nan\b|\binf\b"
)
"""Words that a new user would stumble over."""

QUICK = ("--device", "cpu", "--epochs", 1)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, where a new user works."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRU_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("torch_pru.lm.device.commit", lambda: None)
    lines = [f"The cat sat on mat {n % 9}, and saw the dog.\nWhy did it run?\n" for n in range(150)]
    (tmp_path / "book.txt").write_text("".join(lines))
    (tmp_path / "other.txt").write_text("The zebra sat.\n" * 20)
    return tmp_path


STEPS: list[tuple[tuple[object, ...], int, str]] = [
    ((), 2, "train"),  # the help
    (("--help",), 0, "Train a model on a text."),
    (("--version",), 0, "torch-pru "),
    (("train", "--help"), 0, "--text"),
    (("train", "book"), 2, "there is no recipe 'book'"),
    (("train", "book.txt"), 2, "for text of your own use --text"),
    (("train", "--text", "boook.txt"), 2, "there is no file or folder boook.txt"),
    (("train", "--text", "book.txt", *QUICK), 0, "What to do next"),
    (("generate", "runs/book-1", "--prompt", "The cat", "--words", 8), 0, "The cat"),
    (("generate", "runs/book-1", "--prompt", "Zebras", "--words", 8), 0, "outside the vocabulary"),
    (("evaluate", "runs/book-1", "--split", "test"), 0, "perplexity"),
    (("evaluate", "runs/book-1", "--text", "other.txt"), 0, "read as <unk>"),
    (("evaluate", "runs"), 2, "name a run inside it: runs/book-1"),
    (("data", "mine", "--from", "book.txt"), 0, "next: pru train --corpus mine"),
    (("train", "--corpus", "mine", "--unit", "lstm", "--name", "lstm", *QUICK), 0, "this LSTM"),
    (("sweep", "--corpus", "mine", "--unit", "pru,lstm", *QUICK), 0, "lower is better"),
    (("report", "runs/book-1", "runs/lstm"), 0, "unit=lstm"),
    (("resume", "runs/book-1"), 0, "nothing to resume"),
    (("recipes", "ptb"), 0, "ptb-awd-pru-g4"),
    (("settings",), 0, "learning_rate"),
]


def test_there_are_twenty() -> None:
    assert len(STEPS) == 20


@pytest.mark.parametrize("terminal", TERMINALS)
def test_twenty_first_steps(terminal: str, desk: Path) -> None:
    environment = TERMINALS[terminal]
    width = int(environment["COLUMNS"])
    for arguments, expected, words in STEPS:
        status, shown, errors = invoke(*arguments, **environment)
        plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in (shown, errors)]
        both = "\n".join(plain)
        step = " ".join(map(str, arguments))
        assert status == expected, f"pru {step}: {both}"
        assert words in " ".join(both.split()), f"pru {step}: {both}"
        found = INSIDERS.search(both.partition("[finetuning]")[0] if "settings" in step else both)
        assert found is None or step == "settings", f"pru {step} says {found}: {both}"
        if expected == 2 and arguments:
            last = plain[1].strip().splitlines()[-1]
            assert last.startswith("pru: error: ")
        if terminal == "narrow":
            bars = [line for line in re.split(r"[\r\n]", plain[1]) if "━" in line]
            assert all(len(line.rstrip()) <= width for line in bars)


def test_live_bars_are_drawn_only_on_a_terminal(desk: Path) -> None:
    for name, environment in TERMINALS.items():
        _, _, errors = invoke("train", "--text", "book.txt", *QUICK, "--name", name, **environment)
        assert ("\x1b[" in errors) == (name in ("wide", "narrow")), name
