"""The files of a user's text, and how it is split into training, validation and test, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from torch_pru.errors import PRUError
from torch_pru.lm.data.sources import SPLITS
from torch_pru.lm.data.storage import CHUNK
from torch_pru.lm.data.text import read_blocks

FEWEST_TOKENS = 500  # of a text
HELD_OUT = 0.05  # share of the text for validation, and as much for test
MOST_HELD_OUT = 30_000  # tokens; more would only take longer to score
CYCLE = 40_000  # tokens; each cycle of the text gives a stretch to validation and one to test
MOST_CYCLES = 50


def parts_of(sources: list[Path]) -> dict[str, list[Path]]:
    """The files of each part, or all files under ``"all"`` where the text is still to be split."""
    if len(sources) == 1 and all((sources[0] / f"{split}.txt").is_file() for split in SPLITS):
        return {split: [sources[0] / f"{split}.txt"] for split in SPLITS}
    files = [path for source in sources for path in files_in(source)]
    if not any(path.stat().st_size for path in files):
        names = ", ".join(map(str, sources))
        raise PRUError(f"{names} is empty; it needs at least {FEWEST_TOKENS} words of text")
    return {"all": files}


def files_in(source: Path) -> list[Path]:
    """A file, or the text files of a folder and its subfolders: not hidden ones, and none with a NUL byte."""
    if not source.is_dir():
        if not source.exists():
            raise PRUError(f"there is no file or folder {source}")
        return [source]
    inside = sorted(path for path in source.rglob("*") if path.is_file())
    visible = [
        path for path in inside if not any(part.startswith(".") for part in path.relative_to(source).parts)
    ]
    texts = [path for path in visible if b"\0" not in beginning(path)]
    if not texts:
        raise PRUError(f"the folder {source} has no text files")
    return texts


def beginning(path: Path, size: int = 1 << 13) -> bytes:
    """The first bytes of a file."""
    try:
        with open(path, "rb") as file:
            return file.read(size)
    except OSError as error:
        raise PRUError(f"cannot read {path}: {error.strerror}") from error


def sample_of(files: Sequence[Path], blocks: int = 8) -> str:
    """Some text from the first files, enough to see what kind of text it is."""
    read = (
        block[: CHUNK // 4] for path in files for block in islice(read_blocks(path, whole_words=False), 1)
    )
    return "".join(islice(read, blocks))


@contextmanager
def part_files(folder: Path) -> Iterator[dict[str, IO[bytes]]]:
    """Open a file for each part of a text, named after the part."""
    with ExitStack() as stack:
        yield {split: stack.enter_context(open(folder / split, "wb")) for split in SPLITS}


class Splitter:
    """Writes the tokens of a text to its three parts, in stretches that end with a line where possible.

    The text is seen as up to 50 cycles. In each, a stretch after 30% goes to validation, and one after 70%
    to test.

    Args:
        total: tokens of the text, about.
        outputs: a file for each part.
    """

    END = 0  # what ends a line
    SCALE = 1  # how many elements make a token, about

    def __init__(self, total: int, outputs: dict[str, IO[bytes]]) -> None:
        cycles = min(max(total // (CYCLE * self.SCALE), 1), MOST_CYCLES)
        cycle = max(total // cycles, 20)
        held_out = max(1, int(min(total * HELD_OUT, MOST_HELD_OUT * self.SCALE) / cycles))
        rest = cycle - 2 * held_out
        before, between = int(0.3 * rest), int(0.4 * rest)
        self.plan = [
            ("train", before),
            ("valid", held_out),
            ("train", between),
            ("test", held_out),
            ("train", rest - before - between),
        ]
        self.outputs = outputs
        self.at = 0  # in the plan
        self.left = self.plan[0][1]  # tokens of this stretch

    def add(self, ids: np.ndarray) -> None:
        """Take the next tokens of the text."""
        while len(ids):
            split, length = self.plan[self.at]
            if len(ids) <= self.left:
                self.outputs[split].write(ids.tobytes())
                self.left -= len(ids)
                return
            slack = max(1, length // 2)  # a stretch may be so much longer, to end with a line
            ends = np.flatnonzero(ids[self.left : self.left + slack] == self.END)
            cut = self.left + (int(ends[0]) + 1 if len(ends) else self.to_end(ids))
            self.outputs[split].write(ids[:cut].tobytes())
            ids = ids[cut:]
            self.at = (self.at + 1) % len(self.plan)
            self.left = self.plan[self.at][1]

    def to_end(self, ids: np.ndarray) -> int:
        """How much longer the stretch must be where no line ends."""
        return 0


class ByteSplitter(Splitter):
    """Splits the bytes of a text; no character is cut."""

    END = ord("\n")
    SCALE = 4

    def to_end(self, ids: np.ndarray) -> int:
        """The rest of a UTF-8 character, at most 3 bytes."""
        return int(np.argmax(ids[self.left : self.left + 4] & 0xC0 != 0x80))
