"""Numbered text kept on disk, so that a corpus is tokenised once."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import cache_folder, write_aside

_DIGEST_BYTES = 32

Arrays = dict[str, np.ndarray]


def cached(key: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under ``key``, or those that ``build`` makes, which are then kept.

    A damaged entry is made again. Where the cache cannot be written, everything works without it and a
    warning says so.

    Example:
        >>> import os, tempfile, unittest.mock
        >>> with unittest.mock.patch.dict(os.environ, TORCH_PRU_CACHE=tempfile.mkdtemp()):
        ...     made = cached("squares", lambda: {"x": np.arange(3) ** 2})
        ...     kept = cached("squares", lambda: {"x": np.zeros(3)})
        >>> made["x"], kept["x"]
        (array([0, 1, 4]), array([0, 1, 4]))
    """
    try:
        path = cache_folder() / "tokens" / f"{key}.bin"
    except PRUError as error:
        warnings.warn(f"text is tokenised anew each time: {error}", stacklevel=2)
        return build()
    arrays = _load(path)
    if arrays is None:
        arrays = build()
        try:
            _store(path, arrays)
        except PRUError as error:
            warnings.warn(f"text is tokenised anew each time: {error}", stacklevel=2)
    return arrays


def _store(path: Path, arrays: Arrays) -> None:
    """Write arrays as one .npz behind its digest: no damage goes unseen, and none reaches the parser."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    content = buffer.getbuffer()
    with write_aside(path) as file:
        file.write(hashlib.sha256(content).digest())
        file.write(content)


def _load(path: Path) -> Arrays | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = memoryview(data)[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
        warnings.warn(f"{path} is damaged; its text is tokenised again", stacklevel=3)
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)
