"""Text files, read in blocks of about a megabyte."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import CHUNK

EOS = "<eos>"
UNKNOWN = "<unk>"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_blocks(path: Path | int, *, whole_words: bool = True, whole_lines: bool = False) -> Iterator[str]:
    """The text of a file in blocks of about a megabyte, cut after a space or a line break.

    The last block ends in a newline. A block, not a line, is held in memory, so a line of any length is fine.

    Args:
        path: a UTF-8 file, or 0 for standard input; a byte-order mark is skipped.
        whole_words: never cut inside a word, however long it is. If False, a block without any space or line
            break is cut between two characters.
        whole_lines: cut after a line break; only a line that is longer than a block is cut before a space.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("in the beginning")
        >>> list(read_blocks(path))
        ['in the beginning\\n']
    """
    name = "standard input" if path == 0 else str(path)
    try:
        with open(path, "rb", closefd=path != 0) as file:
            offset = 0  # of the first byte of `block` in the file
            block = file.read(CHUNK)
            if block.startswith(_BYTE_ORDER_MARK):
                offset, block = len(_BYTE_ORDER_MARK), block[len(_BYTE_ORDER_MARK) :]
            while chunk := file.read(CHUNK):
                # These two bytes are never part of a longer UTF-8 character.
                cut = max(block.rfind(b" "), block.rfind(b"\n")) + 1
                if whole_lines:
                    cut = block.rfind(b"\n") + 1 or max(0, block.rfind(b" "))
                if not cut and (whole_lines or not whole_words):
                    cut = _last_character(block)
                if cut:
                    yield _decode(block[:cut], name, offset)
                    offset += cut
                block = block[cut:] + chunk
    except OSError as error:
        raise PRUError(f"cannot read {name}: {error.strerror}") from error
    if block:
        yield _decode(block if block.endswith(b"\n") else block + b"\n", name, offset)


def _last_character(block: bytes) -> int:
    """Where the last UTF-8 character of a block begins."""
    at = len(block) - 1
    while at > 0 and block[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _decode(block: bytes, name: str, offset: int) -> str:
    if (at := block.find(b"\0")) >= 0 and not _is_utf16(block, offset):
        raise PRUError(f"{name} is not a text file: it has a NUL byte at offset {offset + at}")
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if _is_utf16(block, offset) else "LATIN1"
        raise PRUError(
            f"{name} is not UTF-8: byte 0x{block[error.start]:02x} at offset {offset + error.start}; "
            f"convert it first, for example with: "
            f"iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > NEW_FILE"
        ) from error


def _is_utf16(block: bytes, offset: int) -> bool:
    return offset == 0 and block[:2] in (b"\xff\xfe", b"\xfe\xff")
