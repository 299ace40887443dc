"""Checkpoints: written aside, synced and renamed, with checksums; nothing in them can run code.

A checkpoint is a folder ``checkpoints/000017`` with ``weights.safetensors`` (the weights that training goes
on from), ``best.safetensors`` (those of the lowest validation loss), ``state.pt`` (tensors and plain values,
read with ``weights_only=True``) and ``manifest.json`` (size and SHA-256 of each).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from torch_pru.errors import PRUError
from torch_pru.lm.data.storage import sync_folder

KEPT = 2  # so that there is one to fall back on when the newest is damaged
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds.

    Attributes:
        weights: by name, those that training goes on from.
        best: by name, those of the lowest validation loss, as validated; empty before the first epoch.
        state: everything else, tensors and plain values.
    """

    weights: dict[str, Tensor]
    best: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Add a checkpoint to ``folder`` and remove all but the last two.

    A crash, a full disk or a kill at any moment leaves those that were there before as they were.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> save_checkpoint(folder, Checkpoint({"w": torch.ones(2)}, {}, {"step": 7})).name
        '000001'
        >>> load_newest(folder).state
        {'step': 7}
    """
    numbers = saved_numbers(folder)
    final = folder / f"{max(numbers, default=0) + 1:06d}"
    aside = folder / ".writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)  # what an earlier crash has left
        aside.mkdir()
        manifest = {}
        for name, content in encode(checkpoint).items():
            write_synced(aside / name, content)
            manifest[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        write_synced(aside / MANIFEST, json.dumps(manifest, indent=1).encode())
        sync_folder(aside)
        os.rename(aside, final)
        sync_folder(folder)
        for number in numbers[: len(numbers) + 1 - KEPT]:
            shutil.rmtree(folder / f"{number:06d}", ignore_errors=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise PRUError(
            f"cannot write a checkpoint to {folder}: {error.strerror or error}; the checkpoints of before "
            f"are as they were"
        ) from error
    return final


def encode(checkpoint: Checkpoint) -> dict[str, bytes]:
    """The content of each file but the manifest."""
    state = io.BytesIO()
    torch.save(checkpoint.state, state)
    return {
        "weights.safetensors": safetensors.torch.save(contiguous(checkpoint.weights)),
        "best.safetensors": safetensors.torch.save(contiguous(checkpoint.best)),
        "state.pt": state.getvalue(),
    }


def contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU as safetensors wants them."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; a damaged one is passed over with a warning.

    Returns:
        None where there has not been a checkpoint yet.
    """
    numbers = saved_numbers(folder)
    for number in reversed(numbers):
        path = folder / f"{number:06d}"
        try:
            return decode(read_verified(path))
        except PRUError as error:
            if number == numbers[0]:
                problem = f"every checkpoint in {folder} is damaged, and the run cannot go on"
                raise PRUError(f"{problem}; of the oldest: {error}") from error
            warnings.warn(f"{error}; trying the checkpoint before it", stacklevel=2)
    return None


def saved_numbers(folder: Path) -> list[int]:
    """The numbers of the checkpoints in a folder, oldest first."""
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit())


def read_verified(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint, each with the size and checksum that the manifest gives."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        contents = {name: (path / name).read_bytes() for name in manifest}
        expected = {name: str(entry["sha256"]) for name, entry in manifest.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PRUError(f"the checkpoint {path} is incomplete ({error})") from error
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != expected[name]:
            raise PRUError(f"the checkpoint {path} is damaged: {name} does not match its checksum")
    return contents


def decode(contents: Mapping[str, bytes]) -> Checkpoint:
    """What ``encode`` was given. ``weights_only``: a checkpoint from a stranger can run no code."""
    try:
        return Checkpoint(
            safetensors.torch.load(contents["weights.safetensors"]),
            safetensors.torch.load(contents["best.safetensors"]),
            torch.load(io.BytesIO(contents["state.pt"]), map_location="cpu", weights_only=True),
        )
    except (KeyError, SafetensorError, pickle.UnpicklingError, RuntimeError) as error:
        raise PRUError(f"the checkpoint cannot be read ({str(error).splitlines()[0]})") from error


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
