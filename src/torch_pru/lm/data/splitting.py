"""How a text is split into training, validation and test, a block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from torch_pru.lm.data.sources import SPLITS

HELD_OUT = 0.05  # share of the text for validation, and as much for test
MOST_HELD_OUT = 30_000  # tokens; more would only take longer to score
CYCLE = 40_000  # tokens; each cycle of the text gives a stretch to validation and one to test
MOST_CYCLES = 50


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
