"""What the command ``pru`` sets before PyTorch is loaded. Programs that use the layer are left alone.

OpenMP: by default PyTorch's threads spin for milliseconds while they wait for each other. On a busy machine
they take each other's time, and training becomes many times slower. If they sleep at once, an idle machine
loses time. So they spin briefly, then sleep; ``benchmarks/waiting.py`` compares the settings.

Ctrl-C: a ``KeyboardInterrupt`` in the middle of an import would print a traceback, or become another error.
Until the command begins, Ctrl-C ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import MutableMapping, Sequence
from itertools import pairwise
from pathlib import PurePath, PureWindowsPath

STARTED = time.monotonic()
"""When the command began: PyTorch, which takes seconds to load, is not loaded yet."""


def is_command(arguments: Sequence[str]) -> bool:
    """Whether the arguments of this process are those of ``pru`` or ``python -m torch_pru``.

    Example:
        >>> is_command(["python", "/usr/bin/pru", "train"]), is_command(["python", "-m", "torch_pru"])
        (True, True)
        >>> is_command(["python", "train.py", "pru"])
        False
    """
    script = next((one for one in arguments[1:] if not one.startswith("-")), "")
    names = {kind(one).name for one in (*arguments[:1], script) for kind in (PurePath, PureWindowsPath)}
    return bool(names & {"pru", "pru.exe"}) or ("-m", "torch_pru") in pairwise(arguments)


def set_waiting(environment: MutableMapping[str, str]) -> None:
    """Let threads sleep soon while they wait, unless the user has chosen otherwise.

    ``GOMP_SPINCOUNT`` is for GNU OpenMP, with which PyTorch for Linux is built; other libraries read
    ``OMP_WAIT_POLICY`` alone.

    Example:
        >>> environment = {}
        >>> set_waiting(environment)
        >>> environment
        {'OMP_WAIT_POLICY': 'passive', 'GOMP_SPINCOUNT': '1000'}
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(environment):
        environment.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="1000")


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process at once, with status 130 and without a traceback.

    Nothing is cleaned up, so this is for the time before a command begins and after it has ended. Where
    Ctrl-C is ignored, as in a job that a shell runs in the background, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise ``KeyboardInterrupt`` again, as in any Python program."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: object) -> None:
    os._exit(128 + number)


if is_command(sys.orig_argv):
    set_waiting(os.environ)
    exit_on_interrupt()
