"""One file over HTTP, going on where an earlier attempt stopped."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from torch_pru.lm.data.storage import writing

Progress = Callable[[int, "int | None"], None]

_TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 10  # on a connection that keeps breaking but brings something each time
_PIECE = 1 << 16  # bytes between two calls of `progress`


class MirrorError(Exception):
    """A mirror could not be reached, or what it gave is not the file: the next one may do better."""


def download(url: str, part: Path, progress: Progress | None = None) -> None:
    """Fetch ``url`` into ``part``, keeping the bytes that are there already and asking for the rest.

    A connection that breaks is taken up again for as long as each attempt brings more. Whatever was received
    stays in ``part`` for a later call, so the caller checks the content of the whole.

    Args:
        url: an http or https address.
        part: the file that grows.
        progress: called with the bytes in ``part`` and those of the whole (None: the server does not say).

    Example:
        >>> import tempfile
        >>> try:
        ...     download("http://127.0.0.1:9/a.txt", Path(tempfile.mkdtemp()) / "a.part")
        ... except MirrorError as error:
        ...     print("no such mirror")
        no such mirror
    """
    for attempt in range(_ATTEMPTS):
        before = _size(part)
        try:
            _receive(url, part, progress)
            return
        except (OSError, http.client.HTTPException, MirrorError) as error:  # urllib's errors are OSErrors
            if attempt == _ATTEMPTS - 1 or _size(part) <= before:
                raise MirrorError(f"{url}: {_reason(error)}") from error


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "torch-pru"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # nothing lies beyond what is here; whether that is right, the caller's check says
        raise
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            have = 0  # the server sends the whole file, whatever was asked for
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            with writing(part):
                part.unlink(missing_ok=True)  # so that the next attempt asks for the whole file
            raise MirrorError("the server answered with another range than asked for")
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        done = _append(response, part, have, total, progress)
    # http.client ends quietly when a connection is cut, so the count is what tells.
    if total is not None and done < total:
        raise MirrorError(f"cut off after {done} of {total} bytes")


def _append(
    response: http.client.HTTPResponse, part: Path, have: int, total: int | None, progress: Progress | None
) -> int:
    """Write the body behind the first ``have`` bytes of ``part``; the size it then has."""
    done = have
    with writing(part), open(part, "ab" if have else "wb") as file:
        while piece := _read(response):
            file.write(piece)
            done += len(piece)
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return done


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise MirrorError(_reason(error)) from error  # an OSError would be taken for the disk's


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or error or type(error).__name__)
