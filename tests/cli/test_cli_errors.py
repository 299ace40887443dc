"""Mistakes end in one clear line and a status; help and lists work without a run."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import typer
from command import invoke as pru
from typer.testing import CliRunner

import torch_pru
from torch_pru.__main__ import main
from torch_pru.cli import app
from torch_pru.cli.app import Commands, status_of
from torch_pru.errors import PRUError
from torch_pru.lm.config import settings_of
from torch_pru.lm.recipe import load_recipe

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]


RESULT = str(Path(__file__).parents[2] / "results" / "ptb-pru-g4-1")


def help_of(*command: str, width: int) -> str:
    """What ``--help`` shows on a terminal of this width."""
    result = CliRunner().invoke(app, [*command, "--help"], prog_name="pru", terminal_width=width)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", [50, 120])
def test_help_fits_and_nothing_is_cut(command: str, width: int) -> None:
    shown = help_of(command, width=width)
    assert f"pru {command}" in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_no_types_of_python(command: str) -> None:
    shown = help_of(command, width=120)
    assert not re.search(r"<(list|str|int|float|path)|\bx[<>]=|\[default: \(|[{}]", shown)


@pytest.mark.parametrize("width", [50, 80])
def test_every_command_is_listed_with_a_whole_sentence(width: int) -> None:
    shown = help_of(width=width)
    lines = [line.split(None, 1) for line in shown.partition("Commands:\n")[2].splitlines()[: len(COMMANDS)]]
    assert [name for name, _ in lines] == COMMANDS
    assert all(text.endswith(".") and not text.endswith("...") for _, text in lines)


def test_every_command_is_documented() -> None:
    document = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [command for command in COMMANDS if f"`pru {command}" not in document] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "ptb-pru-g5"], "there is no recipe 'ptb-pru-g5'; did you mean 'ptb-pru-g4'?"),
        (["train", "--set", "epoch=3"], "'epoch' is not a setting; did you mean 'epochs'?"),
        (["train", "--set", "epochs"], "write it as key=value"),
        (["train", "quickstart", "ptb-nothing"], "there is no recipe 'ptb-nothing'"),
        (["train", "quickstart", "ptb-pru-g4", "--set", "groups=3"], "groups=3 does not divide"),
        (["train", "--device", "tpu9"], "--device tpu9 is not known; use "),
        (["train", "--device", "meta"], "--device meta is not known; use "),
        (["train", "ptb-pru-g4", "ptb-pru-g2"], "error: ptb-pru-g4: "),
        (["train", "."], "for text of your own use --text"),
        (["train", "--set", "corpus=a.txt"], "or a folder with train.txt, valid.txt and test.txt"),
        (["resume", "nowhere"], "there is no run in nowhere"),
        (["finetune", "nowhere"], "there is no run in nowhere"),
        (["evaluate", "nowhere"], "there is no run in nowhere"),
        (["evaluate", "nowhere", "--split", "tset"], "did you mean 'test'?"),
        (["evaluate", "nowhere", "--split", "test", "--text", "a.txt"], "cannot be used together"),
        (["evaluate", "nowhere", "--tune"], "--dynamic or --cache"),
        (["evaluate", "nowhere", "--dynamic", "--tune-tokens", "10"], "give --tune too"),
        (["evaluate", "nowhere", "--dynamic", "--batch", "10"], "leave out --batch"),
        (["generate", "nowhere"], "there is no run in nowhere"),
        (["recipes", "pbt"], "no recipe starts with 'pbt'"),
        (["params", "nothing"], "there is no recipe 'nothing'"),
        (["data", "ptbb"], "did you mean 'ptb'?"),
        (["data", "ptb", "--from", "nowhere"], "nowhere has no training text"),
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


def test_recipes_that_differ_look_different() -> None:
    _, shown, _ = pru("recipes", COLUMNS="200")
    models = {
        line.split(None, 1)[0]: line.split(None, 1)[1].rsplit("  ", 1)[0] for line in shown.splitlines()
    }
    for family in ("ptb-pooling-", "ptb-ablation-"):
        described = [text.split("  ")[0] for name, text in models.items() if name.startswith(family)]
        assert len(set(described)) == len(described) >= 4
    assert models["ptb-awd-lstm-964"].startswith("LSTM (fused) 964-964-400")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["train", "--unit", "gru"],
            "pru: error: --unit gru is not known; use 'pru', 'lstm' or 'fused-lstm'",
        ),
        (["train", "--set", "unit=gru"], "error: --set unit=gru is not known; use 'pru', "),
        (["train", "--levels", "9"], "error: --levels 9 needs an embedding size divisible by 256; got "),
        (["train", "--set", "levels=9"], "error: --set levels=9 needs an embedding size divisible by 256"),
        (["train", "--groups", "3"], "error: --groups 3 does not divide the 128 units of layer 1; use 1, 2"),
        (["train", "--set", "hidden=5"], "error: --set hidden=5 must be a list in brackets, such as [64]"),
        (["train", "--set", "hidden=[0]"], "error: hidden[0]=0 must be a positive integer"),
        (["train", "--seed", "-1"], "error: --seed -1 must be 0 or greater"),
        (["train", "--batch", "x"], "pru: error: --batch x must be an integer\n"),
        (["train", "--batch", "0"], "pru: error: --batch 0 must be at least 1\n"),
        (["train", "--minutes", "soon"], "pru: error: --minutes soon must be a number\n"),
        (
            ["sweep", "--unit", "gru"],
            "pru: error: --unit gru is not known; use 'pru', 'lstm' or 'fused-lstm'",
        ),
        (["sweep", "--groups", "1,3"], "error: g3: --groups 3 does not divide the 128 units of layer 1"),
        (["sweep", "--set", "groups=1,3"], "error: g3: --set groups=3 does not divide the 128 units of"),
        (["sweep", "--set", "learning_rate=abc"], "error: --set learning_rate=abc must be a number"),
        (["sweep", "--set", "learning_rate=1,abc"], "error: --set learning_rate=abc must be a number"),
    ],
)
def test_errors_name_options_as_they_were_typed(arguments: list[str], expected: str) -> None:
    status, _, errors = pru(*arguments)
    assert status == 2
    assert expected in errors
    assert "did you mean" not in errors


def test_version() -> None:
    assert pru("--version") == (0, f"torch-pru {torch_pru.__version__}\n", "")


def test_a_wrong_option_has_status_2() -> None:
    assert pru("train", "--nothing")[0] == 2
    assert pru("evaluate")[0] == 2


def test_debug_shows_where_it_came_from() -> None:
    with pytest.raises(PRUError, match="nowhere"):
        pru("--debug", "resume", "nowhere")


def test_other_errors() -> None:
    assert status_of(OSError(28, "No space left on device")) == 1
    assert status_of(torch.OutOfMemoryError("CUDA out of memory")) == 1
    assert status_of(MemoryError()) == 1
    assert status_of(RuntimeError("a fault of ours")) is None  # keeps its traceback


@pytest.mark.parametrize("size", [2**45, 2**62])  # bytes that no machine has, and that no number counts
def test_a_cpu_without_the_memory_is_one_line(size: int) -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(size, dtype=torch.float64, device="cpu")
    assert status_of(error.value) == 1


@pytest.mark.parametrize("width", [80, 60])
def test_no_figure_of_a_recipe_is_cut(width: int) -> None:
    _, shown, _ = pru("recipes", COLUMNS=str(width))
    lines = {line.split(None, 1)[0]: line for line in shown.splitlines()}
    shown, notes = shown.split("\nleft out" if width == 60 else "\npaper valid,")
    assert notes.startswith(" for lack of room: epochs\n") == (width == 60)
    assert "…" not in shown
    wide = pru("recipes", COLUMNS="200")[1]
    assert shown.split().count("g=4") == wide.split().count("g=4")  # the model is folded, not cut
    assert shown.splitlines()[0].split()[-2:] == ["paper", "paper"]
    assert shown.splitlines()[1].split()[-2:] == ["valid", "test"]
    assert lines["ptb-pru-g4"].split()[-2:] == ["64.76", "62.42"]
    assert lines["wt2-ablation-lt-lt"].split()[-1] == "89.30"
    assert ("200-500" in lines["ptb-pru-g4"]) == (width == 80)
    assert max(map(len, shown.splitlines())) <= width


def test_recipes_names_are_never_cut() -> None:
    for width in ("40", "80", "200"):
        _, shown, _ = pru("recipes", "ptb-ablation", COLUMNS=width)
        assert "ptb-ablation-lt-pt-no-residual " in shown


def test_a_narrow_terminal_says_which_columns_it_goes_without() -> None:
    _, shown, _ = pru("recipes", "ptb", COLUMNS="45")
    assert "left out for lack of room: model, epochs\n" in shown
    assert "K: levels" not in shown  # it explains the model
    assert "left out" not in pru("recipes", "ptb", COLUMNS="80")[1]


def test_params_of_the_paper() -> None:
    _, shown, _ = pru("params", "ptb-awd-pru-g4")
    counts = {line.rsplit(None, 1)[0].strip(): line.rsplit(None, 1)[1] for line in shown.splitlines()}
    assert counts["embedding"] == "4,000,000"
    assert counts["recurrent"] == "14,885,600"
    assert counts["total"] == "18,895,600"  # the paper's 19 M
    _, shown, _ = pru("params", "ptb-lstm-1000", "--set", "hidden=[1400, 1400, 400]")
    assert "32,6" in shown


def test_settings_are_a_recipe(tmp_path: Path) -> None:
    _, shown, _ = pru("settings", "ptb-awd-pru-g4", "--set", "epochs=7", COLUMNS="40")
    assert "# g, groups of the PRU's context transform\ngroups = 4\n" in shown
    (tmp_path / "mine.toml").write_text(shown)
    again = load_recipe(tmp_path / "mine.toml")
    assert again.name == "mine"
    assert settings_of(again) == settings_of(load_recipe("ptb-awd-pru-g4", {"epochs": "7"}))


def test_settings_say_whether_finetuning_changes_any() -> None:
    help_text = "# settings of [regularization] and [training] that pru finetune changes"
    assert pru("settings")[1].endswith(f"[finetuning]\n{help_text}; none\n")
    assert f"[finetuning]\n{help_text}\nepochs = " in pru("settings", "ptb-awd-pru-g4")[1]
    assert "see pru settings" not in help_of("settings", width=120)


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
    assert done.stderr == "pru: error: there is no run in nowhere: the folder does not exist\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [["recipes"], ["report", RESULT, "--paper"]], ids=["recipes", "report"])
def test_a_terminal_of_few_letters(
    command: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["pru", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    streams["stdout"].seek(0)
    assert len(streams["stdout"].buffer.read().splitlines()) > 50


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    run = "import runpy; runpy.run_module('torch_pru', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{missing!r}] = None; {run}"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1
    assert re.fullmatch(
        rf"pru: error: pru needs {missing}[.\w]*; pip install 'torch-pru\[lm\]'\n", done.stderr
    )


def test_warnings_are_one_line_each_and_those_of_no_use_are_left_out() -> None:
    warning = typer.Typer(cls=Commands)

    @warning.command()
    def warn() -> None:
        warnings.warn("the checkpoint is damaged", stacklevel=1)
        warnings.warn("Attempting to run cuBLAS, but there was no current CUDA context! ...", stacklevel=1)

    warning.callback()(lambda: None)
    result = CliRunner().invoke(warning, ["warn"])
    assert result.exit_code == 0
    assert result.stderr == "pru: warning: the checkpoint is damaged\n"
