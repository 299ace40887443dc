"""Text files to words: UTF-8, split at white space, ``<eos>`` at the end of every line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import CHUNK

EOS = "<eos>"
UNKNOWN = "<unk>"

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_words(path: Path | int, split: Callable[[str], list[str]] = str.split) -> Iterator[list[str]]:
    """The words of a text file, some hundred thousand at a time; ``split`` cuts a line into words.

    As in Mikolov's and Merity's preprocessing, every line gives its words and then ``<eos>``, blank lines
    included: the published token counts hold only so. The last line counts whether or not a newline ends it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("in the beginning\\n\\nwas")
        >>> list(read_words(path))
        [['in', 'the', 'beginning', '<eos>', '<eos>', 'was', '<eos>']]
    """
    for block in read_blocks(path):
        first, *lines = block.split("\n")
        words = split(first)
        for line in lines:
            words.append(EOS)
            words += split(line)
        yield words


def read_blocks(path: Path | int) -> Iterator[str]:
    """The text of a file in blocks of about a megabyte, cut between words; the last ends in a newline.

    A path of 0 is standard input.

    A block, not a line, is what is held in memory, so that a line of any length is harmless.

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
                if cut:
                    yield _decode(block[:cut], name, offset)
                    offset += cut
                block = block[cut:] + chunk
    except OSError as error:
        raise PRUError(f"cannot read {name}: {error.strerror}") from error
    if block:
        yield _decode(block if block.endswith(b"\n") else block + b"\n", name, offset)


def _decode(block: bytes, name: str, offset: int) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise PRUError(
            f"{name} is not UTF-8: byte 0x{block[error.start]:02x} at offset {at}; convert the file to UTF-8"
        ) from error
