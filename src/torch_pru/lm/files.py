"""Every file of a run folder is opened here, and the folder is locked.

A run folder may come from a stranger, so nothing in it may lead out of it. Folders and files are opened
relative to an open directory and never through a symbolic link. Only regular files are read, and only up to a
limit that depends on their kind. Files are written under a temporary name and renamed. Only the run folder
itself is found by its path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from torch_pru.errors import PRUError

CHUNK = 1 << 20

TEXT_LIMIT = 8 << 20
"""Bytes of run.json, environment.json, scores.json, manifest.json and state.json."""

VOCABULARY_LIMIT = 32 << 20
"""Bytes of vocabulary.txt."""

METRICS_LIMIT = 4 << 30
"""Bytes of metrics.jsonl, which is never in memory as a whole."""

_RELATIVE = os.open in os.supports_dir_fd  # not on Windows, where links need a privilege
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_SAFE |= getattr(os, "O_BINARY", 0)
_NEW = os.O_CREAT | os.O_EXCL


class MissingFileError(PRUError):
    """A file or folder that is not there."""


class Folder:
    """A folder of a run, opened anew for each operation.

    Args:
        root: the run folder.
        inside: names of folders below it.

    Example:
        >>> import tempfile
        >>> folder = Folder(Path(tempfile.mkdtemp())) / "checkpoints"
        >>> folder.make()
        >>> folder.write("note.txt", b"whole or not at all")
        >>> folder.read("note.txt", TEXT_LIMIT), folder.names()
        (b'whole or not at all', ['note.txt'])
    """

    def __init__(self, root: Path, *inside: str) -> None:
        self.root, self.inside = root, inside
        for name in inside:
            check_name(name)

    @property
    def path(self) -> Path:
        """Where it is, for messages."""
        return self.root.joinpath(*self.inside)

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.root, *self.inside, name)

    def read(self, name: str, limit: int) -> bytes:
        """The content of a regular file of at most ``limit`` bytes."""
        with self.open(name, limit) as file, self._explaining("read", name):
            size = os.fstat(file.fileno()).st_size
            content = file.read(size + 1)  # which reserves as much memory
            if len(content) != size:
                raise PRUError(f"{self.path / name} was written to while it was read; try again")
            return content

    def open(self, name: str, limit: int) -> BufferedReader:
        """A regular file of at most ``limit`` bytes, open for reading."""
        with self._explaining("read", name), self._opened() as place:
            file = os.fdopen(place.open(name, os.O_RDONLY), "rb")
            try:
                check_regular(os.fstat(file.fileno()), self.path / name, limit)
            except BaseException:
                file.close()
                raise
            return file

    def size(self, name: str) -> int | None:
        """Bytes of a regular file; None where there is nothing of that name."""
        try:
            with self.open(name, 1 << 62) as file:
                return os.fstat(file.fileno()).st_size
        except MissingFileError:
            return None

    def has(self, name: str) -> bool:
        """Whether there is something of that name, a broken link included."""
        try:
            with self._explaining("read", name), self._opened() as place:
                place.status(name)
        except MissingFileError:
            return False
        return True

    def names(self) -> list[str]:
        """What the folder holds, sorted; nothing where it is missing."""
        try:
            with self._explaining("read"), self._opened() as place:
                return sorted(os.listdir(place.path if place.handle is None else place.handle))
        except MissingFileError:
            return []

    def make(self) -> None:
        """Create the folder. The run folder is created with its parents, but only when asked for itself:
        one that was deleted during training stays deleted. A link in the place of a folder is refused.
        """
        with self._explaining("write"):
            if not self.inside:
                os.makedirs(self.root, exist_ok=True)
            for depth, name in enumerate(self.inside):
                with (
                    Folder(self.root, *self.inside[:depth])._opened() as place,
                    contextlib.suppress(FileExistsError),
                ):
                    os.mkdir(place.at(name), dir_fd=place.handle)
            with self._opened():
                pass  # it is there, and it is no link

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all; what had the name before, be it a link, is replaced."""
        self.replace(name, iter([content])).close()

    def replace(self, name: str, pieces: Iterator[bytes]) -> BinaryIO:
        """`write` in pieces; the new file stays open, for appending."""
        aside = f".{name}.{secrets.token_hex(8)}"  # so that two processes do not mix their bytes
        with self._explaining("write", name), self._opened() as place:
            file = os.fdopen(place.open(aside, os.O_WRONLY | os.O_APPEND | _NEW), "ab")
            try:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                if os.name == "nt":  # which renames no open file
                    file.close()
                place.rename(aside, name)
                if os.name == "nt":
                    file = os.fdopen(place.open(name, os.O_WRONLY | os.O_APPEND), "ab")
            except BaseException:  # an interrupt, too, leaves nothing behind
                with contextlib.suppress(OSError):
                    file.close()
                with contextlib.suppress(OSError):
                    os.unlink(place.at(aside), dir_fd=place.handle)
                raise
            return file

    def create(self, name: str) -> BinaryIO:
        """A new file, open for writing; one of that name is refused."""
        with self._explaining("write", name), self._opened() as place:
            return os.fdopen(place.open(name, os.O_WRONLY | _NEW), "wb")

    def open_lock(self, name: str) -> BinaryIO:
        """A file to lock, created where it is missing; nothing is ever written to it."""
        with self._explaining("write", name), self._opened() as place:
            file = os.fdopen(place.open(name, os.O_RDWR | os.O_CREAT), "rb")
            try:
                check_regular(os.fstat(file.fileno()), self.path / name)
            except BaseException:
                file.close()
                raise
            return file

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder a new name, and wait until the disk has it."""
        with self._explaining("write", new), self._opened() as place:
            place.rename(old, new)

    @contextlib.contextmanager
    def handle(self) -> Iterator[int | None]:
        """A descriptor of the folder itself; None where the system has none."""
        with self._explaining("read"), self._opened() as place:
            yield place.handle

    def sync(self) -> None:
        """Wait until the names in the folder are on the disk."""
        with self._explaining("write"), self._opened() as place:
            place.sync()

    def remove(self, name: str) -> None:
        """Remove a file, a link or a whole folder, where there is one."""
        with contextlib.suppress(MissingFileError), self._explaining("remove", name), self._opened() as place:
            if stat.S_ISDIR(place.status(name).st_mode):
                shutil.rmtree(place.at(name), dir_fd=place.handle)
            else:
                os.unlink(place.at(name), dir_fd=place.handle)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_Place]:
        """The folder itself, each step of the way from the run folder taken without following a link."""
        place = _Place(self.root, self.root, None)
        try:
            for name in self.inside:
                inner = _Place(place.path / name, place.at(name), place.handle)
                place.close()
                place = inner
            yield place
        finally:
            place.close()

    @contextlib.contextmanager
    def _explaining(self, verb: str, name: str = "") -> Iterator[None]:
        """Turn what the system refuses into an error that names the file."""
        path = self.path / name
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFileError(f"cannot {verb} {path}: {error.strerror}") from error
        except OSError as error:
            if (link := self._first_link(name)) is not None:
                raise PRUError(
                    f"{link} is a symbolic link; links in a run folder are not followed; put a copy in "
                    f"its place"
                ) from error
            if error.errno == errno.ENXIO:  # what opening a FIFO or a socket without waiting gives
                raise PRUError(f"{path} is not a regular file") from error
            raise PRUError(f"cannot {verb} {path}: {error.strerror or error}") from error

    def _first_link(self, name: str) -> Path | None:
        """The link on the way to a file, for the message after it was refused."""
        path = self.root
        for part in ("", *self.inside, name):
            path = path / part
            if path.is_symlink():
                return path
        return None


class _Place:
    """An open directory; without a descriptor where the system has none for directories."""

    def __init__(self, path: Path, at: str | Path, parent: int | None) -> None:
        self.path = path
        self.handle: int | None = None
        if _RELATIVE:
            self.handle = os.open(at, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=parent)
        elif not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def at(self, name: str) -> str:
        """A name in this directory, as calls with ``dir_fd`` take it."""
        check_name(name)
        return name if self.handle is not None else str(self.path / name)

    def status(self, name: str) -> os.stat_result:
        """Of what has a name, not of what a link leads to."""
        return os.stat(self.at(name), dir_fd=self.handle, follow_symlinks=False)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file; links are refused, and a FIFO is not waited for."""
        if self.handle is None and os.path.lexists(self.at(name)):
            check_regular(self.status(name), self.path / name)
        return os.open(self.at(name), flags | _SAFE, 0o666, dir_fd=self.handle)

    def rename(self, old: str, new: str) -> None:
        """Give a new name, in the place of what has it, and wait until the disk has it."""
        if self.handle is None:
            os.replace(self.at(old), self.at(new))
        else:
            os.replace(self.at(old), self.at(new), src_dir_fd=self.handle, dst_dir_fd=self.handle)
        self.sync()

    def sync(self) -> None:
        """Wait until the names in this directory are on the disk."""
        if self.handle is not None:
            os.fsync(self.handle)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.handle is not None:
            os.close(self.handle)


def check_name(name: str) -> None:
    """Refuse a name that leads out of its folder."""
    if name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise PRUError(f"{name!r} is not the name of a file in a run folder")


def check_regular(status: os.stat_result, path: str | Path, limit: int = 1 << 62) -> None:
    """Refuse anything but a regular file of at most ``limit`` bytes: folders, links, FIFOs, devices."""
    if not stat.S_ISREG(status.st_mode):
        raise PRUError(f"{path} is not a regular file")
    if status.st_size > limit:
        raise PRUError(f"{path} has {status.st_size:,} bytes; the limit for it is {limit:,}")


def read_limited(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes; a FIFO is not waited for.

    Example:
        >>> read_limited(os.devnull, 100)
        Traceback (most recent call last):
        ...
        torch_pru.errors.PRUError: /dev/null is not a regular file
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            check_regular(os.fstat(file.fileno()), path, limit)
            return file.read()
    except OSError as error:
        raise PRUError(f"cannot read {path}: {error.strerror}") from error


@contextlib.contextmanager
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


def lock(file: BinaryIO) -> bool:
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
