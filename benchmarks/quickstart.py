"""A training step of the quickstart (`pru train`) on a CPU: with compiled kernels, without, and as it was.

    python benchmarks/quickstart.py --json benchmarks/records/quickstart-cpu.json
    python benchmarks/quickstart.py --before ../earlier   # also that of another checkout, say a git worktree
    python benchmarks/quickstart.py --one-thread-time     # CPU time of one thread: on a busy machine

Each is a process of its own; they take their steps in turns. The text is random words. A step of this
checkout is checked against float64 before it is timed, by the check of training.py.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
WORDS, STEPS = 5_630, 35  # the vocabulary and the window of the quickstart
SETTINGS = {"groups": "4"}  # which earlier versions had otherwise
GROUPS = {  # names of PyTorch's profiler, or what is in them
    "decoder and cross-entropy": ("cross_entropy", "mm", "softmax", "nll_loss", "scatter"),
    "layer": ("cpu_layer", "rnn_layer", "lstm", "sigmoid", "tanh", "bmm"),
    "update of the weights": ("foreach", "Optimizer", "linalg_vector_norm", "aten::sub", "aten::lerp"),
}
REST = "everything else"


class Worker:
    """A process that takes steps when it is told to."""

    def __init__(self, checkout: Path, flags: list[str], **environment: str) -> None:
        paths = (str(checkout / "src"), str(checkout / "benchmarks"))
        command = [
            sys.executable,
            "-P",
            str(Path(__file__)),
            "--worker",
            *flags,
        ]  # -P: the modules of the checkout
        if checkout == HERE:
            command.append("--check")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        self.title = self._read()

    def ask(self, request: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a step could not be measured; exit status {self.process.wait()}")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="an earlier version")
    parser.add_argument("--repeats", default=15, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    parser.add_argument("--one-thread-time", action="store_true", help="CPU time, not wall-clock time")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(arguments.check, arguments.one_thread_time)
        return
    from timing import table

    flags = ["--one-thread-time"] if arguments.one_thread_time else []
    workers = {
        "compiled kernels": Worker(HERE, flags),
        "PyTorch operations": Worker(HERE, flags, TORCH_PRU_NATIVE="0"),
    }
    if arguments.before is not None:
        workers["before"] = Worker(arguments.before.resolve(), flags)
    rounds = [
        {name: worker.ask("step") for name, worker in workers.items()} for _ in range(arguments.repeats)
    ]
    milliseconds = {name: statistics.median(taken[name] for taken in rounds) * 1e3 for name in workers}
    shares = {name: worker.ask("profile") for name, worker in workers.items()}
    rows = []
    for name, taken in milliseconds.items():
        parts = (f"{taken * shares[name][group]:.1f}" for group in (*GROUPS, REST))
        rows.append((name, f"{taken:.1f}", *parts))
    title = f"A training step of the quickstart, {workers['compiled kernels'].title}"
    header = ("step", "ms", *(f"{group}, ms" for group in (*GROUPS, REST)))
    print(table(title, header, rows))
    if arguments.json is not None:
        record = {title: [dict(zip(header, row, strict=True)) for row in rows]}
        arguments.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def serve(check: bool, one_thread: bool) -> None:
    """Answer requests from standard input: for the seconds of a step, or for where its time goes."""
    import torch
    import training  # of the checkout that is measured

    if one_thread:
        torch.set_num_threads(1)
    clock = time.thread_time if one_thread else time.perf_counter
    training.WORDS["king-james"], training.STEPS = WORDS, STEPS
    row, device = training.Row("quickstart", SETTINGS), torch.device("cpu")
    if check:
        training.check(row, device)
    step = training.build_step(row, device)
    for _ in range(3):
        step()
    answers: dict[str, Callable[[], Any]] = {
        "step": functools.partial(seconds, step, clock),
        "profile": functools.partial(profile, step),
    }
    threads = "one CPU thread, CPU time" if one_thread else f"{torch.get_num_threads()} CPU threads"
    say(f"{threads}, PyTorch {torch.__version__}")
    for line in sys.stdin:
        say(answers[line.strip()]())


def say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def seconds(step: Callable[[], None], clock: Callable[[], float], count: int = 5) -> float:
    step()  # the caches are those of another process
    start = clock()
    for _ in range(count):
        step()
    return (clock() - start) / count


def profile(step: Callable[[], None], count: int = 5) -> dict[str, float]:
    """The share of each group in the time of a step."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            step()
    taken = dict.fromkeys((*GROUPS, REST), 0.0)
    for event in profiler.key_averages():
        taken[group_of(event.key)] += event.self_cpu_time_total
    total = sum(taken.values())
    return {group: time_of / total for group, time_of in taken.items()}


def group_of(name: str) -> str:
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), REST)


if __name__ == "__main__":
    main()
