"""Mistakes end in one clear line and a status; help and lists work without a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torch_pru.cli import app
from torch_pru.cli.app import status_of
from torch_pru.errors import PRUError

COMMANDS = [
    "train",
    "resume",
    "finetune",
    "evaluate",
    "generate",
    "recipes",
    "params",
    "data",
    "report",
    "analyze",
]


def pru(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command line in this process: status, standard output, standard error."""
    result = CliRunner().invoke(app, list(arguments), env=environment, prog_name="pru")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", ["50", "120"])
def test_help(command: str, width: str) -> None:
    status, shown, _ = pru(command, "--help", COLUMNS=width, TERMINAL_WIDTH=width)
    assert status == 0
    assert f"pru {command}" in shown


def test_every_command_is_listed() -> None:
    _, shown, _ = pru("--help")
    assert all(f" {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "ptb-pru-g5"], "there is no recipe 'ptb-pru-g5'; did you mean 'ptb-pru-g4'?"),
        (["train", "--set", "epoch=3"], "'epoch' is not a setting; did you mean 'epochs'?"),
        (["train", "--set", "epochs"], "write it as key=value"),
        (["train", "quickstart", "ptb-nothing"], "there is no recipe 'ptb-nothing'"),
        (["train", "--device", "tpu9"], "device="),
        (["resume", "nowhere"], "there is no run in nowhere"),
        (["finetune", "nowhere"], "there is no run in nowhere"),
        (["evaluate", "nowhere"], "there is no run in nowhere"),
        (["evaluate", "nowhere", "--split", "tset"], "did you mean 'test'?"),
        (["evaluate", "nowhere", "--split", "test", "--text", "a.txt"], "exclude each other"),
        (["evaluate", "nowhere", "--tune"], "--dynamic or --cache"),
        (["evaluate", "nowhere", "--dynamic", "--tune-tokens", "10"], "give --tune too"),
        (["evaluate", "nowhere", "--dynamic", "--batch", "10"], "leave out --batch"),
        (["generate", "nowhere"], "there is no run in nowhere"),
        (["recipes", "pbt"], "no recipe begins with 'pbt'"),
        (["params", "nothing"], "there is no recipe 'nothing'"),
        (["data", "ptbb"], "did you mean 'ptb'?"),
        (["data", "ptb", "--from", "nowhere"], "nowhere has no train text"),
        (["report", "nowhere"], "there is no run in nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, shown, errors = pru(*arguments, PRU_DATA=str(tmp_path))
    assert status == 2
    assert shown == ""
    line = errors.splitlines()[-1]
    assert line.startswith("pru: error: ")
    assert expected in line
    assert "Traceback" not in errors


def test_a_wrong_option_has_status_2() -> None:
    assert pru("train", "--nothing")[0] == 2
    assert pru("evaluate")[0] == 2


def test_debug_shows_where_it_came_from() -> None:
    with pytest.raises(PRUError, match="nowhere"):
        pru("--debug", "resume", "nowhere")


def test_other_errors() -> None:
    class OutOfMemoryError(RuntimeError):
        """As torch's is named."""

    assert status_of(OSError(28, "No space left on device")) == 1
    assert status_of(OutOfMemoryError("CUDA out of memory")) == 1
    assert status_of(RuntimeError("a fault of ours")) is None  # keeps its traceback


def test_recipes_names_are_never_cut() -> None:
    for width in ("40", "80", "200"):
        _, shown, _ = pru("recipes", "ptb-ablation", COLUMNS=width)
        assert "ptb-ablation-lt-pt-no-residual " in shown


def test_params_of_the_paper() -> None:
    _, shown, _ = pru("params", "ptb-awd-pru-g4")
    counts = {line.rsplit(None, 1)[0].strip(): line.rsplit(None, 1)[1] for line in shown.splitlines()}
    assert counts["embedding"] == "4,000,000"
    assert counts["recurrent"] == "14,885,600"
    assert counts["total"] == "18,895,600"  # the 18.90 M of the paper's tables
    assert counts["the paper's total: embedding + recurrent"] == "18,885,600"
    _, shown, _ = pru("params", "ptb-lstm-1000", "--set", "hidden=[1400, 1400, 400]")
    assert "32,6" in shown


def test_only_the_first_process_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert pru("recipes")[1] == ""
    status, _, errors = pru("resume", "nowhere")
    assert status == 2
    assert errors.startswith("pru (rank 1): error: ")  # but an error of any process is heard


def test_python_m_torch_pru_is_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_pru", "resume", "nowhere"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    assert done.stderr == "pru: error: there is no run in nowhere: run.json is missing\n"
