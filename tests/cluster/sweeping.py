"""Small sweeps, and the weights that come out of them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from torch_pru.lm.run import RunFolder

WORDS = [f"w{number}" for number in range(40)]


def sweep(*arguments: object) -> subprocess.CompletedProcess[str]:
    """``pru sweep`` with one thread, as Ray gives it to a trial: the weights are then the same to the bit."""
    command = [sys.executable, "-m", "torch_pru", "sweep", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment)


def write_text(folder: Path) -> Path:
    numbers = random.Random(0)
    folder.mkdir()
    for split, lines in (("train", 300), ("valid", 60), ("test", 60)):
        text = [" ".join(numbers.choices(WORDS, k=8)) for _ in range(lines)]
        (folder / f"{split}.txt").write_text("\n".join([" ".join(WORDS), *text, "<unk>"]) + "\n")
    return folder


def write_grid(folder: Path, grid: str, corpus: object, **settings: object) -> Path:
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    path = folder / "grid.toml"
    path.write_text(
        f'recipe = "quickstart"\n{grid}\n[settings]\ndevice = "cpu"\ncorpus = "{corpus}"\n{lines}'
    )
    return path


def best_weights(folder: Path) -> dict[str, str]:
    """SHA-256 of the best weights of each run."""
    found = {}
    for run in sorted(path.parent for path in folder.glob("*/run.json")):
        digest = hashlib.sha256()
        for name, value in sorted(RunFolder.open(run).model("best").state_dict().items()):
            digest.update(name.encode() + value.numpy().tobytes())
        found[run.name] = digest.hexdigest()
    return found
