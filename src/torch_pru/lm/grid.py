"""Grids of settings: which combinations a sweep trains, and the TOML files that say so."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError, did_you_mean
from torch_pru.lm.config import PRU_SETTINGS, Config, section_of
from torch_pru.lm.recipe import list_recipes, load_recipe, read_toml, toml_text

FOLDER = Path(__file__).parent / "grids"

MOST_RUNS = 10_000

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
        search: for each setting, the values or the range to draw from.
        samples: how many combinations are drawn.
        sampler: ``"random"``, or ``"optuna"``, which learns from the runs so far and needs Ray.
        early_stopping: ``grace`` and ``factor`` of ASHA, or empty; needs Ray.
        resources: ``cpus`` and ``gpus`` of each run on Ray; ``gpus`` may be a fraction.

    Example:
        >>> grid = Grid("quickstart", {"unit": ["pru", "lstm"], "groups": ["1", "4"]})
        >>> [cell.label for cell in grid.cells()]
        ['pru-g1', 'pru-g4', 'lstm']
    """

    recipe: str
    values: Mapping[str, Sequence[str]]
    seeds: int = 1
    fixed: Mapping[str, str] = field(default_factory=dict)
    search: Mapping[str, Range | Sequence[str]] = field(default_factory=dict)
    samples: int = 0
    sampler: str = "random"
    early_stopping: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)

    def cells(self) -> list[Cell]:
        """The combinations, each once: an LSTM has no levels and no groups. None if Optuna chooses them."""
        if math.prod(map(len, self.values.values())) * max(1, self.samples) * self.seeds > MOST_RUNS:
            raise PRUError(f"the grid has more than {MOST_RUNS:,} runs; leave out values, samples or seeds")
        cells: dict[str, Cell] = {}
        for combination in product(*self.values.values()):
            chosen = dict(zip(self.values, combination, strict=True))
            for drawn in self._draws():
                cell = self.cell({**chosen, **drawn})
                cells.setdefault(cell.label, cell)
        return list(cells.values())

    def cell(self, chosen: Mapping[str, str]) -> Cell:
        """One combination."""
        fixed = dict(self.fixed)
        if chosen.get("unit", fixed.get("unit", "pru")) != "pru":
            chosen, fixed = without_pru(chosen), without_pru(fixed)
        return Cell(label_of(chosen), load_recipe(self.recipe, {**fixed, **chosen}))

    def _draws(self) -> list[dict[str, str]]:
        """The combinations that are drawn at random, the same ones every time."""
        if self.sampler == "optuna":
            return []
        if not self.search:
            return [{}]
        numbers = random.Random("samples")
        return [
            {
                key: choices.draw(numbers) if isinstance(choices, Range) else numbers.choice(choices)
                for key, choices in self.search.items()
            }
            for _ in range(self.samples)
        ]


@dataclass(frozen=True)
class Range:
    """Numbers to draw from; integers if both ends are.

    Example:
        >>> Range(1, 4).text(2.7), Range(0.001, 0.1, log=True).text(0.0123456)
        ('2', '0.01235')
    """

    low: float
    high: float
    log: bool = False

    @property
    def integers(self) -> bool:
        """Whether only integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def draw(self, numbers: random.Random) -> str:
        """A number as typed after ``--set``."""
        if self.log:
            return self.text(math.exp(numbers.uniform(math.log(self.low), math.log(self.high))))
        return self.text(
            numbers.randint(int(self.low), int(self.high))
            if self.integers
            else numbers.uniform(self.low, self.high)
        )

    def text(self, value: float) -> str:
        """A number as typed after ``--set``: an integer, or four digits."""
        return str(int(value)) if self.integers else f"{value:.4g}"


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

    The file has ``[grid]`` or ``[search]``, and may have ``recipe``, ``seeds``, ``samples``, ``sampler``,
    ``[settings]``, ``[early_stopping]`` and ``[resources]``; see `Grid`.
    """
    path = FOLDER / f"{name_or_path}.toml"
    if not path.is_file():
        path = Path(name_or_path)
        content = read_toml(path) if path.suffix == ".toml" and path.is_file() else {}
        if not TABLES & set(content) - {"settings"}:
            if path.suffix != ".toml" and name_or_path not in list_recipes():
                hint = did_you_mean(
                    name_or_path, [*list_recipes(), *(one.stem for one in FOLDER.glob("*.toml"))]
                )
                raise PRUError(f"there is no recipe or grid {name_or_path!r}{hint}")
            return Grid(name_or_path, {})
    return grid_from(read_toml(path), path)


TABLES = {"grid", "settings", "search", "early_stopping", "resources"}
"""The tables of a grid file; its other keys are those of `Grid`."""


def grid_from(content: dict[str, Any], path: Path) -> Grid:
    """The grid of a file's content; a mistake names the file."""
    known = {"recipe", "seeds", "samples", "sampler"} | TABLES
    if extra := sorted(set(content) - known):
        raise PRUError(f"{path}: {extra[0]!r} is not known in a grid{did_you_mean(extra[0], known)}")
    tables = {name: content.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise PRUError(f"{path}: {name} must be a table, [{name}]")
    for key in (*tables["grid"], *tables["settings"], *tables["search"]):
        check_setting(key, path)
    for key, values in tables["grid"].items():
        if not isinstance(values, list) or not values:
            raise PRUError(
                f"{path}: [grid] {key} needs a list of values, as in groups = [1, 2, 4]; without any "
                f"there is no run"
            )
    numbers = {"seeds": 1, "samples": 0} | {
        key: content[key] for key in ("seeds", "samples") if key in content
    }
    for key, value in numbers.items():
        least = 1 if key == "seeds" or tables["search"] else 0
        if type(value) is not int or value < least:
            raise PRUError(f"{path}: {key}={value!r} makes no run; use an integer of at least {least}")
    sampler = content.get("sampler", "random")
    if sampler not in ("random", "optuna"):
        raise PRUError(f"{path}: sampler={sampler!r} is not known; use 'random' or 'optuna'")
    if sampler == "optuna" and (tables["grid"] or numbers["seeds"] > 1 or not tables["search"]):
        raise PRUError(
            f"{path}: sampler='optuna' needs [search] and chooses every run: leave out [grid] and seeds"
        )
    return Grid(
        str(content.get("recipe", "quickstart")),
        {key: [as_typed(value) for value in values] for key, values in tables["grid"].items()},
        numbers["seeds"],
        {key: as_typed(value) for key, value in tables["settings"].items()},
        {key: choices_of(key, value, path) for key, value in tables["search"].items()},
        numbers["samples"],
        sampler,
        positive_numbers(tables["early_stopping"], {"grace": int, "factor": int}, "early_stopping", path),
        positive_numbers(tables["resources"], {"cpus": float, "gpus": float}, "resources", path),
    )


LARGEST = 2**53
"""The ends of a range are below this, so that they stay exact as floats."""

RANGE: dict[str, Any] = {"min": None, "max": None, "log": False}
"""The keys of a range in a grid file."""


def choices_of(key: str, value: Any, path: Path) -> Range | list[str]:
    """What a search draws a setting from: a list of values, or a range."""
    if isinstance(value, list) and value:
        return [as_typed(one) for one in value]
    if isinstance(value, dict) and set(value) <= set(RANGE):
        low, high, log = (value.get(name, default) for name, default in RANGE.items())
        numbers = all(type(one) in (int, float) for one in (low, high)) and type(log) is bool
        if numbers and -LARGEST < low < high < LARGEST and (low > 0 or not log):
            return Range(low, high, log)
    raise PRUError(
        f"{path}: [search] {key} must be a list of values, or a range such as "
        f"{{ min = 1.0, max = 30.0, log = true }}"
    )


def positive_numbers(
    table: dict[str, Any], kinds: Mapping[str, type], name: str, path: Path
) -> dict[str, Any]:
    """A table of positive numbers; ``gpus`` and ``cpus`` may be fractions."""
    for key, value in table.items():
        if key not in kinds:
            raise PRUError(
                f"{path}: [{name}] {key!r} is not known{did_you_mean(key, kinds)}; use {' or '.join(kinds)}"
            )
        if type(value) not in (int, kinds[key]) or not 0 < value < float("inf"):
            raise PRUError(f"{path}: [{name}] {key}={value!r} must be a positive number")
    if name == "early_stopping" and table and table.get("factor", 4) < 2:
        raise PRUError(f"{path}: [early_stopping] factor={table['factor']} must be at least 2")
    return table


def grid_text(grid: Grid) -> str:
    """A grid as TOML that `read_grid` reads back.

    Example:
        >>> print(grid_text(Grid("quickstart", {"groups": ["1", "4"]})))
        recipe = "quickstart"
        seeds = 1
        <BLANKLINE>
        [grid]
        groups = ["1", "4"]
        <BLANKLINE>
    """
    lines = [f"recipe = {toml_text(grid.recipe)}", f"seeds = {grid.seeds}"]
    if grid.search:
        lines += [f"samples = {grid.samples}", f"sampler = {toml_text(grid.sampler)}"]
    search = {
        key: f"{{ min = {value.low}, max = {value.high}, log = {toml_text(value.log)} }}"
        if isinstance(value, Range)
        else toml_text(list(value))
        for key, value in grid.search.items()
    }
    tables = {
        "grid": {key: toml_text(list(values)) for key, values in grid.values.items()},
        "settings": {key: toml_text(value) for key, value in grid.fixed.items()},
        "search": search,
        "early_stopping": {key: str(value) for key, value in grid.early_stopping.items()},
        "resources": {key: str(value) for key, value in grid.resources.items()},
    }
    for name, table in tables.items():
        if table or name == "grid":
            lines += ["", f"[{name}]", *(f"{key} = {value}" for key, value in table.items())]
    return "\n".join([*lines, ""])


def check_setting(key: str, where: object) -> None:
    """Refuse a name that is not a setting."""
    if key not in section_of():
        hint = did_you_mean(key, section_of()) or "; pru settings lists all"
        raise PRUError(f"{where}: {key!r} is not a setting{hint}")


def as_typed(value: Any) -> str:
    """A value as it is typed after ``--set``.

    Example:
        >>> as_typed((200, 200)), as_typed(True), as_typed("ptb")
        ('[200, 200]', 'true', 'ptb')
    """
    return value if isinstance(value, str) else toml_text(value)
