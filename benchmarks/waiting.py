"""How PyTorch's threads should wait for each other on a CPU: a step of the quickstart under several settings.

    python benchmarks/waiting.py --json benchmarks/records/waiting-cpu.json

Each setting has a process of its own; they take their steps in turns, on a machine that is otherwise idle,
and beside one and two processes that compute all the time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from quickstart import HERE, Worker

PASSIVE = {"OMP_WAIT_POLICY": "passive"}
DEFAULT = "PyTorch's default"
SETTINGS = {  # environment variables of GNU OpenMP, with which PyTorch for Linux is built
    DEFAULT: {},
    "OMP_WAIT_POLICY=passive": PASSIVE,
    "and GOMP_SPINCOUNT=1000, as pru sets it": PASSIVE | {"GOMP_SPINCOUNT": "1000"},
    "and GOMP_SPINCOUNT=5000": PASSIVE | {"GOMP_SPINCOUNT": "5000"},
    "and GOMP_SPINCOUNT=20000": PASSIVE | {"GOMP_SPINCOUNT": "20000"},
}
BUSY = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", default=15, type=int, help="rounds, of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to this file")
    arguments = parser.parse_args()
    from timing import table, write_record

    workers = {name: Worker(HERE, [], **variables) for name, variables in SETTINGS.items()}
    taken = [milliseconds(workers, count, arguments.repeats) for count in BUSY]
    idle = taken[0]
    rows = [
        (name, f"{idle[name] / idle[DEFAULT]:.3f}", *(f"{times[name]:.1f}" for times in taken))
        for name in SETTINGS
    ]
    title = f"A training step of the quickstart, {workers[DEFAULT].title}"
    header = ("setting", "idle, relative", "idle, ms", "one busy process, ms", "two busy processes, ms")
    print(table(title, header, rows))
    if arguments.json is not None:
        write_record(arguments.json, [(title, header, rows)])


def milliseconds(workers: dict[str, Worker], busy: int, repeats: int) -> dict[str, float]:
    """The median time of a step under each setting, beside a number of busy processes."""
    with busy_processes(busy):
        rounds = [{name: worker.ask("step") for name, worker in workers.items()} for _ in range(repeats)]
    return {name: statistics.median(one[name] for one in rounds) * 1e3 for name in workers}


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
