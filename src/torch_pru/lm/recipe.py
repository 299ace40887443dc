"""Recipes: small TOML files that name a whole run, one a row of the paper's tables."""

from __future__ import annotations

import dataclasses
import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_pru.errors import PRUError, did_you_mean, shown
from torch_pru.lm.config import (
    PRU_SETTINGS,
    SECTIONS,
    Config,
    build_config,
    is_text,
    second_stage,
    section_of,
    settings_of,
)
from torch_pru.lm.files import read_limited
from torch_pru.lm.migration import migrate_settings

FOLDER = Path(__file__).parent / "recipes"

TOML_LIMIT = 1 << 18
"""Bytes of a recipe, a grid or config.toml."""

MOST_DOTS = 200
"""Dots in a line of TOML."""

FINETUNING = "finetuning"
"""The section with what the second stage changes: settings of other sections."""

FINETUNING_HELP = "settings of [regularization] and [training] that pru finetune changes"


def list_recipes() -> list[str]:
    """The names of the recipes in the package. Files that begin with ``_`` are only built upon."""
    return sorted(path.stem for path in FOLDER.glob("*.toml") if not path.stem.startswith("_"))


def load_recipe(name_or_path: str | Path, overrides: Mapping[str, str] | None = None) -> Config:
    """Read a recipe of the package by name, or any TOML file by path, and override settings of it.

    Where the unit is overridden with an LSTM, the recipe's settings that only a PRU has are left out.

    Args:
        name_or_path: ``"ptb-awd-pru-g4"``, or the path of a file ending in ``.toml``.
        overrides: setting to value, as typed after ``--set``: ``{"epochs": "3", "hidden": "[200, 200]"}``.

    Example:
        >>> config = load_recipe("ptb-awd-pru-g4", {"epochs": "3"})
        >>> config.model.hidden, config.training.epochs
        ((1400, 1400, 400), 3)
    """
    path = find_recipe(str(name_or_path), beside=Path())
    values, changes = read_settings(path, ()), parse_overrides(overrides)
    if changes.get("unit", "pru") != "pru":  # the recipe's settings of the PRU do not apply
        values = {key: value for key, value in values.items() if key not in PRU_SETTINGS}
    try:
        return config_of(values | changes, path)
    except PRUError:
        named_config_of(values, path, name_or_path)  # the file itself may be wrong
        raise


def read_config(content: bytes, path: Path) -> Config:
    """The settings in a run's config.toml, which spells all of them out and builds upon no other file.

    Args:
        content: of the file.
        path: of the file, for messages.
    """
    return named_config_of(settings_in(parse_toml(content, path), path), path, path)


def config_of(values: Mapping[str, Any], path: Path) -> Config:
    """The settings of a file."""
    settings = {key: value for key, value in values.items() if key not in ("name", FINETUNING)}
    return build_config(values.get("name", path.stem), settings, values.get(FINETUNING))


def named_config_of(values: Mapping[str, Any], path: Path, name: str | Path) -> Config:
    """The settings of a file; an error begins with ``name``."""
    try:
        return config_of(values, path)
    except PRUError as error:
        raise PRUError(f"{name}: {error}") from error


def finetuning_settings(config: Config, overrides: Mapping[str, str] | None = None) -> Config:
    """The settings of a run's second stage, see `second_stage`, with overrides as typed after ``--set``."""
    return second_stage(config, parse_overrides(overrides))


def parse_overrides(overrides: Mapping[str, str] | None) -> dict[str, Any]:
    """Settings and their values as typed after ``--set``, read."""
    values = {}
    for key, text in (overrides or {}).items():
        if key not in section_of():
            name = key.rpartition(".")[2]  # no setting needs its section
            hint = did_you_mean(name, section_of()) or "; pru settings lists all"
            raise PRUError(f"--set {key}={text}: {key!r} is not a setting{hint}")
        value = parse_value(text)
        values[key] = text if is_text(key) and not isinstance(value, str) else value  # corpus=2024
    return values


def find_recipe(name: str, *, beside: Path) -> Path:
    """The file of a recipe: a path ending in .toml (relative to ``beside``), or a name in the package."""
    if name.endswith(".toml"):
        path = beside / name
        if not path.is_file():
            raise PRUError(f"there is no recipe file {path}")
        return path
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        hint = did_you_mean(name, list_recipes()) or "; pru recipes lists all"
        if (beside / name / "run.json").is_file():
            hint = (
                f"; {name} is a run: pru resume {shlex.quote(name)} continues it, and "
                f"pru train {shlex.quote(name + '/config.toml')} starts a new one with its settings"
            )
        elif (beside / name).exists():
            hint = "; a recipe file ends in .toml; for text of your own use --text"
        raise PRUError(f"there is no recipe {name!r}{hint}")
    return path


def read_settings(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """The settings of a file on top of those of its ``base``, without their sections but for finetuning's."""
    if path.resolve() in seen:
        raise PRUError(f"{path.resolve()}: base leads back to this file")
    content = read_toml(path)
    values: dict[str, Any] = {}
    if "base" in content:
        base = content.pop("base")
        if not isinstance(base, str):
            raise PRUError(f"{path}: base={shown(base)} must be the name of a recipe")
        try:
            base_path = find_recipe(base, beside=path.parent)
        except PRUError as error:
            raise PRUError(f"{path}: base: {error}") from error
        values = read_settings(base_path, (*seen, path.resolve()))
        values.pop("name", None)  # a recipe is called after its own file
    own = settings_in(content, path)
    finetuning = {**values.get(FINETUNING, {}), **own.get(FINETUNING, {})}
    return values | own | ({FINETUNING: finetuning} if finetuning else {})


def settings_in(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings in a file's content, without their sections but for finetuning's."""
    content, values = migrate_settings(content), {}
    if "name" in content:  # a run's config.toml says which recipe it was
        values["name"] = str(content.pop("name"))
    for section, settings in content.items():
        check_section(path, section, settings)
        if section == FINETUNING:
            values[FINETUNING] = settings
        else:
            values.update(settings)
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    return parse_toml(read_limited(path, TOML_LIMIT), path)


def parse_toml(content: bytes, path: Path) -> dict[str, Any]:
    """TOML; an error names the file at ``path``."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.count(b".") > MOST_DOTS:  # the memory for a dotted key grows with the square of its length
            raise PRUError(f"{path}, line {number}, has more than {MOST_DOTS} dots")
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors begin with a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise PRUError(f"{path} is not a TOML file: {error}") from error


def check_section(path: Path, section: str, settings: Any) -> None:
    """Refuse a section or key that is not known, with the file and the nearest name."""
    if section not in (*SECTIONS, FINETUNING) or not isinstance(settings, dict):
        hint = did_you_mean(section, [*SECTIONS, FINETUNING, "base", "name"])
        if section in section_of():
            hint = f"; it belongs under [{section_of()[section]}]"
        raise PRUError(f"{path}: {shown(section)} is not a section{hint}")
    homes = SECTIONS if section == FINETUNING else (section,)
    for key in settings:
        if section_of().get(key) not in homes:
            hint = did_you_mean(key, section_of())
            if key in section_of():
                hint = f"; it belongs under [{section_of()[key]}]"
            raise PRUError(f"{path}: [{section}] {shown(key)} is not a setting{hint}")


def parse_value(text: str) -> Any:
    """A value as typed: read as TOML where it is TOML (3, 0.5, true, [200, 200]), else as plain text.

    Example:
        >>> parse_value("[200, 200]"), parse_value("ptb"), parse_value("1e-3")
        ([200, 200], 'ptb', 0.001)
    """
    try:
        content = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or numbers of thousands of digits, or nested too deeply
        return text
    return content["value"] if len(content) == 1 else text


def config_text(config: Config) -> str:
    """A config as TOML that ``load_recipe`` reads back, every setting spelled out."""
    return f"name = {toml_text(config.name)}\n\n{settings_text(config)}"


def settings_text(config: Config, *, explained: bool = False) -> str:
    """The settings alone, as TOML; ``explained`` says above each what it means."""
    blocks = []
    for section, settings in settings_of(config).items():
        lines = [f"[{section}]"]
        for item in dataclasses.fields(SECTIONS[section]):
            lines += [f"# {item.metadata['help']}"] if explained else []
            lines.append(f"{item.name} = {toml_text(settings[item.name])}")
        blocks.append("\n".join(lines) + "\n")
    lines = [f"[{FINETUNING}]"]
    lines += [f"# {FINETUNING_HELP}{'' if config.finetuning else '; none'}"] if explained else []
    lines += [f"{key} = {toml_text(value)}" for key, value in config.finetuning.items()]
    blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def toml_text(value: Any) -> str:
    """A text, number, truth value or list of them as TOML.

    JSON's spelling is TOML's too, but for escapes: of pairs of surrogates, which TOML has not, and of U+007F,
    which JSON leaves as it is.

    Example:
        >>> print(toml_text(["a\U0001f600", 2, True]))
        ["a😀", 2, true]
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
