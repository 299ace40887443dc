"""The lines of metrics.jsonl, read one at a time: a log of any length passes through little memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BufferedReader
from textwrap import shorten
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.files import METRICS_LIMIT, Folder, MissingFileError
from torch_pru.lm.seal import seal_line, unseal_line

METRICS = "metrics.jsonl"
LINE_LIMIT = 1 << 16
EPOCH = ("epoch", "train_loss", "valid_loss", "best_valid_loss")
"""Numbers in every line that ends an epoch."""


UNFINISHED = "not finished"
"""The stop reason of a run that is still running, or that was killed."""


def stop_reason(lines: Iterable[Mapping[str, Any]]) -> str:
    """Why training stopped, according to the last line of its metrics.

    "all epochs done", "time is up", "no improvement for 6 epochs" (early stopping), "the last round of
    finetuning did not improve", "interrupted by SIGINT" or "diverged". In records of earlier
    versions only "finished".

    Example:
        >>> stop_reason([{"kind": "epoch", "decision": "stop", "stop_reason": "time is up"}])
        'time is up'
        >>> stop_reason([{"kind": "steps", "step": 50}])
        'not finished'
    """
    last = last_of(lines)
    known = "finished" if last.get("decision") == "stop" else UNFINISHED
    return str(last.get("stop_reason") or known)


def last_of(lines: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last line of a log; empty if there is none."""
    return next(iter(deque(lines, maxlen=1)), {})


def read_metrics(files: Folder) -> Iterator[dict[str, Any]]:
    """The lines of a run; none without the file, and a last line that a crash cut short is left out."""
    try:
        file = files.open(METRICS, METRICS_LIMIT)
    except MissingFileError:
        return
    checksum = 0
    with file:
        for number, line in enumerate(complete_lines(file), start=1):
            try:
                content, checksum = unseal_line(line, checksum)
                check_line(content)
            except ValueError as error:
                raise PRUError(
                    f"{files.path / METRICS}, line {number}, is damaged: {error}; pru resume or pru verify "
                    f"--accept drops the line"
                ) from error
            yield content


def has_finished(files: Folder) -> bool:
    """Whether the log ends with the end of the training; False where it is damaged."""
    try:
        return last_of(read_metrics(files)).get("decision") == "stop"
    except PRUError:
        return False


def is_cut_short(last: Mapping[str, Any], state: Mapping[str, Any], log_steps: int) -> bool:
    """Whether a log lacks lines at its end that it had when a checkpoint was saved.

    Args:
        last: the last line of the log.
        state: of the checkpoint, see `checkpoint.newest_values`.
        log_steps: steps between lines.

    Example:
        >>> is_cut_short({"step": 50}, {"global_step": 99}, 50), is_cut_short({}, {"global_step": 99}, 50)
        (False, True)
    """
    step, finished = state.get("global_step"), state.get("finished") is True
    if type(step) is not int:
        return False
    return last.get("step", 0) < step - step % log_steps or (finished and last.get("decision") != "stop")


def best_epoch(epochs: Sequence[Mapping[str, Any]]) -> int:
    """The epoch of the lowest validation loss; 0 if finetuning did not improve on its start."""
    return next((line["epoch"] for line in epochs if line["valid_loss"] == epochs[-1]["best_valid_loss"]), 0)


class KeptLines:
    """The lines within the first ``offset`` bytes that are whole and not of a later step than ``step``.

    As long as none is left out they are the same to the byte; after one that is, the checksums are others.

    Attributes:
        bytes: of the lines, once all were given.
        checksum: which the next line continues.
    """

    def __init__(self, files: Folder, offset: int, step: int) -> None:
        self.files, self.offset, self.step = files, offset, step
        self.bytes = self.checksum = 0

    def __iter__(self) -> Iterator[bytes]:
        if not self.offset:  # a new run
            return
        try:
            file = self.files.open(METRICS, METRICS_LIMIT)
        except MissingFileError:
            return
        left, found = self.offset, 0
        with file:
            for line in complete_lines(file):
                left -= len(line)
                if left < 0:
                    return
                try:
                    content, checksum = unseal_line(line, found)
                    check_line(content)
                except ValueError:
                    found = stated_checksum(line)
                    continue
                if content.get("step", 0) <= self.step:
                    yield self._continued(line, content, checksum, follows=found == self.checksum)
                found = checksum

    def _continued(self, line: bytes, content: dict[str, Any], checksum: int, *, follows: bool) -> bytes:
        """A line with the checksum that it has after the lines that were kept."""
        if checksum and not follows:
            line, checksum = seal_line(content, self.checksum)
        self.bytes, self.checksum = self.bytes + len(line), checksum
        return line


def complete_lines(file: BufferedReader) -> Iterator[bytes]:
    """Lines that end in a newline; one that is too long to be ours comes cut, and so is no JSON."""
    while line := file.readline(LINE_LIMIT):
        whole = line
        while not line.endswith(b"\n"):
            if not (line := file.readline(LINE_LIMIT)):
                return
        yield whole


def stated_checksum(line: bytes) -> int:
    """The checksum at the end of a damaged line, which the next line continues."""
    try:
        return int(line[-11:-3], 16)
    except ValueError:
        return 0


def check_line(content: Mapping[str, Any]) -> None:
    """Raise a ValueError for a line that training does not write."""
    if not is_number(content.get("step", 0)) or (content.get("kind") == "epoch" and not is_epoch(content)):
        raise ValueError(f"not a line that training writes: {shorten(repr(content), 100)}")


def is_epoch(line: Mapping[str, Any]) -> bool:
    """Whether a line has what readers of an epoch need."""
    clock = line.get("clock")
    seconds = clock.get("seconds") if isinstance(clock, dict) else None
    return "decision" in line and all(map(is_number, [seconds, *(line.get(name) for name in EPOCH)]))


def is_number(value: object) -> bool:
    """Whether a value is a float, or an integer that fits into one."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63)
