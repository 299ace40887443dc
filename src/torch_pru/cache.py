"""The folder where the package keeps what it can make or download again: compiled kernels and data sets."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """The value of ``TORCH_PRU_CACHE``, else ``torch-pru`` in the user's cache folder.

    Returns:
        None for a user without a home folder, as in some containers.
    """
    from platformdirs import user_cache_path

    try:
        if chosen := os.environ.get("TORCH_PRU_CACHE"):
            return Path(chosen).expanduser()
        Path.home()  # raises if there is none; platformdirs would use a folder that is called ~
    except RuntimeError:
        return None
    return user_cache_path("torch-pru", appauthor=False)
