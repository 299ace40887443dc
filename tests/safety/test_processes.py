"""Two real processes train together; one is killed or suspended, and the other one says so in a line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack import SETTINGS, pru

from torch_pru.lm.run import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="processes are suspended with SIGSTOP"),
]
WITHIN = 30.0  # seconds until the other process has said what happened


def command(corpus: Path, out: Path) -> list[str]:
    """A training that takes longer than any of these tests."""
    settings = SETTINGS | {"corpus": str(corpus), "epochs": 100_000, "checkpoint_steps": 20}
    options = [f"--set={key}={value}".replace("'", '"') for key, value in settings.items()]
    return ["-m", "torch_pru", "train", "quickstart", "--name", "run", "--out", str(out), *options]


class Processes:
    """Two ranks of a run: started by hand, or by torchrun as its children."""

    def __init__(self, folder: Path, corpus: Path, *, torchrun: bool) -> None:
        self.run, self.log = folder / "out" / "run", folder / "log.txt"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "500"}
        with open(self.log, "wb") as log:
            if torchrun:
                start = [
                    sys.executable,
                    "-m",
                    "torch.distributed.run",
                    "--standalone",
                    "--nproc-per-node",
                    "2",
                ]
                arguments = [*start, *command(corpus, folder / "out")]
                self.started = [subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)]
            else:
                environment |= {
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(free_port()),
                }
                arguments = [sys.executable, *command(corpus, folder / "out")]
                own = [environment | {"RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
                self.started = [subprocess.Popen(arguments, env=one, stdout=log, stderr=log) for one in own]

    def wait_until_training(self) -> None:
        self.wait_for(lambda: self.run_exists() and len(RunFolder.open(self.run).epochs()) >= 2, 240)
        self.ranks = self._find_ranks()

    def run_exists(self) -> bool:
        return (self.run / "metrics.jsonl").exists() and (self.run / "run.json").exists()

    def _find_ranks(self) -> list[int]:
        """Process numbers in the order of the ranks."""
        if len(self.started) == 2:
            return [process.pid for process in self.started]
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.started[0].pid)], capture_output=True, text=True
        )
        ranks = {}
        for number in map(int, children.stdout.split()):
            found = re.search(rb"\0RANK=(\d)\0", Path(f"/proc/{number}/environ").read_bytes())
            if found:
                ranks[int(found[1])] = number
        return [ranks[0], ranks[1]]

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until a condition holds."""
        begin = time.monotonic()
        while not condition():
            assert time.monotonic() - begin < seconds, self.said()
            assert self.started[0].poll() is None, self.said()
            time.sleep(0.1)

    def end(self) -> None:
        for number in getattr(self, "ranks", []):
            for name in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(number, name)
                except ProcessLookupError:
                    break
        for process in self.started:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def two_ranks(folder: Path, corpus: Path, *, torchrun: bool) -> Iterator[Processes]:
    processes = Processes(folder, corpus, torchrun=torchrun)
    try:
        processes.wait_until_training()
        yield processes
    finally:
        processes.end()


def own_lines(said: str) -> list[str]:
    """What the ranks said about the other one; torchrun has lines of its own."""
    return [line for line in said.splitlines() if re.match(r"pru( \(rank \d\))?: ", line)]


@pytest.mark.parametrize("torchrun", [False, True], ids=["by hand", "torchrun"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank(victim: int, torchrun: bool, corpus: Path, tmp_path: Path) -> None:
    with two_ranks(tmp_path, corpus, torchrun=torchrun) as processes:
        os.kill(processes.ranks[victim], signal.SIGKILL)
        for process in processes.started:
            process.wait(WITHIN)
        said, run = processes.said(), processes.run
    lines = own_lines(said)
    assert len(lines) == 1, said
    assert re.search(r"another process .*saved.*pru resume", lines[0])
    assert "torch_pru/" not in said  # no line of a traceback
    assert RunFolder.open(run).checkpoint() is not None
    text = (run / "config.toml").read_text().replace("epochs = 100000", "epochs = 3")
    (run / "config.toml").write_text(text)
    assert pru("verify", run, "--accept")[0] == 0
    status, shown = pru("resume", run)  # alone
    assert status == 0, shown


@pytest.mark.parametrize("torchrun", [False, True], ids=["by hand", "torchrun"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_suspended_rank(victim: int, torchrun: bool, corpus: Path, tmp_path: Path) -> None:
    with two_ranks(tmp_path, corpus, torchrun=torchrun) as processes:
        os.kill(processes.ranks[victim], signal.SIGSTOP)
        processes.wait_for(lambda: own_lines(processes.said()), WITHIN)
        (line,) = own_lines(processes.said())
        assert re.search(rf"rank {victim} has not answered.*saved.*pru resume", line)
        epochs = len(RunFolder.open(processes.run).epochs())
        os.kill(processes.ranks[victim], signal.SIGCONT)  # training continues as if nothing had happened
        processes.wait_for(lambda: len(RunFolder.open(processes.run).epochs()) > epochs + 1, 60)
        assert len(own_lines(processes.said())) == 1
        assert "Traceback" not in processes.said()
