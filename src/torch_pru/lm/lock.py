"""The lock of a run folder: one process at a time works on a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from torch_pru.errors import PRUError
from torch_pru.lm.files import Folder


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes away from a run folder; the system lifts the lock when this process ends.

    Where another process uses it already, wait up to ``patience`` seconds for it.
    """
    files = Folder(path)
    files.make()
    # The folder, too: the file can be deleted while a process holds it, and another would make a new one.
    with files.open_lock("lock") as file, files.handle() as folder:
        deadline = time.monotonic() + patience
        while not (taken := lock(file) and lock_folder(folder)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not taken:
            raise PRUError(
                f"another process is using the run in {path}; wait until it has finished, or stop it"
            )
        yield


def lock(file: IO[bytes]) -> bool:
    """Take an exclusive lock on an open file; False where another holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lock_folder(handle: int | None) -> bool:
    """Take an exclusive lock on an open folder; False where another holds it. Not every system can."""
    if handle is not None and sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # some network file systems lock files only
            pass
    return True
