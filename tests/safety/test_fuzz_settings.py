"""Settings and recipes of any kind end in our error or in a configuration, at once."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from torch_pru import PRUError
from torch_pru.lm.config import Config, section_of
from torch_pru.lm.model import skeleton
from torch_pru.lm.recipe import config_text, load_recipe, read_config

ODD = [
    *("0", "-1", "1", "2", "3", "7", "64", "1000000000", "9" * 30, "9" * 5000, "0x" + "f" * 200, "1e39"),
    *(
        "1e-320",
        "nan",
        "inf",
        "-inf",
        "0.5",
        "1.0",
        "true",
        "false",
        "",
        " ",
        '""',
        '"x"',
        "[]",
        "[1]",
        "[8, 8]",
    ),
    *(
        "[400, 400]",
        "[[1]]",
        "{}",
        "{a = 1}",
        "[" * 500,
        "2024-01-01",
        "\udc80",
        "\x1b[31m",
        "\0",
        "é",
        "pru",
    ),
    *(
        "lstm",
        "auto",
        "linear",
        "grouped",
        "pyramidal",
        "max",
        "cpu",
        "cuda:99",
        "float16",
        "../..",
        "a\nb = 1",
    ),
]
SECTIONS = ["data", "model", "regularization", "training", "finetuning", "base", "nonsense"]


def build(numbers: random.Random) -> Config:
    """A recipe with a few odd settings."""
    keys = numbers.sample(list(section_of()), numbers.randint(1, 3))
    if numbers.random() < 0.1:
        keys.append("nonsense")
    return load_recipe("quickstart", {key: numbers.choice(ODD) for key in keys})


def attempt(make: Any, numbers: random.Random) -> bool:
    """Whether something was built; anything but our error, or 2 seconds of work, fails."""
    start = time.process_time()
    try:
        config = make(numbers)
        text = config_text(config)
        assert read_config(text.encode(), Path("config.toml")) == config
        if sum(config.model.hidden) < 10**6 and len(config.model.hidden) < 10:
            skeleton(config.model, config.regularization, 10)
    except PRUError:
        return False
    finally:
        assert time.process_time() - start < 2
    return True


def recipe(numbers: random.Random, folder: Path) -> Config:
    """A TOML file of settings in the right and in wrong sections."""
    lines = []
    for section in numbers.sample(SECTIONS, numbers.randint(1, 3)):
        lines.append(
            numbers.choice([f"[{section}]", f"{section} = 1", f'base = "{section}"', f"[[{section}]]"])
        )
        keys = numbers.sample(list(section_of()), numbers.randint(0, 3))
        lines += [f"{key} = {numbers.choice(ODD)}" for key in keys]
    path = folder / "fuzzed.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return load_recipe(path)


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_fuzzed_settings(count: int) -> None:
    numbers = random.Random(count)
    built = sum(attempt(build, numbers) for _ in range(count))
    assert 0 < built < count


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_fuzzed_recipes(count: int, tmp_path: Path) -> None:
    numbers = random.Random(count)
    built = sum(attempt(lambda numbers: recipe(numbers, tmp_path), numbers) for _ in range(count))
    assert 0 < built < count
