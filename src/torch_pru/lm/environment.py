"""Where a run works: versions, commit and machine, as environment.json records them."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import numpy
import torch

import torch_pru
from torch_pru.lm.device import device_name


def environment(device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, commit and machine."""
    return {
        "torch_pru": torch_pru.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "processes": processes,
    }


def commit(file: str = __file__) -> str | None:
    """The commit of this package's source, with ``+`` where files were changed; None outside a checkout."""
    here, name = os.path.split(os.path.abspath(file))
    # First, whether the checkout is of this file at all: an environment may lie in somebody else's.
    questions = (["ls-files", "--error-unmatch", name], ["rev-parse", "HEAD"], ["status", "--porcelain"])
    answers = []
    try:
        for question in questions:
            done = subprocess.run(["git", "-C", here, *question], capture_output=True, text=True, timeout=10)
            if done.returncode:
                return None
            answers.append(done.stdout.strip())
    except (OSError, subprocess.SubprocessError):
        return None
    _, head, changed = answers
    return head + ("+" if changed else "")
