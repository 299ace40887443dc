"""The records of runs, found and kept in folders, and the recipes that they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, second_stage
from torch_pru.lm.evaluation.scores import LOG_PROBABILITIES_LIMIT, is_log_probabilities
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError
from torch_pru.lm.paper import Setup
from torch_pru.lm.recipe import list_recipes, load_recipe
from torch_pru.lm.records import (
    RunRecord,
    append_compact,
    read_compact,
    read_folder,
    settings_without_runtime,
)
from torch_pru.lm.run import RunFolder


def read_results(paths: Iterable[str | Path]) -> list[RunRecord]:
    """Read run folders, compact files (``.jsonl``), and folders that hold either of them."""
    found: list[RunRecord] = []
    for path in map(Path, paths):
        if path.suffix == ".jsonl":
            found += read_compact(path)
        elif path.is_dir() and not (path / "run.json").exists() and (inside := records_inside(path)):
            found += read_results(inside)
        else:
            found.append(read_folder(path))
    return found


def records_inside(folder: Path) -> list[Path]:
    """The run folders and compact files in a folder, and in its folders that are no runs."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if (path / "run.json").exists() or (path.suffix == ".jsonl" and path.is_file()):
            found.append(path)
        elif path.is_dir():
            found += records_inside(path)
    return found


def keep(folder: str | Path, into: str | Path) -> Path:
    """Keep the record of a run: no weights, and of the metrics only the epochs and the reason for the end.

    Args:
        folder: the run.
        into: a folder, which gets a copy with the run's name that replaces an earlier one; or a file ending
            in ``.jsonl``, to which the run is added as one line.
    """
    run, into = RunFolder.open(folder), Path(into)
    if into.suffix == ".jsonl":
        append_compact(into, read_folder(folder))
        return into
    copy = into / run.path.name
    if copy.resolve() == run.path.resolve():
        raise PRUError(
            f"--keep would replace the run in {run.path} with a copy without weights; choose another folder"
        )
    files = Folder(copy)
    files.make()
    lines = [line for line in run.metrics() if line.get("kind") in ("epoch", "stop")]
    files.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())
    for name in ("run.json", "config.toml", "environment.json", "scores.json"):
        try:
            files.write(name, run.files.read(name, TEXT_LIMIT))
        except MissingFileError:  # an earlier copy may have had it
            files.remove(name)
    for name in {
        name for folder in (run.files, files) for name in folder.names() if is_log_probabilities(name)
    }:
        if run.files.has(name):
            files.write(name, run.files.read(name, LOG_PROBABILITIES_LIMIT))
        else:
            files.remove(name)
    return copy


def nearest_recipe(config: Config, stage: str = "train") -> tuple[str, dict[str, Any]]:
    """The recipe that a run comes from, and the settings in which the run differs from it.

    That is a recipe with equal settings, else the one with the run's name, else the one with the fewest
    differences.

    Example:
        >>> nearest_recipe(load_recipe("ptb-pru-g4", {"epochs": "3"}))
        ('ptb-pru-g4', {'epochs': 3})
    """
    own = settings_without_runtime(config)
    changes = {}
    for name in list_recipes():
        settings = setup_settings(Setup(name, (), stage == "finetune"))
        changes[name] = {key: value for key, value in own.items() if settings[key] != value}
    best = min(changes, key=lambda name: (bool(changes[name]), name != config.name, len(changes[name]), name))
    return best, changes[best]


def is_run_of(record: RunRecord, setup: Setup) -> bool:
    """Whether a run has these settings, apart from its seed and the way it was run."""
    return record.finetuned == setup.finetuned and record.own_settings == setup_settings(setup)


@cache
def setup_settings(setup: Setup) -> dict[str, Any]:
    """Those of a row's setup."""
    config = load_recipe(setup.recipe, dict(setup.changes))
    return settings_without_runtime(second_stage(config) if setup.finetuned else config)
