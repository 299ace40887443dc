"""The callbacks for Weights & Biases and MLflow on the scaling page, in their offline modes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
SMALL = '{"epochs": "1", "hidden": "[8]", "embedding": "8", "device": "cpu", "log_steps": "20"}'

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def code_for(module: str) -> str:
    """The example of the page, with a small model."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [block for block in blocks if f"import {module}\n" in block]
    assert 'load_recipe("quickstart")' in code
    return code.replace('load_recipe("quickstart")', f'load_recipe("quickstart", {SMALL})')


def run_in(folder: Path, code: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs wandb")
    run_in(tmp_path, code_for("wandb"), WANDB_MODE="offline", WANDB_SILENT="true")
    [log] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"valid_loss" in content
    assert b"tokens_per_second" in content
    assert (tmp_path / "runs" / "first" / "run.json").exists()


def test_mlflow_to_files(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run_in(tmp_path, code_for("mlflow"), MLFLOW_TRACKING_URI=address)
    client = mlflow.MlflowClient(address)
    [run] = client.search_runs(["0"])
    assert len(client.get_metric_history(run.info.run_id, "loss")) > 3
    assert len(client.get_metric_history(run.info.run_id, "valid_loss")) == 1
