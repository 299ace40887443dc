"""Checksums inside of JSON: a file or a line that was damaged is noticed when it is read.

They find damage, not forgery: whoever can write a file can write its checksum.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError

SEAL = "sha256"
MOST_LISTS = 100_000
"""Lists and objects in a file: more than any run has, and few enough for any memory."""

LINE_END = re.compile(rb', "crc": "([0-9a-f]{8})"}\n?$')


def seal(content: Mapping[str, Any]) -> bytes:
    """A JSON object as the content of a file, with its checksum."""
    return json.dumps({**content, SEAL: digest_of(content)}, indent=1).encode() + b"\n"


def unseal(data: bytes, path: Path) -> dict[str, Any]:
    """The JSON object that ``seal`` was given; objects of earlier versions have no checksum.

    Args:
        data: the content of a file.
        path: of the file, for messages.
    """
    content = parse_object(data, path)
    expected = content.pop(SEAL, None)
    if expected is not None and expected != digest_of(content):
        raise PRUError(f"{path} does not match its checksum: it is damaged or was edited")
    return content


def parse_object(data: bytes, path: Path, most: int = MOST_LISTS) -> dict[str, Any]:
    """A JSON object; anything else is refused with the path of the file."""
    try:
        content = parse_json(data, most)
    except ValueError as error:
        raise PRUError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise PRUError(f"{path} is not a JSON object")
    return content


def parse_json(data: bytes, most: int = MOST_LISTS) -> Any:
    """JSON of any kind; raises a ValueError if it is malformed, or has more than ``most`` lists and objects.

    Two bytes make an empty list, which takes 64 bytes of memory.
    """
    if (found := data.count(b"[") + data.count(b"{")) > most:
        raise ValueError(f"it has {found:,} lists and objects; at most {most:,} are read")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def seal_line(content: Mapping[str, Any], previous: int = 0) -> tuple[bytes, int]:
    """A JSON object as a line with its checksum, which continues that of the line before.

    Returns:
        The line, and the checksum that the next line continues.

    Example:
        >>> first, checksum = seal_line({"step": 1})
        >>> first, seal_line({"step": 2}, checksum)[0]
        (b'{"step": 1, "crc": "3a87913d"}\\n', b'{"step": 2, "crc": "ca040501"}\\n')
    """
    line = json.dumps(content).encode()
    checksum = zlib.crc32(line, previous)
    return line[:-1] + f', "crc": "{checksum:08x}"}}\n'.encode(), checksum


def unseal_line(line: bytes, previous: int = 0) -> tuple[dict[str, Any], int]:
    """The object that ``seal_line`` was given, and the checksum that the next line continues.

    Lines of earlier versions have no checksum. Raises a ValueError for a line that is damaged, or that does
    not follow the line with the checksum ``previous``.
    """
    checksum = 0
    if found := LINE_END.search(line):
        line = line[: found.start()] + b"}"
        checksum = int(found[1], 16)
        if zlib.crc32(line, previous) != checksum:
            raise ValueError("it does not match its checksum, or lines before it are missing")
    try:
        content = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content, checksum
