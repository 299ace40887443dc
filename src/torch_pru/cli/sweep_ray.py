"""``pru sweep --ray``: the trials of a sweep as a live table, and what is said at their end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from torch_pru.cli.console import messages, say
from torch_pru.cli.progress import is_live
from torch_pru.errors import PRUError
from torch_pru.lm.files import TEXT_LIMIT, Folder, MissingFileError
from torch_pru.lm.seal import parse_json

if TYPE_CHECKING:
    from torch_pru.lm.config import Config
    from torch_pru.lm.grid import Grid

STOPPED = "stopped.json"
"""The file in the folder of a sweep with the runs that early stopping has ended."""

STATES = ("running", "retried", "failed", "stopped", "finished")
"""What a trial can be, in the order of the table."""


def train_on_ray(address: str, grid: Grid, folder: Path, runs: Mapping[Path, Config]) -> dict[Path, Config]:
    """Train what is not trained yet on a Ray cluster; all runs of the sweep that have a result."""
    from torch_pru.cli.sweep import refuse_link, unfinished_runs
    from torch_pru.lm.run import RunFolder, pru_command

    try:
        from torch_pru.lm.ray_cluster import connected
        from torch_pru.lm.ray_trials import train_trials
    except ImportError as error:
        raise PRUError(f"pru sweep --ray needs {error.name}; pip install 'torch-pru[ray]'") from error
    folder = folder.resolve()
    runs = {path.resolve(): config for path, config in runs.items()}
    if grid.sampler == "optuna":  # those that were chosen before
        chosen = [path.parent for path in folder.glob("*/run.json")]
        for path in chosen:
            refuse_link(path)
        runs = {path: RunFolder.open(path).config for path in chosen}
    trials = TrialTable(folder)
    unfinished = unfinished_runs(runs)
    new = [path for path in runs if not (path / "run.json").exists()]
    left = {path: runs[path] for path in [*unfinished, *new] if path.name not in trials.stopped}
    with connected(address, folder), trials:
        train_trials(grid, folder, left, trials.watch)
    found = {path: RunFolder.open(path).config for path in trials.states} if grid.sampler == "optuna" else {}
    wanted = {**runs, **found}
    if cut_off := [path for path in left if trials.states.get(path) not in ("finished", "stopped", "failed")]:
        say(
            messages(),
            f"stopped; {len(cut_off)} runs are not finished; continue with: "
            f"{pru_command('sweep', '--resume', folder, '--ray', address)}",
        )
        raise typer.Exit(130)
    if trials.errors:
        lines = "; ".join(f"{path.name}: {error}" for path, error in trials.errors.items())
        raise PRUError(f"{len(trials.errors)} of {len(wanted)} runs failed: {lines}")
    return wanted


class TrialTable:
    """A live table of the trials; where there is no terminal, a line for each event.

    Args:
        folder: of the sweep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.console = messages()
        self.states: dict[Path, str] = {}
        self.reports: dict[Path, dict[str, Any]] = {}
        self.errors: dict[Path, str] = {}
        self.stopped = self._read_stopped()
        self._live = Live(console=self.console, auto_refresh=False) if is_live(self.console) else None

    def __enter__(self) -> TrialTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, path: Path, state: str, report: Mapping[str, Any]) -> None:
        """Take note of what happened to a trial."""
        before = self.states.get(path)
        self.states[path] = state
        self.reports[path] = self.reports.get(path, {}) | dict(report)
        if state == "failed":
            self.errors[path] = str(report.get("error") or report.get("failure"))
        if state == "stopped":
            self._add_stopped(path.name)
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
        elif state != before:
            self.console.print(" ".join(self._texts(path)), soft_wrap=True)

    def table(self) -> Group:
        """As many trials as fit on the screen, those at work first, and how many there are of each state."""
        table = Table("run", "state", box=None, pad_edge=False)
        for heading in ("epoch", "validation"):
            table.add_column(heading, justify="right")
        for path in sorted(self.states, key=self._place)[: self.console.height - 3]:
            table.add_row(*self._texts(path))
        states = Counter(self.states.values())
        counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        return Group(table, Text(counts, no_wrap=True, overflow="ellipsis"))

    def _place(self, path: Path) -> tuple[int, float]:
        """Where a trial is in the table: by state, and of those that have ended the best first."""
        state = self.states[path]
        return STATES.index(state), self._loss(path) if state in ("stopped", "finished") else 0.0

    def _loss(self, path: Path) -> float:
        return float(self.reports[path].get("valid_loss", float("inf")))

    def _texts(self, path: Path) -> list[str]:
        from torch_pru.lm.evaluation.static import format_perplexity, perplexity

        loss = self._loss(path)
        best = "" if loss == float("inf") else format_perplexity(perplexity(loss))
        return [path.name, self.states[path], str(self.reports[path].get("epoch", "")), best]

    def _read_stopped(self) -> set[str]:
        try:
            names = parse_json(Folder(self.folder).read(STOPPED, TEXT_LIMIT))
        except MissingFileError:
            return set()
        except ValueError as error:
            raise PRUError(f"{self.folder / STOPPED} is not JSON: {error}") from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PRUError(f"{self.folder / STOPPED} is not a list of names")
        return set(names)

    def _add_stopped(self, name: str) -> None:
        self.stopped.add(name)
        Folder(self.folder).write(STOPPED, json.dumps(sorted(self.stopped)).encode())
