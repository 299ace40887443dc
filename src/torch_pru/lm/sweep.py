"""Grids of settings: one run for each combination and seed, and one table of all."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError, nearest
from torch_pru.lm.config import PRU_SETTINGS, Config, flat_settings, section_of
from torch_pru.lm.evaluation.scores import load_scores
from torch_pru.lm.evaluation.static import format_perplexity
from torch_pru.lm.model import parameter_counts, skeleton
from torch_pru.lm.recipe import list_recipes, load_recipe, read_toml, toml_text
from torch_pru.lm.run import RunFolder

FOLDER = Path(__file__).parent / "grids"

SHORT = {"levels": "K", "groups": "g", "unit": ""}
"""What settings are called in the names of runs; the others have their own name."""


@dataclass(frozen=True)
class Grid:
    """Settings to combine.

    Attributes:
        recipe: what every run starts from.
        values: for each setting, its values as typed after ``--set``.
        seeds: runs of each combination.
        fixed: settings of all runs, as typed after ``--set``.

    Example:
        >>> grid = Grid("quickstart", {"unit": ["pru", "lstm"], "groups": ["1", "4"]})
        >>> [cell.label for cell in grid.cells()]
        ['pru-g1', 'pru-g4', 'lstm']
    """

    recipe: str
    values: Mapping[str, Sequence[str]]
    seeds: int = 1
    fixed: Mapping[str, str] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """The combinations, each once: an LSTM has no levels and no groups."""
        cells: dict[str, Cell] = {}
        for combination in product(*self.values.values()):
            chosen, fixed = dict(zip(self.values, combination, strict=True)), dict(self.fixed)
            if chosen.get("unit", fixed.get("unit", "pru")) != "pru":
                chosen, fixed = without_pru(chosen), without_pru(fixed)
            label = label_of(chosen)
            cells.setdefault(label, Cell(label, load_recipe(self.recipe, {**fixed, **chosen})))
        return list(cells.values())


@dataclass(frozen=True)
class Cell:
    """One combination of a grid.

    Attributes:
        label: what sets it apart, as in ``"pru-K2-g4"``.
        config: all settings, with the first seed.
    """

    label: str
    config: Config

    def with_seed(self, number: int) -> Config:
        """The settings of the run with this number, from 0."""
        training = dataclasses.replace(self.config.training, seed=self.config.training.seed + number)
        return dataclasses.replace(self.config, training=training)


def without_pru(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings without those that only a PRU has."""
    return {key: value for key, value in settings.items() if key not in PRU_SETTINGS}


def label_of(settings: Mapping[str, str]) -> str:
    """A short name of some settings.

    Example:
        >>> label_of({"unit": "pru", "levels": "2", "groups": "4", "hidden": "[64, 64]"})
        'pru-K2-g4-hidden64x64'
    """
    parts = [f"{SHORT.get(key, key)}{value}" for key, value in settings.items()]
    text = "-".join(parts).replace(", ", "x").replace(",", "x").replace(" ", "")
    return "".join(sign for sign in text if sign.isalnum() or sign in "-._x") or "run"


def read_grid(name_or_path: str) -> Grid:
    """Read a grid: a TOML file, a grid of the package by name, or a recipe, whose grid is empty.

    The file has ``recipe`` and ``[grid]``, and may have ``seeds`` and ``[settings]``.

    Example:
        >>> len(read_grid("ptb-sweep").cells())
        12
    """
    path = FOLDER / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
        content = read_toml(path) if path.suffix == ".toml" and path.is_file() else {}
        if "grid" not in content:
            if path.suffix != ".toml" and name_or_path not in list_recipes():
                hint = nearest(name_or_path, [*list_recipes(), *(one.stem for one in FOLDER.glob("*.toml"))])
                raise PRUError(f"there is no recipe or grid {name_or_path!r}{hint}")
            return Grid(name_or_path, {})
    content = read_toml(path)
    known = {"recipe", "grid", "seeds", "settings"}
    if extra := sorted(set(content) - known):
        raise PRUError(f"{path}: {extra[0]!r} is not known in a grid{nearest(extra[0], known)}")
    grid = content["grid"]
    if not isinstance(grid, dict) or not all(isinstance(value, list) and value for value in grid.values()):
        raise PRUError(f"{path}: [grid] needs a list of values for each setting, as in groups = [1, 2, 4]")
    for key in (*grid, *content.get("settings", {})):
        check_setting(key, path)
    return Grid(
        str(content.get("recipe", "quickstart")),
        {key: [as_typed(value) for value in values] for key, values in grid.items()},
        int(content.get("seeds", 1)),
        {key: as_typed(value) for key, value in content.get("settings", {}).items()},
    )


def check_setting(key: str, where: object) -> None:
    """Refuse a name that is not a setting."""
    if key not in section_of():
        raise PRUError(f"{where}: {key!r} is not a setting{nearest(key, section_of())}")


def as_typed(value: Any) -> str:
    """A value of a TOML file as it is typed after ``--set``."""
    return value if isinstance(value, str) else toml_text(value)


RUNTIME = frozenset({"device", "precision", "minutes", "log_steps", "checkpoint_minutes", "checkpoint_steps"})
"""Settings in which a run that is found again may differ."""


def check_same(run: RunFolder, config: Config) -> None:
    """Refuse a run that was trained with other settings than a grid's cell has."""
    found, wanted = flat_settings(run.config), flat_settings(config)
    ignored = RUNTIME | {"corpus", "tokenizer"}  # resolved when a run starts
    for key in wanted:
        if key not in ignored and found[key] != wanted[key]:
            raise PRUError(
                f"{run.path} was trained with {key}={found[key]!r}, not {wanted[key]!r}; "
                f"choose another --name"
            )


@dataclass(frozen=True)
class Row:
    """One combination in the table, over all its seeds.

    Attributes:
        label: of the combination.
        parameters: of its model.
        valid, test: perplexities of its runs, at batch 1.
        tokens_per_second: of training, the mean over its runs.
        minutes: of training, the mean over its runs.
    """

    label: str
    parameters: int
    valid: list[float]
    test: list[float]
    tokens_per_second: float
    minutes: float


def row_of(label: str, runs: Sequence[RunFolder]) -> Row:
    """A row from finished runs that `pru evaluate` has scored."""
    first = runs[0]
    counts = parameter_counts(
        skeleton(first.config.model, first.config.regularisation, len(first.vocabulary))
    )
    scores: dict[str, list[float]] = {"valid": [], "test": []}
    speeds, minutes = [], []
    for run in runs:
        kept = load_scores(run.path)
        for split, found in scores.items():
            value = None if kept is None else kept.perplexity("static", split)
            if value is not None:
                found.append(value)
        metrics = run.metrics()
        speeds += [line["clock"]["tokens_per_second"] for line in metrics if line.get("kind") == "steps"]
        minutes.append(run.epochs()[-1]["clock"]["seconds"] / 60)
    speed = statistics.median(speeds) if speeds else 0.0
    return Row(label, counts.total, scores["valid"], scores["test"], speed, statistics.mean(minutes))


def with_spread(values: Sequence[float]) -> str:
    """The mean of some perplexities, and their standard deviation if there are several.

    Example:
        >>> with_spread([60.0, 62.0]), with_spread([60.0]), with_spread([])
        ('61.00 ± 1.41', '60.00', '')
    """
    if not values:
        return ""
    mean = format_perplexity(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


HEADINGS = ("run", "parameters", "validation", "test", "tokens/s", "minutes")


def cells_of(row: Row) -> list[str]:
    """A row as texts, in the order of `HEADINGS`."""
    return [
        row.label,
        f"{row.parameters:,}",
        with_spread(row.valid),
        with_spread(row.test),
        f"{row.tokens_per_second:,.0f}",
        f"{row.minutes:.1f}",
    ]


def markdown(rows: Sequence[Row]) -> str:
    """All rows as a Markdown table."""
    lines = [HEADINGS, ["---", *["---:"] * (len(HEADINGS) - 1)], *map(cells_of, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
