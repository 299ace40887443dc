"""Runs as trials of Ray Tune, in folders that all machines of the cluster share.

A trial trains or resumes a run with `train` and `resume`, as a single process does. The run folder has the
checkpoints, so a trial that is lost with its machine is retried on another one and continues there.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from torch_pru.errors import PRUError
from torch_pru.lm.config import Config, flat_settings
from torch_pru.lm.files import Folder, locked
from torch_pru.lm.grid import Grid, Range, as_typed
from torch_pru.lm.metrics import has_finished
from torch_pru.lm.recipe import config_text, read_config
from torch_pru.lm.run import RunFolder
from torch_pru.lm.training import Interrupted, TrainingProgress, resume, train

RETRIES = 5
"""How often a trial is retried after its process or its machine was lost."""

LOCK_PATIENCE = 600.0
"""Seconds to wait for a run folder: the process that had it may outlive the connection to its machine."""

REPORT_PATIENCE = 60.0
"""Seconds until a report must have been fetched, or the sweep has lost this process, which then ends."""


class Trial(tune.Trainable):
    """Trains the run of a trial in a thread. Each call of ``step`` returns its next report.

    The configuration of a trial has, under ``trial``, ``path`` and ``settings``: a run's folder and its
    config.toml. A trial of Optuna has ``grid`` and ``folder`` instead, and ``chosen``, the values chosen.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start training."""
        self.path, self.config_of_run = run_of(config)
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=1)
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()

    def reset_config(self, config: dict[str, Any]) -> bool:
        """Start another run in this process, when the last one has ended."""
        self.cleanup()
        self.setup(config)
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next report."""
        alive = True
        while alive:
            alive = self.thread.is_alive()
            with suppress(queue.Empty):
                return self.reports.get(timeout=1)
        raise RuntimeError("training ended because nobody had asked for its report")  # the trial is retried

    def cleanup(self) -> None:
        """Save the run, if it is still being trained, and wait for that."""
        self.stopped.set()
        while self.thread.is_alive():
            with suppress(queue.Empty):
                self.reports.get_nowait()  # so that the thread can hand over its report
            self.thread.join(0.05)

    def _train(self) -> None:
        last: dict[str, Any] = {"done": True, "epoch": 0, "valid_loss": float("inf")}
        try:
            with locked(self.path, LOCK_PATIENCE):
                pass
            if (self.path / "run.json").exists():
                resume(self.path, progress=self._report)
            else:
                train(self.config_of_run, self.path, progress=self._report)
        except (Stopped, Interrupted, queue.Full):
            return
        except PRUError as error:  # would be raised by a retry, too
            last["error"] = str(error)
        except Exception as error:
            last["failure"] = f"{type(error).__name__}: {error}"
        self.reports.put(last | self._last_epoch())

    def _last_epoch(self) -> dict[str, Any]:
        """What the log of the run says of its last epoch."""
        try:
            line = RunFolder.open(self.path).epochs()[-1]
        except (PRUError, IndexError):
            return {}
        return {"epoch": line["epoch"], "valid_loss": line["best_valid_loss"]}

    def _report(self, progress: TrainingProgress) -> None:
        best = progress.best_valid_loss
        report = {
            "epoch": progress.epoch if progress.ended else progress.epoch - 1,
            "valid_loss": float("inf") if best is None else best,
            "tokens_per_second": progress.tokens_per_second,
            "run": str(self.path),
        }
        if not self.stopped.is_set() and not (progress.ended and progress.stop_reason):
            self.reports.put(report, timeout=REPORT_PATIENCE)
        if self.stopped.is_set():
            raise Stopped


class Stopped(Exception):  # noqa: N818
    """Raised in the thread of a trial that Ray has stopped; the run is saved."""


def run_of(config: Mapping[str, Any]) -> tuple[Path, Config]:
    """The folder and the settings of a trial's run."""
    config = config.get("trial", config)
    if "settings" in config:
        path = Path(config["path"])
        return path, read_config(config["settings"].encode(), path / "config.toml")
    grid: Grid = config["grid"]
    return optuna_run(grid, Path(config["folder"]), config["chosen"])


def optuna_run(grid: Grid, folder: Path, chosen: Mapping[str, Any]) -> tuple[Path, Config]:
    """The folder and the settings of a run that Optuna has chosen."""
    texts = {}
    for key, value in chosen.items():
        choices = grid.search[key]
        texts[key] = choices.text(value) if isinstance(choices, Range) else str(value)
    cell = grid.cell(texts)
    return folder / f"{cell.label}-seed{cell.config.training.seed}", cell.config


Watch = Callable[[Path, str, Mapping[str, Any]], None]
"""Called with a run folder, a state ("running", "finished", "stopped", "failed", "retried") and a report."""


def train_trials(grid: Grid, folder: Path, runs: Mapping[Path, Config], watch: Watch) -> None:
    """Train runs on the cluster, and after them those that Optuna chooses."""
    scheduler = asha(grid, runs)
    if runs:
        space = [{"path": str(path), "settings": config_text(config)} for path, config in runs.items()]
        fit(grid, {"trial": tune.grid_search(space)}, tune.TuneConfig(scheduler=scheduler), watch)
    if grid.sampler == "optuna":
        fit_optuna(grid, folder, scheduler, watch)


def asha(grid: Grid, runs: Mapping[Path, Config]) -> Any:
    """The scheduler that stops the worst runs early, or None."""
    if not grid.early_stopping:
        return None
    configs = list(runs.values()) or [grid.cell({}).config]
    epochs = max(config.training.epochs for config in configs)
    grace = min(grid.early_stopping.get("grace", 1), epochs)
    factor = grid.early_stopping.get("factor", 4)
    return ASHAScheduler(
        "epoch", "valid_loss", "min", max_t=epochs + 1, grace_period=grace, reduction_factor=factor
    )


def fit_optuna(grid: Grid, folder: Path, scheduler: Any, watch: Watch) -> None:
    """Train the runs that Optuna chooses; it learns from those that the folder has."""
    try:
        from ray.tune.search import ConcurrencyLimiter
        from ray.tune.search.optuna import OptunaSearch

        known = [RunFolder.open(path.parent) for path in sorted(folder.glob("*/run.json"))]
        known = [run for run in known if run.epochs()]
        left = grid.samples - len(known)
        if left <= 0:
            return
        past: dict[str, Any] = {}
        if known:
            past["points_to_evaluate"] = [chosen_of(grid, run.config) for run in known]
            past["evaluated_rewards"] = [run.epochs()[-1]["best_valid_loss"] for run in known]
        searcher = OptunaSearch(space_of(grid), metric="valid_loss", mode="min", seed=len(known), **past)
    except (ImportError, AssertionError) as error:
        raise PRUError("sampler='optuna' needs optuna; pip install 'torch-pru[ray]'") from error
    at_once = max(1, int(ray.cluster_resources().get("CPU", 1) / grid.resources.get("cpus", 1)))
    config = tune.TuneConfig(
        search_alg=ConcurrencyLimiter(searcher, at_once), num_samples=left, scheduler=scheduler
    )
    fit(grid, {"grid": grid, "folder": str(folder)}, config, watch)


def space_of(grid: Grid) -> dict[str, Any]:
    """The search space in Optuna's terms."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    space: dict[str, Any] = {}
    for key, choices in grid.search.items():
        if not isinstance(choices, Range):
            space[f"chosen/{key}"] = CategoricalDistribution(list(choices))
        elif choices.integers:
            space[f"chosen/{key}"] = IntDistribution(int(choices.low), int(choices.high), log=choices.log)
        else:
            space[f"chosen/{key}"] = FloatDistribution(choices.low, choices.high, log=choices.log)
    return space


def chosen_of(grid: Grid, config: Config) -> dict[str, Any]:
    """What a run has for the settings that are searched, in Optuna's terms."""
    found = flat_settings(config)
    return {f"chosen/{key}": choice_of(choices, found[key]) for key, choices in grid.search.items()}


def choice_of(choices: Range | Sequence[str], value: Any) -> Any:
    """The choice that led to a setting: the texts of numbers are rounded, and 5 becomes 5.0."""
    if isinstance(choices, Range):
        return min(max(value, choices.low), choices.high)
    same = [text for text in choices if text == as_typed(value)]
    return same[0] if same else next(text for text in choices if float(text) == value)


def fit(grid: Grid, space: dict[str, Any], config: tune.TuneConfig, watch: Watch) -> None:
    """Train all trials of a search space."""
    config.reuse_actors = True
    resources = {"cpu": grid.resources.get("cpus", 1)}
    if gpus := grid.resources.get("gpus"):
        resources["gpu"] = gpus
    with TemporaryDirectory() as storage:
        run_config = tune.RunConfig(
            storage_path=storage,
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # a run folder has its own
            callbacks=[Reporter(watch)],
            verbose=0,
        )
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # lost trials are reported by `watch`
        trainable = tune.with_resources(Trial, resources)
        tune.Tuner(trainable, param_space=space, tune_config=config, run_config=run_config).fit()


class Reporter(tune.Callback):
    """Passes what happens to the trials on."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks to restore them; a sweep is resumed from its run folders

    def _path(self, trial: Any) -> Path:
        return run_of(trial.config)[0]

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any
    ) -> None:
        """A report."""
        if "error" in result or "failure" in result:
            self.watch(self._path(trial), "failed", result)
        elif not result.get("done"):
            self.watch(self._path(trial), "running", result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has ended, by itself or because the scheduler stopped it."""
        result = trial.last_result or {}
        if "error" not in result and "failure" not in result:
            path = self._path(trial)
            self.watch(path, "finished" if has_finished(Folder(path)) else "stopped", result)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial was lost and is retried."""
        self.watch(self._path(trial), "retried", {})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial was lost too often."""
        self.watch(self._path(trial), "failed", {"error": f"its process was lost {RETRIES + 1} times"})
