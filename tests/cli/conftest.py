"""A tiny recipe, and its run."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import pru, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("cli"), epochs=2, log_steps=5)


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    out = recipe.parent / "runs"
    shown = pru("train", recipe, "--out", out, "--set", "trigger_window=1", "--seed", 7)
    path = out / "tiny-1"
    assert f"next: pru evaluate {path}" in shown
    assert "seed = 7" in (path / "config.toml").read_text()
    return path
