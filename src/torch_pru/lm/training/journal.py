"""The metrics of a run: JSON lines, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from torch_pru.errors import PRUError


class Journal:
    """Appends to ``metrics.jsonl``. What the clock says is under ``"clock"``; the rest is reproducible.

    Args:
        folder: of the run.
        offset: bytes of the file that belong to the checkpoint training goes on from; the rest is dropped.
        step: steps done by then; later TensorBoard points are dropped too.

    Example:
        >>> import tempfile
        >>> journal = Journal(Path(tempfile.mkdtemp()), offset=0, step=0)
        >>> journal.write({"kind": "steps", "step": 50, "loss": 6.2}, {"seconds": 1.5})
        >>> journal.close()
    """

    def __init__(self, folder: Path, *, offset: int, step: int) -> None:
        self.path = folder / "metrics.jsonl"
        try:
            self._file = open(self.path, "ab")  # noqa: SIM115 (open as long as the journal)
            if self._file.tell() < offset:
                raise PRUError(f"{self.path} is shorter than when the checkpoint was written; it was changed")
            self._file.truncate(offset)
            self._file.seek(offset)  # truncating leaves the position, which `offset` gives, where it was
            self._board = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        except OSError as error:
            raise PRUError(f"cannot write {self.path}: {error.strerror or error}") from error

    def write(self, values: dict[str, Any], clock: dict[str, float]) -> None:
        """Add a line; ``values`` has its ``kind`` and ``step``."""
        line = json.dumps(values | {"clock": clock}) + "\n"
        try:
            self._file.write(line.encode())
            self._file.flush()  # a kill loses nothing that was said
            for name, value in (values | clock).items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{values['kind']}/{name}", value, values["step"])
        except OSError as error:
            raise PRUError(
                f"cannot write {self.path}: {error.strerror or error}; the checkpoints are as they were"
            ) from error

    def offset(self) -> int:
        """Bytes written so far, all of them on the disk when this returns."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise PRUError(f"cannot write {self.path}: {error.strerror or error}") from error
        return self._file.tell()

    def close(self) -> None:
        """Close both. A disk that is full was told of when a line was written, and is not told of again."""
        for part in (self._file, self._board):
            with suppress(OSError):
                part.close()
