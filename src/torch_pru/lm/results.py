"""Runs in numbers: what a report needs to know, from run folders and compact records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, flat_settings, second_stage
from torch_pru.lm.evaluation.scores import (
    LOG_PROBABILITIES_LIMIT,
    SIXTEEN_BITS,
    Scores,
    is_log_probabilities,
    parse_scores,
)
from torch_pru.lm.evaluation.tune import TOKENS
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError
from torch_pru.lm.paper import Setup
from torch_pru.lm.recipe import list_recipes, load_recipe
from torch_pru.lm.records import RunRecord, append_compact, read_compact, read_folder
from torch_pru.lm.run import RunFolder

RUNTIME_SETTINGS = frozenset(
    {"seed", "device", "precision", "graphs", "log_steps", "checkpoint_minutes", "checkpoint_steps"}
)
"""Settings that do not change what is trained. Runs that differ only in these are runs of one recipe."""


@dataclass(frozen=True)
class Result:
    """A run in numbers.

    Attributes:
        path: its folder, or the compact file that has it with its name.
        name: the folder's name, or the name in the file.
        config: its settings.
        finetuned: whether it is the second stage.
        finished: whether training reached its end.
        stop_reason: why training stopped, see `torch_pru.lm.metrics.stop_reason`.
        epochs: number of epochs.
        minutes: training time.
        best_epoch: the epoch with the lowest validation loss; 0 if finetuning did not improve on its start.
        device: name of the device.
        commit: commit of the package.
        scores: what ``pru evaluate`` found, or None.

    Example:
        >>> result = read_result("results/ptb-pru-g4-1")                    # doctest: +SKIP
        >>> result.is_run_of(Setup("ptb-pru-g4")), result.perplexity("static", "test")      # doctest: +SKIP
        (True, 62.69)
    """

    path: Path
    name: str
    config: Config
    finetuned: bool
    finished: bool
    epochs: int
    best_epoch: int
    minutes: float
    device: str
    commit: str
    scores: Scores | None
    stop_reason: str = ""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.training.seed

    @property
    def stage(self) -> str:
        """``"train"`` or ``"finetune"``."""
        return "finetune" if self.finetuned else "train"

    @property
    def weights(self) -> str:
        """SHA-256 of the scored weights; empty before the first score."""
        return "" if self.scores is None else self.scores.weights

    def is_run_of(self, setup: Setup) -> bool:
        """Whether the run has these settings, apart from its seed and the way it was run."""
        return self.finetuned == setup.finetuned and self.own_settings == setup_settings(setup)

    @cached_property
    def own_settings(self) -> dict[str, Any]:
        """The settings that decide what is trained."""
        return settings_without_runtime(self.config)

    def perplexity(self, method: str, split: str) -> float | None:
        """A recorded perplexity, or None."""
        return None if self.scores is None else self.scores.perplexity(method, split)

    def word_perplexity(self, method: str, split: str) -> float | None:
        """A recorded perplexity per word, or None."""
        return None if self.scores is None else self.scores.perplexity(method, split, per="word")

    def is_scored(self, method: str) -> bool:
        """Whether any split is scored with this method."""
        return self.scores is not None and bool(self.scores.results.get(method))

    def parameters(self, part: str) -> int | None:
        """Number of parameters of ``"recurrent"``, ..., or ``"total"``; None before the first score."""
        return None if self.scores is None else self.scores.parameters.get(part)

    def settings(self, method: str) -> dict[str, Any]:
        """The settings of a method, for the test text if it was scored, else for validation."""
        found = {} if self.scores is None else self.scores.results.get(method, {})
        return dict(next((found[split]["settings"] for split in ("test", "valid") if split in found), {}))

    def evaluation_options(self, method: str) -> str:
        """The options of ``pru evaluate`` that the scores were made with, as far as they are recorded."""
        if self.scores is None:
            return ""
        options = [" --tune"] if method in self.scores.tuning else []
        tokens = self.scores.tuning.get(method, {}).get("tokens", TOKENS)
        precision = self.scores.results.get(method, {}).get("test", {}).get("precision", "float32")
        options += [f" --tune-tokens {tokens}"] if tokens != TOKENS else []
        options += [f" --precision {precision}"] if precision in SIXTEEN_BITS else []
        return "".join(options)


def read_results(paths: Iterable[str | Path]) -> list[Result]:
    """Read run folders, compact files (``.jsonl``), and folders that hold either of them.

    Example:
        >>> len(read_results(["results"]))                                  # doctest: +SKIP
        149
    """
    found: list[Result] = []
    for path in map(Path, paths):
        if path.suffix == ".jsonl":
            found += [result_of(record, path) for record in read_compact(path)]
        elif path.is_dir() and not (path / "run.json").exists() and (inside := records_inside(path)):
            found += read_results(inside)
        else:
            found.append(read_result(path))
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


def read_result(folder: str | Path) -> Result:
    """Read one run folder, with or without its weights."""
    return result_of(read_folder(folder), Path(folder))


def result_of(record: RunRecord, path: Path) -> Result:
    """A record in numbers."""
    epochs = record.epochs
    lowest = epochs[-1]["best_valid_loss"] if epochs else None
    try:
        scores = None if record.scores is None else parse_scores(record.scores)
    except (ValueError, TypeError) as error:
        where = path / "scores.json" if path.is_dir() else f"{path}, {record.name}: scores.json"
        raise PRUError(f"{where} is not a file of scores: {error}; delete it and score again") from error
    return Result(
        path=path,
        name=record.name,
        config=record.config,
        finetuned=record.stage == "finetune",
        finished=bool(epochs) and epochs[-1]["decision"] == "stop",
        epochs=len(epochs),
        best_epoch=next((line["epoch"] for line in epochs if line["valid_loss"] == lowest), 0),
        minutes=epochs[-1]["clock"]["seconds"] / 60 if epochs else 0.0,
        device=str(record.environment.get("device_name") or ""),
        commit=str(record.environment.get("commit") or ""),
        scores=scores,
        stop_reason=record.stop_reason,
    )


def keep(folder: str | Path, into: str | Path) -> Path:
    """Keep the record of a run: no weights, and of the metrics only the epochs and the reason for the end.

    Args:
        folder: the run.
        into: a folder, which gets a copy with the run's name that replaces an earlier one; or a file ending
            in ``.jsonl``, to which the run is added as one line.

    Example:
        >>> keep("runs/ptb-pru-g4-1", "results")                            # doctest: +SKIP
        PosixPath('results/ptb-pru-g4-1')
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


def settings_without_runtime(config: Config) -> dict[str, Any]:
    """The settings that decide what is trained; both ways to run an LSTM are the same."""
    settings = flat_settings(config) | {"unit": config.model.kind}
    return {key: value for key, value in settings.items() if key not in RUNTIME_SETTINGS}


@cache
def setup_settings(setup: Setup) -> dict[str, Any]:
    """Those of a row's setup."""
    config = load_recipe(setup.recipe, dict(setup.changes))
    return settings_without_runtime(second_stage(config) if setup.finetuned else config)
