"""What a run folder says about its run, with or without the weights in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, flat_settings, second_stage
from torch_pru.lm.evaluation.scores import SIXTEEN_BITS, Scores, load_scores
from torch_pru.lm.evaluation.tune import TOKENS
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFile
from torch_pru.lm.recipe import list_recipes, load_recipe
from torch_pru.lm.run import RunFolder

HOW = frozenset(
    {"seed", "device", "precision", "graphs", "log_steps", "checkpoint_minutes", "checkpoint_steps"}
)
"""Settings of how a run is carried out: a run that differs from a recipe in these alone is a run of it."""


@dataclass(frozen=True)
class Result:
    """A run in numbers.

    Attributes:
        folder: where it lies.
        config: its settings.
        recipes: the recipes it is a run of; some name the same settings twice.
        nearest: where there is none, the recipe it comes from, see `nearest_recipe`.
        changes: settings that differ from ``nearest``, with the run's values.
        finetuned: whether it is the second stage.
        finished: whether it came to its end.
        epochs, minutes: until the end of its last epoch.
        best_epoch: of the lowest validation loss; 0 where finetuning has not bettered what it began with.
        device, commit: of its environment.
        scores: what ``pru evaluate`` found, or None.

    Example:
        >>> result = read_result("runs/ptb-pru-g4-1")                       # doctest: +SKIP
        >>> result.recipes, result.perplexity("static", "test")             # doctest: +SKIP
        (('ptb-pru-g4',), 62.51)
    """

    folder: Path
    config: Config
    recipes: tuple[str, ...]
    nearest: str
    changes: dict[str, Any]
    finetuned: bool
    finished: bool
    epochs: int
    best_epoch: int
    minutes: float
    device: str
    commit: str
    scores: Scores | None

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.config.training.seed

    @property
    def weights(self) -> str:
        """SHA-256 of the weights, empty before the first score."""
        return "" if self.scores is None else self.scores.weights

    def perplexity(self, method: str, split: str) -> float | None:
        """A perplexity on record, or None."""
        return None if self.scores is None else self.scores.perplexity(method, split)

    def is_scored(self, method: str) -> bool:
        """Whether a perplexity by this method is on record."""
        return self.scores is not None and bool(self.scores.results.get(method))

    def parameters(self, part: str) -> int | None:
        """How many parameters ``"recurrent"``, ..., or ``"total"`` has, or None before the first score."""
        return None if self.scores is None else self.scores.parameters.get(part)

    def settings(self, method: str) -> dict[str, Any]:
        """What a method was scored with, on the test text or else on validation."""
        found = {} if self.scores is None else self.scores.results.get(method, {})
        return dict(next((found[split]["settings"] for split in ("test", "valid") if split in found), {}))

    def evaluation_options(self, method: str) -> str:
        """What ``pru evaluate`` was told beside the method, as far as the scores tell of it."""
        if self.scores is None:
            return ""
        options = [" --tune"] if method in self.scores.tuning else []
        tokens = self.scores.tuning.get(method, {}).get("tokens", TOKENS)
        precision = self.scores.results.get(method, {}).get("test", {}).get("precision", "float32")
        options += [f" --tune-tokens {tokens}"] if tokens != TOKENS else []
        options += [f" --precision {precision}"] if precision in SIXTEEN_BITS else []
        return "".join(options)


def read_result(folder: str | Path) -> Result:
    """Read a run folder, or a copy of it without weights.

    Needed are run.json, config.toml, metrics.jsonl and environment.json; scores.json where there are scores.
    """
    run = RunFolder.open(folder)
    epochs = run.epochs()
    environment = read_environment(run.path)
    nearest, changes = nearest_recipe(run.config, run.stage)
    own = settings_without_how(run.config)
    return Result(
        folder=run.path,
        config=run.config,
        recipes=tuple(name for name, settings in recipe_settings(run.stage).items() if settings == own),
        nearest=nearest,
        changes=changes,
        finetuned=run.stage == "finetune",
        finished=bool(epochs) and epochs[-1]["decision"] == "stop",
        epochs=len(epochs),
        best_epoch=run.best_epoch(),
        minutes=epochs[-1]["clock"]["seconds"] / 60 if epochs else 0.0,
        device=str(environment.get("device_name") or ""),
        commit=str(environment.get("commit") or ""),
        scores=load_scores(run.path),
    )


def keep(folder: str | Path, into: str | Path) -> Path:
    """Copy what a report needs of a run, and nothing large: no weights, of the metrics the epochs.

    The copy has the run's name and replaces an earlier copy of it.

    Example:
        >>> keep("runs/ptb-pru-g4-1", "results")                            # doctest: +SKIP
        PosixPath('results/ptb-pru-g4-1')
    """
    run = RunFolder.open(folder)
    copy = Path(into) / run.path.name
    if copy.resolve() == run.path.resolve():
        raise PRUError(
            f"the run in {run.path} would be copied onto itself, and lose what the copy leaves out"
        )
    files = Folder(copy)
    files.make()
    files.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in run.epochs()).encode())
    for name in ("run.json", "config.toml", "environment.json", "scores.json"):
        try:
            files.write(name, run.files.read(name, TEXT_LIMIT))
        except MissingFile:  # nothing of an earlier copy stays
            files.remove(name)
    return copy


def read_environment(folder: Path) -> dict[str, Any]:
    """The content of environment.json."""
    path = folder / "environment.json"
    try:
        content = json.loads(Folder(folder).read("environment.json", TEXT_LIMIT))
    except (ValueError, RecursionError) as error:
        raise PRUError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise PRUError(f"{path} is not a JSON object")
    return content


def nearest_recipe(config: Config, stage: str = "train") -> tuple[str, dict[str, Any]]:
    """The recipe that a run comes from, and what ``config`` has other than it at this stage.

    That is the recipe of the same name; for a recipe of one's own, the one with the fewest other settings.

    Example:
        >>> nearest_recipe(load_recipe("ptb-pru-g4", {"epochs": "3"}))
        ('ptb-pru-g4', {'epochs': 3})
    """
    own = settings_without_how(config)
    changes = {
        name: {key: value for key, value in own.items() if settings[key] != value}
        for name, settings in recipe_settings(stage).items()
    }
    fewest = min(changes, key=lambda name: (len(changes[name]), name))
    best = config.name if config.name in changes else fewest
    return best, changes[best]


def settings_without_how(config: Config) -> dict[str, Any]:
    """The settings that make a run what it is; the two ways to run an LSTM are one."""
    settings = flat_settings(config) | {"unit": config.model.kind}
    return {key: value for key, value in settings.items() if key not in HOW}


@cache
def recipe_settings(stage: str) -> dict[str, dict[str, Any]]:
    """Those of every recipe in the package at a stage: ``"train"`` or ``"finetune"``."""
    configs = {name: load_recipe(name) for name in list_recipes()}
    if stage == "finetune":
        configs = {name: second_stage(config) for name, config in configs.items()}
    return {name: settings_without_how(config) for name, config in configs.items()}
