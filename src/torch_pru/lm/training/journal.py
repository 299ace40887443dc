"""The metrics of a run: JSON lines, and the same numbers for TensorBoard."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from torch_pru.errors import PRUError
from torch_pru.lm.checkpoint import GO_ON
from torch_pru.lm.files import Folder
from torch_pru.lm.metrics import METRICS, KeptLines
from torch_pru.lm.seal import seal_line

EVENT_FILES = itertools.count()
"""Numbers for the event files of a process."""


class Journal:
    """Appends to ``metrics.jsonl``. Readings of the clock are under ``"clock"``; the rest is reproducible.

    The file is replaced by a copy of its lines and never changed in place, so that writing
    never reaches another file through a hard link or a symbolic link.

    Args:
        folder: of the run.
        offset: bytes of the file that belong to the checkpoint training resumes from. The rest is dropped;
            damaged lines are dropped with a warning.
        step: steps done by then; later TensorBoard points are dropped, too.
    """

    def __init__(self, folder: Path, *, offset: int, step: int) -> None:
        self.path = folder / METRICS
        files = Folder(folder)
        kept = KeptLines(files, offset, step)
        self._file = files.replace(METRICS, iter(kept))
        self._checksum = kept.checksum
        if kept.bytes < offset:
            warnings.warn(
                f"lines of {self.path} are lost or damaged and are left out; training resumes from the "
                f"checkpoint",
                stacklevel=2,
            )
        self._events = open_events(files, purge_step=step + 1 if step else None)

    def write(self, values: dict[str, Any], clock: dict[str, float]) -> None:
        """Append a line; ``values`` has its ``kind`` and ``step``."""
        line, checksum = seal_line(values | {"clock": clock}, self._checksum)
        try:
            self._file.write(line)
            self._file.flush()  # so that a kill loses no line
            self._checksum = checksum
            for name, value in (values | clock).items():
                if isinstance(value, float):
                    point = scalar(f"{values['kind']}/{name}", value)
                    self._events.write(event(step=values["step"], summary=point))
            self._events.flush()
        except OSError as error:
            raise PRUError(
                f"cannot write {self.path}: {error.strerror or error}; existing checkpoints are unchanged; "
                f"{GO_ON}"
            ) from error

    def offset(self) -> int:
        """Bytes written so far, all of them on the disk when this returns."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise PRUError(f"cannot write {self.path}: {error.strerror or error}") from error
        return self._file.tell()

    def close(self) -> None:
        """Close both files. Write errors were reported when a line was written and are not reported again."""
        for part in (self._file, self._events):
            with suppress(OSError):
                part.close()


def open_events(files: Folder, purge_step: int | None) -> RecordWriter:
    """A new TensorBoard event file. ``SummaryWriter`` would open its file by path and follow links.

    Args:
        files: the run folder.
        purge_step: points of older event files from this step on are dropped.
    """
    host = re.sub(r"[^\w.-]", "_", socket.gethostname())
    name = f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.{next(EVENT_FILES)}"
    events = RecordWriter(files.create(name))
    events.write(event(file_version="brain.Event:2"))
    if purge_step is not None:
        events.write(event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))
    return events


def event(**content: Any) -> bytes:
    """A record of an event file."""
    return Event(wall_time=time.time(), **content).SerializeToString()
