"""OpenMP settings of the command ``pru``, made before PyTorch is loaded and reads them.

By default PyTorch's threads spin while they wait for each other. On a busy machine they take each other's
time, and training becomes many times slower. With ``OMP_WAIT_POLICY=passive`` they sleep while they wait.
Programs that use the layer decide for themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from itertools import pairwise
from pathlib import Path


def is_command(arguments: Sequence[str]) -> bool:
    """Whether the arguments of this process are those of ``pru`` or ``python -m torch_pru``.

    Example:
        >>> is_command(["python", "/usr/bin/pru", "train"]), is_command(["python", "-m", "torch_pru"])
        (True, True)
        >>> is_command(["python", "train.py", "pru"])
        False
    """
    script = next((one for one in arguments[1:] if not one.startswith("-")), "")
    own = Path(arguments[0]).stem if arguments else ""
    return "pru" in (Path(script).stem, own) or ("-m", "torch_pru") in pairwise(arguments)


def wait_passively(environment: MutableMapping[str, str]) -> None:
    """Let threads sleep while they wait, unless the user has chosen otherwise.

    Example:
        >>> environment = {}
        >>> wait_passively(environment)
        >>> environment
        {'OMP_WAIT_POLICY': 'passive'}
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & set(environment):
        environment["OMP_WAIT_POLICY"] = "passive"


if is_command(sys.orig_argv):
    wait_passively(os.environ)
