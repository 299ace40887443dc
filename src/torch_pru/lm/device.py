"""The device that a run uses, and its name."""

from __future__ import annotations

import os
import platform
import re

import torch

from torch_pru.errors import PRUError


def choose_device(name: str) -> torch.device:
    """The device for a setting. ``auto`` is a GPU if there is one; under torchrun, each process has its own.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    chosen = {"auto": own if torch.cuda.is_available() else "cpu", "cuda": own}.get(name, name)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", chosen):
        raise PRUError(f"device={name!r} is not known; use 'auto', 'cpu', 'cuda' or 'cuda:N' (an NVIDIA GPU)")
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise PRUError(f"device={name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def device_name(device: torch.device) -> str:
    """The model name of a GPU, or what the system reports for the CPU.

    Example:
        >>> device_name(torch.device("cpu")) != ""
        True
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or "cpu"
