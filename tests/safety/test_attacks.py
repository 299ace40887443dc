"""Every file of a run, damaged in every way, met by every command: an error in a line, or the same result.

No case may print a traceback, take 10 seconds, need 200 MB, write outside of the run folder, or change a
result without a warning. What a command writes beside the run counts as its result.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from attack import FILES, content_of, flip, pru, reseal_state, train_run

from torch_pru.lm.evaluation.scores import log_probabilities_file
from torch_pru.lm.run import RunFolder

LOG_PROBABILITIES = log_probabilities_file("valid", "static")
CHECKPOINT = ("manifest.json", "weights.safetensors", "best.safetensors", "state.json", "state.safetensors")
TARGETS = [
    *FILES,
    "scores.json",
    LOG_PROBABILITIES,
    *(f"newest/{name}" for name in CHECKPOINT),
    "newest",
    "checkpoints",
]
TERABYTE = 1 << 40

COMMANDS: dict[str, list[str]] = {
    "resume": [],
    "evaluate": [],
    "evaluate --text": ["--text", "TEXT"],
    "evaluate --dynamic": ["--dynamic", "--cache"],
    "generate": ["--seed", "1", "--words", "12"],
    "score": ["TEXT"],
    "compare": ["--against", "SCORED", "--split", "valid"],
    "finetune": [],
    "report": [],
    "verify": [],
    "analyze": ["--only", "curves", "--only", "coverage", "--out", "WRITTEN"],
    "export": ["--to", "hf", "WRITTEN"],
}
WITH_EXTRAS = {"analyze": "matplotlib", "export": "transformers"}
for name, package in WITH_EXTRAS.items():
    if find_spec(package) is None:
        del COMMANDS[name]


def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def apply(path: Path, outside: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.write_bytes(change(path.read_bytes() if path.exists() else b"{}\n"))

    return apply


def instead(make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    def apply(path: Path, outside: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path, outside)

    return apply


def make_sparse(path: Path, outside: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(TERABYTE)


def make_device(path: Path, outside: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        path.symlink_to("/dev/zero")


def swap_with_another(path: Path, outside: Path) -> None:
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    if path.is_file() and others:
        content, other = path.read_bytes(), others[0].read_bytes()
        path.write_bytes(other)
        others[0].write_bytes(content)


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "missing": instead(lambda path, outside: None),
    "empty": instead(lambda path, outside: path.write_bytes(b"")),
    "directory": instead(lambda path, outside: path.mkdir()),
    "fifo": instead(lambda path, outside: os.mkfifo(path)),
    "device": instead(make_device),
    "sparse": instead(make_sparse),
    "link to nothing": instead(lambda path, outside: path.symlink_to(outside / "not-there")),
    "link outside": instead(lambda path, outside: path.symlink_to(outside / "documents" / "thesis.txt")),
    "link to a folder": instead(lambda path, outside: path.symlink_to(outside / "documents")),
    "link to itself": instead(lambda path, outside: path.symlink_to(path.name)),
    "link inside": instead(lambda path, outside: path.symlink_to("config.toml")),
    "swapped": swap_with_another,
    "cut to half": rewrite(lambda content: content[: len(content) // 2]),
    "one byte less": rewrite(lambda content: content[:-1]),
    "one byte more": rewrite(lambda content: content + b"x"),
    "twice": rewrite(lambda content: content + content),
    "garbage": rewrite(lambda content: random.Random(len(content)).randbytes(len(content) or 100)),
    "nested": rewrite(lambda content: b"[" * 20_000),
    "long line": rewrite(lambda content: b'{"kind": "' + b"a" * 300_000 + b'"}\n' + content),
    **{
        f"bit {number} of 7": rewrite(
            lambda content, share=number: (
                flip(content, len(content) * share // 7, share) if content else b"\0"
            )
        )
        for number in range(7)
    },
}


HARMLESS = {
    *(("lock", damage) for damage in DAMAGES),  # nothing is ever read from it
    *((name, "one byte less") for name in ("run.json", "environment.json", "scores.json")),  # a line break
    *(("metrics.jsonl", damage) for damage in ("one byte more", "nested")),  # as after a kill: half a line
    ("scores.json", "missing"),  # as before the first score
    *((name, "swapped") for name in ("newest", "checkpoints")),  # only files are swapped
    ("newest/weights.safetensors", "swapped"),  # with the best weights, which are the same at the end
}
"""Damages that ``pru verify`` need not notice."""


@dataclass(frozen=True)
class Case:
    """One damage to one file, met by one command."""

    target: str
    damage: str
    command: str


CASES = [Case(target, damage, command) for target in TARGETS for damage in DAMAGES for command in COMMANDS]


class Range:
    """Where cases are tried, and what the commands do with undamaged runs."""

    def __init__(self, folder: Path, finished: Path, interrupted: Path, outside: Path) -> None:
        self.folder, self.outside = folder, outside
        self.text = folder / "text.txt"
        self.text.write_text("the cat sat on a mat\nand saw the dog\n")
        self.sources = {"resume": interrupted}
        self.finished = folder / "scored"
        shutil.copytree(finished, self.finished)
        assert pru("evaluate", self.finished)[0] == 0  # so that there is a scores.json
        self.written = folder / "written"
        self.expected: dict[str, object] = {}
        for command in COMMANDS:
            run = self.copy(command)
            status, shown = self.run(command, run)
            assert status == 0, shown
            self.expected[command] = self.result(command, run, shown)

    def copy(self, command: str) -> Path:
        run = self.folder / "run"
        for path in (run, run.with_name("run-finetuned"), self.written):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.sources.get(command, self.finished), run)
        return run

    def run(self, command: str, run: Path) -> tuple[int, str]:
        paths = {"TEXT": self.text, "SCORED": self.finished, "WRITTEN": self.written}
        options = [str(paths.get(option, option)) for option in COMMANDS[command]]
        return pru(command.split()[0], run, *options)

    def result(self, command: str, run: Path, shown: str) -> object:
        """What a command that succeeded found, without the time it took."""
        if command in ("resume", "finetune"):
            model = RunFolder.open(run if command == "resume" else run.with_name("run-finetuned")).model()
            return {name: value.tolist() for name, value in model.state_dict().items()}
        if command == "analyze":
            return {path.name: path.read_bytes() for path in self.written.glob("*.json")}
        if command == "export":
            return {path.name: path.read_bytes() for path in self.written.iterdir() if path.suffix != ".md"}
        return re.sub(r"[\d.]+$|^not recorded: .*\n", "", shown, flags=re.MULTILINE)

    def check(self, case: Case) -> str:
        """What is wrong with a case; empty where nothing is."""
        run = self.copy(case.command)
        newest = max(os.listdir(run / "checkpoints"))
        DAMAGES[case.damage](run / case.target.replace("newest", f"checkpoints/{newest}"), self.outside)
        before, memory = content_of(self.outside), forget_peak_memory()
        try:
            with seconds(10):
                status, shown = self.run(case.command, run)
        except BaseException as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        if content_of(self.outside) != before:
            return "something outside was changed"
        if peak_memory() - memory > 200 << 20:
            return f"took {(peak_memory() - memory) >> 20} MB"
        if status not in (0, 1, 2):
            return f"status {status}: {shown[:200]}"
        told = any(words in shown for words in ("warning", "note: no ", "No validation score"))
        if status or (told and case.command != "resume"):
            return ""
        if case.command == "verify":
            return "" if (case.target, case.damage) in HARMLESS else "the damage was not noticed"
        same = self.result(case.command, run, shown) == self.expected[case.command]
        return "" if same else f"other result: {shown[:200]}"


class TooLongError(BaseException):
    """Raised by `seconds`; a `TimeoutError` is an `OSError`, which commands take for a damaged file."""


def forget_peak_memory() -> int:
    """Begin a new peak where the system can, and return the present one in bytes."""
    with suppress(OSError):  # only Linux has this file
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """Most bytes in memory since the last call of `forget_peak_memory`."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """Interrupt what computes for longer, or waits for as long without computing anything.

    On a busy machine a command may take longer, although nothing is wrong with it.
    """
    begin = at_last_look = time.process_time()

    def stop(number: int, frame: object) -> None:
        nonlocal at_last_look
        now = time.process_time()
        if now - begin > limit or now - at_last_look < 0.01:
            raise TooLongError(f"took more than {limit} s")
        at_last_look = now
        signal.alarm(limit)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def shooting(tmp_path_factory: pytest.TempPathFactory, finished_run: Path, interrupted_run: Path) -> Range:
    folder = tmp_path_factory.mktemp("attacks")
    outside = folder / "outside"
    (outside / "documents").mkdir(parents=True)
    (outside / "documents" / "thesis.txt").write_text("once upon a time\n" * 3000)
    (folder / "inside").mkdir()
    return Range(folder / "inside", finished_run, interrupted_run, outside)


@pytest.fixture(scope="module")
def shooting_at_subwords(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Range:
    """The same for runs with a tokenizer.json."""
    pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra torch-pru[lm]")
    folder = tmp_path_factory.mktemp("attacks")
    outside = folder / "outside"
    (outside / "documents").mkdir(parents=True)
    (outside / "documents" / "thesis.txt").write_text("once upon a time\n" * 3000)
    (folder / "inside").mkdir()
    finished = train_run(corpus, folder / "finished", tokenizer="bpe:300")
    interrupted = train_run(corpus, folder / "interrupted", stop_after=6, tokenizer="bpe:300")
    return Range(folder / "inside", finished, interrupted, outside)


def failures(shooting: Range, cases: list[Case]) -> dict[Case, str]:
    return {case: wrong for case in cases if (wrong := shooting.check(case))}


def test_there_are_enough_cases() -> None:
    assert len(CASES) > 2000
    assert len({(case.target, case.damage) for case in CASES[::12]}) > 150


@pytest.mark.parametrize("part", range(10))
def test_some_cases(part: int, shooting: Range) -> None:
    some = random.Random(31).sample(CASES, 200)
    assert failures(shooting, some[part::10]) == {}


SUBWORD_CASES = [Case("tokenizer.json", damage, command) for damage in DAMAGES for command in COMMANDS]


def test_some_cases_of_subwords(shooting_at_subwords: Range) -> None:
    assert failures(shooting_at_subwords, random.Random(36).sample(SUBWORD_CASES, 12)) == {}


@pytest.mark.slow
def test_every_case_of_subwords(shooting_at_subwords: Range) -> None:
    assert failures(shooting_at_subwords, SUBWORD_CASES) == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_case(target: str, shooting: Range) -> None:
    assert failures(shooting, [case for case in CASES if case.target == target]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("command", ["resume", "finetune"])
def test_crafted_states(command: str, pickled: bool, shooting: Range) -> None:
    values = [None, "text", -1, 2**70, [], {}, [[]], float("nan"), torch.tensor([1.0]), torch.zeros(0), True]
    checkpoint = RunFolder.open(shooting.finished).checkpoint()
    assert checkpoint is not None
    wrong = {}
    for field, valid in checkpoint.state.items():
        for value in values:
            if value == {} == valid:  # a run in float32 has no loss scale
                continue
            run = shooting.copy(command)
            reseal_state(
                run, lambda state, field=field, value=value: state.update({field: value}), pickled=pickled
            )
            with seconds(10):
                status, shown = shooting.run(command, run)
            if status != 2 and not isinstance(value, bool):
                wrong[field, str(value)] = (status, shown)
    assert wrong == {}
