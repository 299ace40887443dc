"""The benchmarks follow the recipes: what they measure can be built, and what they print is whole."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torch_pru.lm.training.trainer import build_model

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
def test_every_row_of_the_training_benchmark_can_be_built(benchmark: ModuleType) -> None:
    rows = benchmark.CPU_ROWS + benchmark.CUDA_ROWS
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        words = benchmark.WORDS[row.config.data.corpus]
        assert build_model(row.config, words, torch.device("meta")).embedding.weight.shape[0] == words


@pytest.mark.parametrize("benchmark", ["training"], indirect=True)
def test_rows_that_are_compared_have_one_batch(benchmark: ModuleType) -> None:
    for text in ("ptb", "wikitext-2"):
        rows = [row for row in benchmark.CPU_ROWS + benchmark.CUDA_ROWS if row.config.data.corpus == text]
        assert len({row.config.training.batch for row in rows}) == 1


@pytest.mark.parametrize("benchmark", ["generation"], indirect=True)
def test_both_models_of_the_generation_benchmark_can_be_built(benchmark: ModuleType) -> None:
    sizes = {name: benchmark.build(name, torch.device("meta")).config.hidden for name in benchmark.MODELS}
    assert len(sizes) == 2
    assert len(set(sizes.values())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["layer", "training", "generation"])
def test_a_benchmark_shows_its_table(name: str) -> None:
    command = [sys.executable, BENCHMARKS / f"{name}.py", "--repeats", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) >= 3
    assert "nn.LSTM" in shown.stdout
