"""The command line, run in this process, and a tiny recipe for it."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from torch_pru.cli import app

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog", "that", "ran", "to", "it"]


def write_corpus(folder: Path, lines: int = 400) -> Path:
    folder.mkdir()
    for split, share in (("train", lines), ("valid", lines // 4), ("test", lines // 4)):
        text = [
            " ".join(WORDS[(line * 3 + word) % len(WORDS)] for word in range(line % 5 + 3))
            for line in range(share)
        ]
        (folder / f"{split}.txt").write_text("\n".join([*text, "<unk>"]) + "\n")
    return folder


def write_recipe(folder: Path, **training: object) -> Path:
    corpus = write_corpus(folder / "corpus")
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in training.items())
    path = folder / "tiny.toml"
    path.write_text(
        f'[data]\ncorpus = "{corpus}"\n[model]\nunit = "pru"\nembedding = 8\nhidden = [8]\n'
        f'[training]\nbatch = 8\nwindow = 10\nlearning_rate = 5.0\ndevice = "cpu"\n{lines}\n'
    )
    return path


def pru(*arguments: object) -> str:
    """Standard output of a command that must succeed."""
    status, shown, errors = invoke(*arguments)
    assert status == 0, errors
    return shown


def refusal(*arguments: object) -> str:
    """Standard error of a command that must be refused."""
    status, _, errors = invoke(*arguments)
    assert status == 2
    return errors


def invoke(*arguments: object, stdin: bytes | None = None, **environment: str) -> tuple[int, str, str]:
    """Status, standard output and standard error of ``pru``; an error without a line of its own is raised."""
    result = CliRunner().invoke(
        app, [str(argument) for argument in arguments], input=stdin, env=environment, prog_name="pru"
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
