"""One file over HTTP, going on where an earlier attempt stopped."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from torch_pru.lm.data.storage import writing
from torch_pru.lm.progress import ProgressCallback

LIMIT = 1 << 28
"""Bytes of a download: more than any known corpus has, and few enough for any disk."""

_TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 10  # on a connection that keeps breaking but brings something each time
_PIECE = 1 << 16  # bytes between two calls of `progress`


class TooLargeError(Exception):
    """More bytes than a corpus has."""


class MirrorError(Exception):
    """A mirror could not be reached, or what it gave is not the file: the next one may do better."""


def download(url: str, part: Path, progress: ProgressCallback | None = None) -> None:
    """Fetch ``url`` into ``part``, keeping the bytes that are there already and asking for the rest.

    A connection that breaks is taken up again for as long as each attempt brings more. Whatever was received
    stays in ``part`` for a later call, so the caller checks the content of the whole.

    Args:
        url: an http or https address.
        part: the file that grows.
        progress: called with the bytes in ``part`` and those of the whole (None: the server does not say).
    """
    for attempt in range(_ATTEMPTS):
        before = _size(part)
        try:
            _receive(url, part, progress)
            return
        except TooLargeError as error:
            with writing(part):
                part.unlink(missing_ok=True)
            raise MirrorError(f"{url}: {error}") from error
        except (OSError, http.client.HTTPException, MirrorError) as error:  # urllib's errors are OSErrors
            if attempt == _ATTEMPTS - 1 or _size(part) <= before:
                raise MirrorError(f"{url}: {_reason(error)}") from error


def _receive(url: str, part: Path, progress: ProgressCallback | None) -> None:
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "torch-pru"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = _OPENER.open(request, timeout=_TIMEOUT)
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
            raise MirrorError("the server sent a different range than requested")
        total = _total(response.headers.get("Content-Length"), have)
        done = _append(response, part, have, total, progress)
    # http.client ends quietly when a connection is cut, so the count is what tells.
    if total is not None and done < total:
        raise MirrorError(f"cut off after {done} of {total} bytes")


def _append(
    response: http.client.HTTPResponse,
    part: Path,
    have: int,
    total: int | None,
    progress: ProgressCallback | None,
) -> int:
    """Write the body behind the first ``have`` bytes of ``part``; the size it then has."""
    done = have
    with writing(part), open(part, "ab" if have else "wb") as file:
        while piece := _read(response):
            file.write(piece)
            done += len(piece)
            if done > LIMIT:
                raise TooLargeError(f"sends more than {LIMIT:,} bytes, which no corpus has")
            if progress:
                progress(done, total)
        file.flush()
        os.fsync(file.fileno())
    return done


def _total(length: str | None, have: int) -> int | None:
    """Bytes of the whole file, as far as the server says."""
    if length is None:
        return None
    if not (length.isascii() and length.isdecimal() and len(length) < 20):
        raise MirrorError(f"the server sent the Content-Length {length!r:.40}")
    if have + int(length) > LIMIT:
        raise TooLargeError(f"has {have + int(length):,} bytes; no corpus has more than {LIMIT:,}")
    return have + int(length)


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http and https only; urllib would take ftp, too."""

    def redirect_request(self, *arguments: Any) -> urllib.request.Request | None:
        url = str(arguments[-1])
        if not url.startswith(("http://", "https://")):
            raise MirrorError(f"redirects to {url!r:.100}, which is not on the web")
        return super().redirect_request(*arguments)


_OPENER = urllib.request.build_opener(_WebOnly)


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
