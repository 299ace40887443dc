"""Checkpoints: written aside, synced and renamed, with checksums; loading one never runs code.

A checkpoint is a folder ``checkpoints/000017`` with ``weights.safetensors`` (the weights that training
resumes from), ``best.safetensors`` (those of the lowest validation loss), ``state.json`` and
``state.safetensors`` (everything else) and ``manifest.json`` (size and SHA-256 of each).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError
from torch_pru.lm.migration import migrate_state, migrate_weights
from torch_pru.lm.seal import parse_json, parse_object
from torch_pru.lm.state_files import (
    PICKLED,
    TENSORS,
    VALUES,
    decode_state,
    encode_state,
    load_tensors,
    save_tensors,
)

WEIGHTS = ("weights.safetensors", "best.safetensors")
FILES = ({*WEIGHTS, VALUES, TENSORS}, {*WEIGHTS, PICKLED})
"""The files of a checkpoint, and those of earlier versions."""

MANIFEST = "manifest.json"
LIMIT = 1 << 34
"""Bytes of a file where the size of the model is not known."""

SLACK = 64 << 20
"""Bytes that a file of a checkpoint may have beside its numbers."""

GO_ON = "once files can be written there again, pru resume continues from the last checkpoint"
"""What to do after the disk was full, or the permission to write was lost."""

WRITING = ".writing"
"""Where a checkpoint is written before it is renamed."""


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds.

    Attributes:
        weights: by name, those that training resumes from.
        best: by name, those of the lowest validation loss, as validated; empty before the first epoch.
        state: everything else, tensors and plain values.
        path: where it was read from, for messages.
    """

    weights: dict[str, Tensor]
    best: dict[str, Tensor]
    state: dict[str, Any]
    path: str = field(default="", compare=False)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint to ``folder`` and keep one older checkpoint, the newest whose checksums match.

    A crash, a full disk or a kill at any moment leaves the existing checkpoints unchanged.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_checkpoint(folder, Checkpoint({"w": torch.ones(2)}, {}, {"step": 7})).name
        '000001'
        >>> load_newest(folder).state
        {'step': 7}
    """
    files = opened(folder)
    numbers = saved_numbers(folder)
    final = name_of(max(numbers, default=0) + 1)
    aside = files / WRITING
    try:
        files.make()
        files.remove(WRITING)  # what an earlier crash has left
        aside.make()
        manifest: dict[str, dict[str, Any]] = {}
        for name, content in encode(checkpoint).items():
            write_synced(aside, name, content)
            manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_synced(aside, MANIFEST, json.dumps(manifest, indent=1).encode())
        aside.sync()
        files.rename(WRITING, final)
    except PRUError as error:
        if isinstance(error, MissingFileError) and not folder.parent.exists():
            raise PRUError(
                f"the run folder {folder.parent} is gone: it was deleted or moved during training; if it was "
                f"moved, resume it where it is now, from its last checkpoint"
            ) from error
        with contextlib.suppress(PRUError):
            files.remove(WRITING)
        raise PRUError(
            f"cannot write a checkpoint to {folder}; existing checkpoints are unchanged: {error}; {GO_ON}"
        ) from error
    # One of the same model is not larger than this one, but for what averaging adds or a stage begins with.
    remove_older(files, numbers, 2 * sum(entry["bytes"] for entry in manifest.values()) + SLACK)
    return folder / final


def remove_older(files: Folder, numbers: list[int], limit: int) -> None:
    """Remove all of these checkpoints but the newest that is whole; all are kept where none is.

    A kill in the middle leaves no damaged checkpoint: each is renamed before its files are removed.
    """
    whole = next((number for number in reversed(numbers) if is_whole(files / name_of(number), limit)), None)
    for number in numbers if whole is not None else ():
        if number != whole:
            with contextlib.suppress(PRUError):  # it is removed after the next one
                files.rename(name_of(number), WRITING)
                files.remove(WRITING)


def encode(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content of each file but the manifest."""
    return {
        "weights.safetensors": save_tensors(checkpoint.weights),
        "best.safetensors": save_tensors(checkpoint.best),
        **encode_state(checkpoint.state),
    }


def load_newest(folder: Path, limit: int = LIMIT) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are skipped with a warning.

    Args:
        folder: of the checkpoints.
        limit: bytes that a file of a checkpoint may have, see `schema.byte_limit`.

    Returns:
        None where there has not been a checkpoint yet.
    """
    numbers = saved_numbers(folder)
    for number in reversed(numbers):
        try:
            path = folder / name_of(number)
            return decode(read_verified(path, limit), path)
        except PRUError as error:
            if number == numbers[0]:
                problem = f"every checkpoint in {folder} is damaged, and the run cannot be resumed"
                raise PRUError(f"{problem}; the oldest: {error}") from error
            warnings.warn(f"{error}; trying the checkpoint before it", stacklevel=2)
    return None


def newest_values(folder: Path) -> dict[str, Any]:
    """The state of the newest checkpoint without its tensors; empty if no checkpoint has it as JSON."""
    for number in reversed(saved_numbers(folder)):
        files = opened(folder) / name_of(number)
        with contextlib.suppress(PRUError, KeyError):  # it is damaged, or of an earlier version
            content = files.read(VALUES, TEXT_LIMIT)
            if hashlib.sha256(content).hexdigest() == read_manifest(files)[VALUES]["sha256"]:
                return parse_object(content, files.path / VALUES)
    return {}


def saved_numbers(folder: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, oldest first."""
    names = [name for name in opened(folder).names() if re.fullmatch("[0-9]{6,}", name)]
    return sorted(int(name) for name in names if name == name_of(int(name)))


def name_of(number: int) -> str:
    """The name of the folder of a checkpoint."""
    return f"{number:06d}"


def opened(folder: Path) -> Folder:
    """The folder of the checkpoints, in its run folder."""
    return Folder(folder.parent, folder.name)


def read_verified(path: Path, limit: int = LIMIT) -> dict[str, bytes]:
    """The files of a checkpoint, each with the size and checksum that the manifest gives."""
    files = opened(path.parent) / path.name
    contents = {}
    for name, entry in read_manifest(files).items():
        try:
            contents[name] = files.read(name, min(entry["bytes"], TEXT_LIMIT if name == VALUES else limit))
        except PRUError as error:
            raise PRUError(f"the checkpoint {path} is incomplete ({error})") from error
        if hashlib.sha256(contents[name]).hexdigest() != entry["sha256"]:
            raise PRUError(f"the checkpoint {path} is damaged: {name} does not match its checksum")
    return contents


def read_manifest(files: Folder) -> dict[str, dict[str, Any]]:
    """The size and SHA-256 of each file of a checkpoint."""
    try:
        manifest = parse_json(files.read(MANIFEST, TEXT_LIMIT))
        sizes = [(entry["bytes"], entry["sha256"]) for entry in manifest.values()]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PRUError(f"the checkpoint {files.path} is incomplete ({error})") from error
    if set(manifest) not in FILES or not all(type(size) is int and size >= 0 for size, _ in sizes):
        raise PRUError(f"the checkpoint {files.path} is damaged: {MANIFEST} does not list its files")
    return dict(manifest)


def is_whole(files: Folder, limit: int = LIMIT) -> bool:
    """Whether every file of a checkpoint matches its checksum; reads them in small pieces.

    A file of more than ``limit`` bytes does not: it would take long to read.
    """
    try:
        for name, entry in read_manifest(files).items():
            with files.open(name, min(entry["bytes"], limit)) as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    return False
    except (PRUError, OSError):
        return False
    return True


def decode(contents: Mapping[str, bytes], path: Path) -> Checkpoint:
    """What ``encode`` was given.

    Args:
        contents: by name of the file, from `read_verified`.
        path: of the checkpoint.
    """
    try:
        weights, best = (load_tensors(contents[name]) for name in WEIGHTS)
        state = migrate_state(decode_state(contents))
        weights, best, state = migrate_weights(weights, best, state)
    except Exception as error:  # whatever a stranger's bytes lead a parser to
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PRUError(f"the checkpoint {path} cannot be read ({reason:.200})") from error
    return Checkpoint(weights, best, state, str(path))


def write_synced(files: Folder, name: str, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    try:
        with files.create(name) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise PRUError(f"cannot write {files.path / name}: {error.strerror or error}") from error
