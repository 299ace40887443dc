"""Where data lives on disk, and how files are written so that a crash leaves none half done."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torch_pru.cache import cache_folder
from torch_pru.errors import PRUError

CHUNK = 1 << 20  # bytes read at a time; files of any size pass through this much memory


def data_folder() -> Path:
    """The folder of the named corpora: ``$PRU_DATA``, or ``data`` in the package's cache folder."""
    if chosen := os.environ.get("PRU_DATA"):
        return Path(chosen)
    cache = cache_folder()
    if cache is None:
        raise PRUError("there is no home folder for data sets; set PRU_DATA or TORCH_PRU_CACHE to a folder")
    return cache / "data"


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PRUError(f"cannot read {path}: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents unless they are there."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk may answer (full, read-only, not allowed) into an error that names ``path``."""
    try:
        yield
    except OSError as error:
        raise PRUError(f"cannot write {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def write_aside(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` only when complete and on the disk.

    When the block raises, or the disk is full, ``path`` keeps what it had and nothing is left behind.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "note.txt"
        >>> with write_aside(target) as file:
        ...     _ = file.write(b"whole or not at all")
        >>> target.read_text()
        'whole or not at all'
    """
    make_folder(path.parent)
    with writing(path):
        # A name of its own, so that two processes writing the same file do not mix their bytes.
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with open(aside, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            put_in_place(aside, path)
        except BaseException:  # an interrupt too must leave nothing behind
            with contextlib.suppress(OSError):
                aside.unlink()
            raise


def put_in_place(finished: Path, path: Path) -> None:
    """Rename a synced file to its final name, and wait until the disk has it, where that is possible."""
    os.replace(finished, path)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
