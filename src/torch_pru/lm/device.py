"""Where and how a run computes: its device and precision, and what environment.json records of both."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy
import torch
from torch import nn

import torch_pru
from torch_pru.errors import PRUError

AUTOCAST_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device for a setting. ``auto`` is a GPU if there is one; under torchrun, one for each process."""
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    chosen = {"auto": own if torch.cuda.is_available() else "cpu", "cuda": own}.get(name, name)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", chosen):
        raise PRUError(
            f"device={name!r} is not known; use 'auto', 'cpu', 'cuda' (an NVIDIA GPU), or one of several "
            f"GPUs, such as 'cuda:1'"
        )
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PRUError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def device_name(device: torch.device) -> str:
    """The model name of a GPU, or what the system reports for the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or "cpu"


def weight_dtype(precision: str) -> torch.dtype:
    """The dtype of the weights: float32, also if matrix products are computed in 16 bits."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The autocast context for a precision; without effect for float32 and float64.

    Example:
        >>> with autocast("bfloat16", torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def check_precision(precision: str, device: torch.device, model: nn.Module) -> None:
    """Raise if PyTorch cannot compute a model in this precision on this device."""
    lstm = any(isinstance(module, nn.LSTM) for module in model.modules())
    if precision == "float16" and device.type == "cpu" and lstm:
        raise PRUError("precision='float16' is not supported by nn.LSTM on a CPU; use bfloat16 or float32")


def usable_precision(precision: str, device: torch.device, model: nn.Module) -> str:
    """``precision``, or float32 if PyTorch cannot compute the model in it on this device."""
    try:
        check_precision(precision, device, model)
    except PRUError:
        return "float32"
    return precision


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
