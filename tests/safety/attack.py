"""A small run, what a stranger may do to it, and a check that nothing outside of it changed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import stat
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from torch_pru.cli import app
from torch_pru.lm.checkpoint import decode, read_verified
from torch_pru.lm.config import build_config
from torch_pru.lm.state_files import encode_state
from torch_pru.lm.training import Interrupted, TrainingProgress, train

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "the", "dog", "that", "ran", "to", "it"]
SETTINGS = {
    "unit": "pru",
    "embedding": 8,
    "hidden": [8],
    "batch": 4,
    "window": 10,
    "learning_rate": 5.0,
    "epochs": 2,
    "trigger_window": 1,
    "valid_batch": 2,
    "log_steps": 3,
    "device": "cpu",
    "checkpoint_minutes": 0.0,
    "checkpoint_steps": 6,
}
MEGABYTES = 1 << 20
FILES = ("run.json", "config.toml", "vocabulary.txt", "environment.json", "metrics.jsonl", "lock")


def write_corpus(folder: Path, lines: int = 60) -> Path:
    folder.mkdir()
    for split, share in (("train", lines), ("valid", lines // 4), ("test", lines // 4)):
        text = [
            " ".join(WORDS[(line * 3 + word) % len(WORDS)] for word in range(line % 5 + 3))
            for line in range(share)
        ]
        (folder / f"{split}.txt").write_text("\n".join([*text, "<unk>"]) + "\n")
    return folder


def train_run(corpus: Path, run: Path, *, stop_after: int = 0, **settings: Any) -> Path:
    """A run to its end, or saved and stopped after so many reports."""
    reports = 0

    def listen(progress: TrainingProgress) -> None:
        nonlocal reports
        reports += 1
        if reports == stop_after:
            signal.raise_signal(signal.SIGTERM)

    try:
        train(build_config("small", SETTINGS | {"corpus": str(corpus)} | settings), run, progress=listen)
    except Interrupted:
        assert stop_after
    return run


def pru(*arguments: object) -> tuple[int, str]:
    """Status and all output of a command; anything that would print a traceback is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="pru")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def items_of(run: Path) -> list[str]:
    """Everything in a run folder, files and folders, and what could be planted in it."""
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    inside = [
        f"checkpoints/{newest}/{path.name}" for path in sorted((run / "checkpoints" / newest).iterdir())
    ]
    events = [path.name for path in run.glob("events.*")][:1]
    planted = ["scores.json", "checkpoints/.writing"]
    return [*FILES, *events, "checkpoints", f"checkpoints/{newest}", *inside, *planted]


def content_of(folder: Path) -> dict[str, object]:
    """Kind, target or digest of everything below a folder."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[str(path)] = os.readlink(path)
        elif stat.S_ISREG(mode):
            found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            found[str(path)] = stat.S_IFMT(mode)
    return found


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Whatever happens inside, nothing below ``folder`` is written, created or removed."""
    before = content_of(folder)
    yield
    assert content_of(folder) == before


@contextmanager
def little_memory(limit: int = 200 * MEGABYTES) -> Iterator[None]:
    """Whatever Python allocates inside stays below a limit."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def move_out(item: Path, outside: Path) -> Path:
    """Put what is at ``item``, or an invented file, outside of the run folder."""
    target = outside / f"stolen-{item.name}"
    if item.exists():
        shutil.move(item, target)
    else:
        target.write_text("a document of the victim\n")
    return target


def flip(content: bytes, byte: int, bit: int) -> bytes:
    """The content with one bit flipped."""
    changed = bytearray(content)
    changed[byte] ^= 1 << bit
    return bytes(changed)


def reseal_state(run: Path, change: Callable[[dict[str, Any]], Any], *, pickled: bool = False) -> None:
    """Change the state in every checkpoint, with checksums that match; ``pickled`` as earlier versions did.

    What ``change`` returns, unless None, takes the place of the state.
    """
    for path in (run / "checkpoints").iterdir():
        checkpoint = decode(read_verified(path), path)
        changed = change(checkpoint.state)
        state = checkpoint.state if changed is None else changed
        if pickled:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            replace_files(path, {"state.pt": buffer.getvalue()}, ["state.json", "state.safetensors"])
        else:
            replace_files(path, encode_state(state))


def replace_files(path: Path, contents: dict[str, bytes], remove: Sequence[str] = ()) -> None:
    """Put other files into a checkpoint, with checksums that match."""
    manifest = json.loads((path / "manifest.json").read_text())
    for name in remove:
        (path / name).unlink()
        del manifest[name]
    for name, content in contents.items():
        (path / name).write_bytes(content)
        manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
