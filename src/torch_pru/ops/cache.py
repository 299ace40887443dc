"""Where compiled kernels are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path | None:
    """The folder of compiled kernels: TORCH_PRU_CACHE, or one in the user's cache folder, if there is one."""
    try:
        chosen = os.environ.get("TORCH_PRU_CACHE")
        if chosen:
            return Path(chosen).expanduser()
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # a user without a home, as in some containers
        return None
    return Path(base) / "torch_pru" / "kernels"
