"""The tests' side of ``worker.py``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


def wait_for_metrics(run: Path) -> None:
    """Until the run in a folder is at work since a few steps."""
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Workshop:
    """Starts jobs in forked processes, kills them, and waits for them."""

    def __init__(self, folder: Path) -> None:
        self.said = folder / "said"
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def _ask(self, job: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, do: str, **job: Any) -> int:
        self.said.write_text("")
        return self._ask({"do": do, "said": str(self.said)} | job)

    def wait(self, child: int) -> int:
        return self._ask({"do": "wait", "child": child})

    def run(self, do: str, **job: Any) -> int:
        """Start a job, wait for its end and return its status; a signal's is negative."""
        return self.wait(self.start(do, **job))

    def kill_after(self, seconds: float, child: int, number: int = signal.SIGKILL) -> int:
        time.sleep(seconds)
        os.kill(child, number)
        return self.wait(child)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
