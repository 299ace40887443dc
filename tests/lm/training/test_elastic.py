"""torchrun's elastic restarts: a run on several processes survives the loss of any of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from processes import free_port
from small import write_corpus

from torch_pru.lm.run import RunFolder

SETTINGS = {"precision": "float64", "epochs": 6, "checkpoint_steps": 25, "log_steps": 10, "valid_batch": 2}
NOTICED = re.compile(r"another process of the run has ended|exitcode: -9|closing signal SIGTERM")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every kind of dropout: the masks do not depend on the number of processes."""
    folder = tmp_path_factory.mktemp("recipe")
    corpus = write_corpus(folder / "text", lines=2000)
    lines = "".join(f"{key} = {value!r}\n" for key, value in SETTINGS.items()).replace("'", '"')
    path = folder / "small.toml"
    path.write_text(
        f'[data]\ncorpus = "{corpus}"\n[model]\nunit = "pru"\nembedding = 8\nhidden = [12, 8]\n'
        f'[training]\nbatch = 4\nwindow = 10\nlearning_rate = 1.0\ndevice = "cpu"\n{lines}'
    )
    return path


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run on two processes without any interruption."""
    run = tmp_path_factory.mktemp("whole") / "run"
    with Torchrun(recipe, run, *lone_node(2)) as job:
        assert job.end() == 0, job.text()
    return RunFolder.open(run)


@dataclass(frozen=True)
class Machine:
    """Where a torchrun runs: here, or in a network of its own."""

    address: str
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


class Torchrun:
    """``torchrun OPTIONS -m torch_pru train RECIPE --into RUN``, and when it said what.

    Whatever is left of it at the end of the context is killed.
    """

    def __init__(self, recipe: Path, run: Path, *options: str, machine: Machine | None = None) -> None:
        machine = machine or Machine("localhost")
        command = ["-m", "torch.distributed.run", *options, "-m", "torch_pru", "train", recipe, "--into", run]
        self.process = subprocess.Popen(
            [*machine.command, sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | machine.environment,
        )
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill torchrun and its processes, as a machine that is switched off does."""
        if self.process.poll() is None:
            for number in [self.process.pid, *self.workers()]:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
        self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def text(self) -> str:
        return "".join(line for _, line in self.lines)

    def workers(self) -> list[int]:
        number = self.process.pid
        return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def seconds_until(self, pattern: re.Pattern[str], since: float) -> float:
        """How long after ``since`` a line with the pattern was said."""
        while time.monotonic() < since + 120:
            for when, line in list(self.lines):
                if when >= since and pattern.search(line):
                    return when - since
            time.sleep(0.05)
        raise AssertionError(self.text())

    def end(self) -> int:
        status = self.process.wait(600)
        self._reader.join()
        return status


def lone_node(processes: int, restarts: int = 0) -> list[str]:
    return ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]


def difference(one: RunFolder, other: RunFolder) -> float:
    weights = [
        dict(run.model(which).named_parameters()) for run in (one, other) for which in ("best", "last")
    ]
    pairs = [(weights[0], weights[2]), (weights[1], weights[3])]
    return max((a[name] - b[name]).abs().max().item() for a, b in pairs for name in a)


def lines_of(run: RunFolder) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key not in ("clock", "crc")} for line in run.metrics()
    ]


def wait_for_workers(job: Torchrun, number: int) -> None:
    while len(job.workers()) < number:
        assert job.process.poll() is None, job.text()
        time.sleep(0.05)


def wait_for_reports(run: Path, job: Torchrun, reports: int) -> None:
    """Wait until training has logged this many lines."""
    log, last = run / "metrics.jsonl", None
    while reports >= 0:
        assert job.process.poll() is None, job.text()
        if log.exists() and (size := log.stat().st_size) != last:
            last, reports = size, reports - 1
        time.sleep(0.005)


def newest_checkpoint(run: Path) -> int:
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)


def wait_for_checkpoint(run: Path, job: Torchrun, number: int) -> None:
    while newest_checkpoint(run) < number:
        assert job.process.poll() is None, job.text()
        time.sleep(0.02)


def test_ten_kills_leave_no_trace(whole: RunFolder, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "killed"
    with Torchrun(recipe, run, *lone_node(2, restarts=12)) as job:
        noticed = kill_ten_times(job, run)
        assert job.end() == 0, job.text()
    print("seconds until a kill was reported:", [round(seconds, 2) for seconds in noticed])
    assert max(noticed) < 30
    assert job.text().count("resuming") >= 5
    killed = RunFolder.open(run)
    assert difference(whole, killed) == 0
    assert lines_of(whole) == lines_of(killed)


def kill_ten_times(job: Torchrun, run: Path) -> list[float]:
    """Kill one of two processes at ten random moments; after how many seconds each kill was reported."""
    numbers, noticed = random.Random(39), []
    for number in range(10):
        wait_for_workers(job, 2)
        if number not in (0, 5):  # these two are killed while they start
            wait_for_reports(run, job, numbers.randint(1, 12))
        time.sleep(numbers.uniform(0, 0.5))
        workers = job.workers()
        assert job.process.poll() is None, "the run ended before the tenth kill"
        now = time.monotonic()
        os.kill(numbers.choice(workers), signal.SIGKILL)
        noticed.append(job.seconds_until(NOTICED, now))
        while set(job.workers()) & set(workers):
            time.sleep(0.05)
    return noticed


def test_ten_kills_and_another_number_of_processes_each_time(
    whole: RunFolder, recipe: Path, tmp_path: Path
) -> None:
    """Two processes, one, two, ... and one for the rest, which is most of the run."""
    numbers = random.Random(40)
    run, restarts = tmp_path / "changing", 0
    for number in range(10):
        with Torchrun(recipe, run, *lone_node(2 - number % 2)) as job:
            wait_for_reports(run, job, numbers.randint(1, 12))
            time.sleep(numbers.uniform(0, 0.5))
            assert job.process.poll() is None, "the run ended before the tenth kill"
            os.kill(numbers.choice(job.workers()), signal.SIGKILL)
            assert job.end() != 0
        restarts += job.text().count("resuming")
    with Torchrun(recipe, run, *lone_node(1)) as last:
        assert last.end() == 0, last.text()
    assert restarts + last.text().count("resuming") >= 8
    found = difference(whole, RunFolder.open(run))
    print("two processes, one, two, ...:", found)
    assert found < 1e-7


FRESH = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # without it torchrun cannot let a machine return


@pytest.fixture(params=["one network", "two networks"])
def machines(request: pytest.FixtureRequest) -> Iterator[list[Machine]]:
    """Two machines: processes of this one, or network namespaces that a virtual cable connects."""
    if request.param == "one network":
        yield [Machine("localhost", environment=FRESH)] * 2
        return
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"pru{os.getpid()}{letter}" for letter in "ab"]
    addresses = ["10.77.0.1", "10.77.0.2"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", names[1], "netns", names[1])
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", name)
            for device in ("lo", name):
                ip("-n", name, "link", "set", device, "up")
        yield [
            Machine(address, ["ip", "netns", "exec", name], {"GLOO_SOCKET_IFNAME": name} | FRESH)
            for name, address in zip(names, addresses, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no network namespaces: {done.stderr.strip()}")


def elastic_options(machines: list[Machine]) -> list[list[str]]:
    """For one or two machines, of which the first has torchrun's store."""
    options = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend", "c10d"]
    options += ["--rdzv-id", "elastic", "--rdzv-endpoint", f"{machines[0].address}:{free_port()}"]
    limits = "last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=8"
    return [
        [*options, "--local-addr", machine.address, "--rdzv-conf", f"{limits},is_host={host}"]
        for machine, host in zip(machines, ("true", "false"), strict=True)
    ]


def test_a_lost_machine_and_its_return(
    machines: list[Machine], whole: RunFolder, recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "elastic"
    options = elastic_options(machines)

    def start(number: int) -> Torchrun:
        return Torchrun(recipe, run, *options[number], machine=machines[number])

    with start(0) as first, start(1) as second:
        wait_for_checkpoint(run, first, 10)
        now = time.monotonic()
        second.kill()
        seconds = first.seconds_until(re.compile("another process of the run has ended"), now)
        first.seconds_until(re.compile("resuming"), now)
        wait_for_checkpoint(run, first, newest_checkpoint(run) + 10)
        [alone] = first.workers()
        os.kill(alone, signal.SIGSTOP)  # so that training cannot end before the machine is back
        now = time.monotonic()
        with start(1) as back:
            first.seconds_until(re.compile(f"Sending process {alone} closing signal SIGTERM"), now)
            os.kill(alone, signal.SIGCONT)
            wait_for_workers(back, 1)  # torchrun starts them when both machines take part
            assert first.end() == 0, first.text()
            assert back.end() == 0, back.text()
    found = difference(whole, RunFolder.open(run))
    print(f"noticed after {seconds:.2f} s; two, one, two:", found)
    assert seconds < 30
    assert found < 1e-7
    assert (first.text() + back.text()).count("resuming") >= 2  # said by rank 0, on either machine
