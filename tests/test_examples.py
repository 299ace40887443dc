"""The examples learn what they say. They need packages that are not in any extra."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow


def run(name: str) -> Any:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_lightning() -> None:
    pytest.importorskip("lightning", reason="pip install lightning")
    assert run("lightning_tagger") > 0.9


def test_skorch() -> None:
    pytest.importorskip("skorch", reason="pip install skorch")
    assert run("skorch_forecast").best_score_ > 0.9


def test_fastai() -> None:
    pytest.importorskip("fastai", reason="pip install fastai")
    perplexities = run("fastai_awd_pru")
    assert perplexities[-1] < 2  # a guess among the 20 numbers has 20
