"""What is kept of a run, from its folder or from a compact file, and what a report reads in it.

A compact file has many runs as JSON lines, for experiments that need no folder of their own. Its first line
holds the settings and the environment that the runs share. Every other line is a run: its name, what it
changes, its scores, and its epochs as columns.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, build_config, flat_settings
from torch_pru.lm.data.corpus import tokenizer_name
from torch_pru.lm.evaluation.scores import (
    LOG_PROBABILITIES_LIMIT,
    SIXTEEN_BITS,
    Scores,
    is_log_probabilities,
    load_scores,
    parse_scores,
)
from torch_pru.lm.evaluation.tune import TOKENS
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError, read_limited
from torch_pru.lm.metrics import best_epoch, stop_reason
from torch_pru.lm.model import parameter_counts, skeleton
from torch_pru.lm.run import RunFolder
from torch_pru.lm.seal import parse_object, unseal

RUNTIME_SETTINGS = frozenset(
    {"seed", "device", "precision", "graphs", "log_steps", "checkpoint_minutes", "checkpoint_steps"}
)
"""Settings that do not change what is trained. Runs that differ only in these are runs of one recipe."""

COMPACT_LIMIT = 1 << 28
"""Bytes of a file of compact records."""

SWITCHES = ("averaged", "round", "decision")
"""Columns that rarely change: kept as pairs of an epoch and the value from that epoch on."""


@dataclass(frozen=True)
class RunRecord:
    """What is kept of a run: everything but its weights and the words of its vocabulary.

    Attributes:
        path: its folder, or the compact file that has it with its name.
        name: the folder's name, or the name in the file.
        stage: ``"train"`` or ``"finetune"``.
        config: its settings.
        environment: content of ``environment.json``.
        scores: content of ``scores.json``, or None.
        epochs: the lines of ``metrics.jsonl`` that end an epoch.
        text_digest: of the text it was trained on; empty in old records.
        stop_reason: why training stopped, see `torch_pru.lm.metrics.stop_reason`.
        word_count: size of the vocabulary, for runs without scores of these weights; None if not known.
    """

    path: Path
    name: str
    stage: str
    config: Config
    environment: Mapping[str, Any]
    scores: Scores | None
    epochs: Sequence[Mapping[str, Any]] = field(repr=False)
    text_digest: str = ""
    stop_reason: str = ""
    word_count: int | None = None

    @property
    def place(self) -> str:
        """Where the run is recorded."""
        return str(self.path) if self.path.suffix != ".jsonl" else f"{self.path} ({self.name})"

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.training.seed

    @property
    def finetuned(self) -> bool:
        """Whether it is the second stage."""
        return self.stage == "finetune"

    @property
    def finished(self) -> bool:
        """Whether training reached its end."""
        return bool(self.epochs) and self.epochs[-1]["decision"] == "stop"

    @property
    def minutes(self) -> float:
        """Training time."""
        return self.epochs[-1]["clock"]["seconds"] / 60 if self.epochs else 0.0

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation loss; 0 if finetuning did not improve on its start."""
        return best_epoch(self.epochs)

    @property
    def device(self) -> str:
        """Name of the device."""
        return str(self.environment.get("device_name") or "")

    @property
    def weights(self) -> str:
        """SHA-256 of the scored weights; empty before the first score."""
        return "" if self.scores is None else self.scores.weights

    @cached_property
    def own_settings(self) -> dict[str, Any]:
        """The settings that decide what is trained."""
        return settings_without_runtime(self.config)

    def perplexity(self, method: str, split: str, per: str = "token") -> float | None:
        """A recorded perplexity per token or per ``"word"``, or None."""
        return None if self.scores is None else self.scores.perplexity(method, split, per)

    def is_scored(self, method: str) -> bool:
        """Whether any split is scored with this method."""
        return self.scores is not None and bool(self.scores.results.get(method))

    def parameters(self, part: str) -> int | None:
        """Number of parameters of ``"recurrent"``, ..., or ``"total"``; None if it is not known."""
        if self.scores is not None and part in self.scores.parameters:
            return self.scores.parameters[part]
        if self.word_count is None:
            return None
        model = skeleton(self.config.model, self.config.regularization, self.word_count)
        return int(getattr(parameter_counts(model), part))

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


def settings_without_runtime(config: Config) -> dict[str, Any]:
    """The settings that decide what is trained: equal for both ways to run an LSTM, tokenizers by name."""
    settings = flat_settings(config) | {"unit": config.model.kind, "tokenizer": tokenizer_name(config.data)}
    return {key: value for key, value in settings.items() if key not in RUNTIME_SETTINGS}


def read_folder(folder: str | Path) -> RunRecord:
    """The record of a run folder, with or without its weights."""
    run = RunFolder.open(folder)
    epochs, last = run.read_log()
    scores = load_scores(run.path)
    has_words = run.files.has("vocabulary.txt")
    return RunRecord(
        path=Path(folder),
        name=run.path.name,
        stage=run.stage,
        config=run.config,
        environment=read_object(run.files, "environment.json"),
        scores=scores,
        epochs=epochs,
        text_digest=run.text_digest,
        stop_reason=stop_reason([last]),
        word_count=run.word_count() if not (scores and scores.parameters) and has_words else None,
    )


def read_object(files: Folder, name: str) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    return unseal(files.read(name, TEXT_LIMIT), files.path / name)


def read_compact(path: Path) -> list[RunRecord]:
    """The runs in a compact file."""
    try:
        shared, *lines = read_lines(path)
        if set(shared) != {"settings", "environment"}:
            raise ValueError("the first line must hold the shared settings and environment")
        return [unpack(line, shared, path) for line in lines]
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, PRUError) as error:
        if isinstance(error, MissingFileError):
            raise
        reason = error if isinstance(error, PRUError) else f"{type(error).__name__}: {error}"
        raise PRUError(f"{path} is not a file that pru report --keep has written ({reason})") from error


def append_compact(path: Path, record: RunRecord) -> None:
    """Add a run to a compact file. The file is created if it does not exist; a name is not used twice."""
    lines = read_lines(path) if path.exists() else []
    if any(line["name"] == record.name for line in lines[1:]):
        raise PRUError(f"{path} already has a run named {record.name!r}")
    shared = lines[0] if lines else shared_line(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for line in ([] if lines else [shared]) + [pack(record, shared)]:
            file.write(json.dumps(line) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects in a file, one per line."""
    return [parse_object(line, path) for line in read_limited(path, COMPACT_LIMIT).splitlines()]


def shared_line(record: RunRecord) -> dict[str, Any]:
    """The first line of a compact file: the settings and the environment of its first run."""
    return {"settings": flat_settings(record.config), "environment": record.environment}


def pack(record: RunRecord, shared: Mapping[str, Any]) -> dict[str, Any]:
    """A run as one line, relative to the first line of its file."""
    settings = json.loads(json.dumps(flat_settings(record.config)))  # tuples are lists in JSON
    line: dict[str, Any] = {"name": record.name, "recipe": record.config.name, "stage": record.stage}
    line["settings"] = difference(settings, json.loads(json.dumps(shared["settings"])))
    line["environment"] = difference(record.environment, shared["environment"])
    line |= {"finetuning": dict(record.config.finetuning)} if record.config.finetuning else {}
    line |= {"text_digest": record.text_digest} if record.text_digest else {}
    if record.stop_reason != stop_reason(record.epochs):  # which says why a finished run stopped
        line["stop_reason"] = record.stop_reason
    scores = None if record.scores is None else dataclasses.asdict(record.scores)
    line |= {"scores": scores, "epochs": pack_epochs(record.epochs)}
    return line


def unpack(line: Mapping[str, Any], shared: Mapping[str, Any], path: Path) -> RunRecord:
    """Undo `pack`."""
    epochs = unpack_epochs(line["epochs"], line["stage"])
    if not isinstance(line["name"], str):
        raise TypeError(f"a run has the name {line['name']!r:.50}")
    return RunRecord(
        path=path,
        name=line["name"],
        stage=line["stage"],
        config=build_config(line["recipe"], shared["settings"] | line["settings"], line.get("finetuning")),
        environment=shared["environment"] | line["environment"],
        scores=None if line["scores"] is None else parse_scores(line["scores"]),
        epochs=epochs,
        text_digest=line.get("text_digest", ""),
        stop_reason=line.get("stop_reason") or stop_reason(epochs),
    )


def difference(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``values`` that differ from those of ``base``."""
    return {key: value for key, value in values.items() if key not in base or base[key] != value}


def pack_epochs(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Epochs as columns.

    What other columns give is left out: ``valid_perplexity``, and the running minimum ``best_valid_loss``,
    for which ``best_before`` keeps the loss that finetuning started from. Times are kept to the millisecond,
    the time of day once.
    """
    if not epochs:
        return {}
    first = epochs[0]
    started_lower = first["best_valid_loss"] < first["valid_loss"]
    return {
        "time": first["clock"].get("time"),
        "best_before": first["best_valid_loss"] if started_lower else None,
        **{name: switches(epochs, name) for name in SWITCHES if name in first},
        **{
            name: [line[name] for line in epochs]
            for name in ("step", "train_loss", "valid_loss")
            if name in first
        },
        "seconds": [round(line["clock"]["seconds"], 3) for line in epochs],
        **{name: epochs[-1][name] for name in ("stop_reason",) if name in epochs[-1]},
    }


def unpack_epochs(columns: Mapping[str, Any], stage: str) -> list[dict[str, Any]]:
    """Undo `pack_epochs`."""
    if not columns:
        return []
    count = len(columns["valid_loss"])
    held = {name: list(spread(columns[name], count)) for name in SWITCHES if name in columns}
    best = math.inf if columns["best_before"] is None else columns["best_before"]
    lines = []
    for index, valid_loss in enumerate(columns["valid_loss"]):
        best = min(best, valid_loss)
        numbers = {name: columns[name][index] for name in ("step", "train_loss") if name in columns}
        numbers |= {
            "valid_loss": valid_loss,
            "valid_perplexity": math.exp(valid_loss),
            "best_valid_loss": best,
        }
        line: dict[str, Any] = {"kind": "epoch", "epoch": index + 1, "stage": stage, **numbers}
        line |= {name: values[index] for name, values in held.items()}
        lines.append(line | {"clock": {"seconds": columns["seconds"][index]}})
    lines[-1] |= {name: columns[name] for name in ("stop_reason",) if name in columns}
    return lines


def switches(epochs: Sequence[Mapping[str, Any]], name: str) -> list[list[Any]]:
    """The epochs at which a column changes, with its value from there on.

    Example:
        >>> switches([{"round": 1}, {"round": 1}, {"round": 2}], "round")
        [[1, 1], [3, 2]]
    """
    found: list[list[Any]] = []
    for number, line in enumerate(epochs, start=1):
        if not found or line[name] != found[-1][1]:
            found.append([number, line[name]])
    return found


def spread(pairs: Iterable[Sequence[Any]], count: int) -> Iterator[Any]:
    """Undo `switches`.

    Example:
        >>> list(spread([[1, "a"], [3, "b"]], 4))
        ['a', 'a', 'b', 'b']
    """
    for (first, value), (end, _) in pairwise([*pairs, (count + 1, None)]):
        if not 1 <= first <= end <= count + 1:
            raise ValueError(f"a column changes at epoch {first}, but there are {count} epochs")
        yield from repeat(value, end - first)


def read_results(paths: Iterable[str | Path]) -> list[RunRecord]:
    """Read run folders, compact files (``.jsonl``), and folders that hold either of them."""
    found: list[RunRecord] = []
    for path in record_paths(paths):
        found += read_compact(path) if path.suffix == ".jsonl" else [read_folder(path)]
    return found


def record_paths(paths: Iterable[str | Path]) -> list[Path]:
    """Run folders and compact files: those given, and those in the other folders given."""
    found: list[Path] = []
    for path in map(Path, paths):
        is_record = path.suffix == ".jsonl" or (path / "run.json").exists() or not path.is_dir()
        found += [path] if is_record else records_inside(path) or [path]
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
