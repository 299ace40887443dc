"""Every code block in the documents runs.

Python runs as it stands; the blocks of one document share their names, and a folder with small runs. Shell
blocks run in bash, loops and all, with programs that only record their arguments: those of ``pru`` must be
valid, and recipes, extras, scripts and modules must exist. The commands themselves would train for hours;
``tests/cli/test_first_steps.py`` carries out the short ones on a small text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

import torch_pru
from torch_pru.lm.run import RunFolder

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "results/PLAN.md", "results/README.md"]
DOCUMENTS += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
LANGUAGES = {"", "bash", "bibtex", "console", "python", "toml"}
ELSEWHERE = {
    "CONTRIBUTING.md": "test_a_backend_of_ones_own",
    "docs/layer.md": "tests/test_documents.py",
    "docs/python.md": "tests/lm/test_walkthrough.py",
}
"""Documents whose Python runs in a test of its own."""
NEEDS = {
    "docs/huggingface.md": "transformers",
    "docs/onnx.md": "onnxruntime",
    "docs/analysis.md": "matplotlib",
}
SLOW = {"docs/analysis.md", "docs/huggingface.md", "docs/onnx.md"}
TEXT = "".join(
    f"In the beginning God created mat {n % 9}, and the old house saw the dog.\nAnd God saw it.\n"
    for n in range(150)
)


def blocks_of(document: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.S | re.M)


def documents_with(language: str) -> list[str]:
    return [name for name in DOCUMENTS if any(found == language for found, _ in blocks_of(name))]


def test_every_block_has_a_language_that_is_tested() -> None:
    for document in DOCUMENTS:
        for language, block in blocks_of(document):
            assert language in LANGUAGES, f"{document}: {language}"
            if language == "":
                assert not re.search(r"^(import|from) |^(pru|python|pip) ", block, flags=re.M), document


# ------------------------------------------------------------------------------------------------ Python


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small runs under the names that the documents use, and their exports in DIR."""
    from torch_pru.lm import load_recipe, train
    from torch_pru.lm.data import prepare_text

    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRU_DATA", str(folder / "data"))
        patch.chdir(folder)
        (folder / "book.txt").write_text(TEXT, encoding="utf-8")
        text = prepare_text(["book.txt"])
        small = {"corpus": text.name, "embedding": "16", "hidden": "[16]", "epochs": "1", "batch": "4"}
        for unit, names in (("pru", ("quickstart-1", "ptb-pru-g4-1")), ("lstm", ("ptb-lstm-1000-1",))):
            run = train(load_recipe("quickstart", small | {"unit": unit}), f"runs/{names[0]}")
            for name in names[1:]:
                shutil.copytree(run.path, f"runs/{name}")
    return folder


def given(document: str) -> dict[str, Any]:
    """What a reader of the document has already."""
    if document == "README.md":
        return {"x": torch.randn(5, 2, 400)}
    if document == "docs/scoring.md":
        return {"words": ["in", "the", "beginning"]}
    if document == "docs/onnx.md":
        state = torch.zeros(1, 2, 24)
        names = {"x": torch.randn(5, 2, 16), "h_0": state, "c_0": state}
        return names | {"pru": torch_pru.PRU(16, 24), "lstm": nn.LSTM(16, 24)}
    return {}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in documents_with("python")
        if name not in ELSEWHERE
    ],
)
def test_python_blocks_run(document: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if document in NEEDS:
        pytest.importorskip(NEEDS[document], reason=f"{document} needs {NEEDS[document]}")
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PRU_DATA", str(desk / "data"))
    shutil.rmtree("DIR", ignore_errors=True)
    if document == "docs/huggingface.md":
        from torch_pru.hf.export import export_run

        export_run(RunFolder.open("runs/quickstart-1"), Path("DIR"))
    if document == "docs/onnx.md":
        from torch_pru.onnx import export_run as export_onnx

        export_onnx(RunFolder.open("runs/quickstart-1"), "DIR")
    if document == "docs/scaling.md":
        for name in ("mlflow", "wandb"):
            monkeypatch.setitem(sys.modules, name, MagicMock())
        config = RunFolder.open("runs/quickstart-1").config
        monkeypatch.setattr("torch_pru.lm.recipe.load_recipe", lambda name: config)
    names = given(document)
    for language, block in blocks_of(document):
        if language == "python":
            shutil.rmtree("runs/first", ignore_errors=True)
            source = block.replace("77_000", "700")  # tokens of a test text; the small one has fewer
            exec(compile(source, document, "exec"), names)
    if document == "docs/scaling.md":
        assert names["wandb"].log.call_count >= 1
        assert names["mlflow"].log_metrics.call_count >= 1


def test_a_backend_of_ones_own() -> None:
    """The module and the line of CONTRIBUTING.md, in a process of its own: a registration stays."""
    module, line = (block for language, block in blocks_of("CONTRIBUTING.md") if language == "python")
    code = (
        "import sys, types, torch, torch_pru; from torch_pru.ops import backends\n"
        f"mine = types.ModuleType('torch_pru.ops.mine'); exec({module!r}, vars(mine))\n"
        f"sys.modules['torch_pru.ops.mine'] = mine; exec({line!r}, vars(backends))\n"
        "rnn = torch_pru.PRU(16, 64, levels=1, groups=2)\n"
        "print(rnn.backend_for(torch.zeros(3, 2, 16)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout


# ------------------------------------------------------------------------------------------------- shell

PROGRAMS = ("pru", "pip", "pytest", "python", "ruff", "mypy", "mkdocs", "npm", "ray", "tar", "torchrun")


REMOTE = {"scontrol": "echo node1", "srun": 'exec "$@"', "ssh": 'shift; exec sh -c "$*"'}
"""Programs that run others on other machines; here they do so on this one."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that write their name and arguments to the file $CALLS, and do nothing else."""
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS:
        path = folder / name
        path.write_text(
            f"#!{sys.executable} -S\nimport json, os, sys\n"
            f"with open(os.environ['CALLS'], 'a') as file:\n"
            f"    file.write(json.dumps([{name!r}, *sys.argv[1:]]) + '\\n')\n"
        )
        path.chmod(0o755)
    for name, content in REMOTE.items():
        (folder / name).write_text(f"#!/bin/sh\n{content}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.skipif(os.name != "posix", reason="needs bash")
@pytest.mark.parametrize("document", documents_with("bash"))
def test_shell_blocks_run(document: str, tmp_path: Path, programs: Path) -> None:
    pytest.importorskip("typer", reason="pru needs typer")
    calls = tmp_path / "calls"
    (tmp_path / "project").mkdir()
    for name in ("book.txt", "text.txt"):
        (tmp_path / name).write_text(TEXT, encoding="utf-8")
    environment = os.environ | {"PATH": f"{programs}:/usr/bin:/bin", "CALLS": str(calls)}
    environment |= {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}
    for language, block in blocks_of(document):
        if language != "bash":
            continue
        calls.write_text("")
        script = block.replace("cd ", f"cd {ROOT}/") if block.startswith("cd ") else block
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{document}: {block}\n{done.stderr}"
        found = [json.loads(line) for line in calls.read_text().splitlines()]
        assert found, f"{document}: {block} calls none of {PROGRAMS}"
        for program, *arguments in found:
            check_call(program, arguments)


def check_call(program: str, arguments: list[str]) -> None:
    if program == "pru":
        parse_pru(arguments)
    elif "torch_pru" in arguments[:-1]:  # torchrun … -m torch_pru train …
        parse_pru(arguments[arguments.index("torch_pru") + 1 :])
    elif program == "python" and arguments[0] == "-m":
        assert arguments[1].split(".")[0] in ("torch_pru", "nltk", "http", "venv", "build"), arguments
    elif program == "python":
        assert (ROOT / arguments[0]).is_file(), arguments
    elif program == "pip":
        for extras in re.findall(r"(?:torch-pru|\.)\[([\w,]+)\]", " ".join(arguments)):
            assert set(extras.split(",")) <= known_extras(), arguments


def parse_pru(arguments: list[str]) -> None:
    """The command line of ``pru`` accepts these arguments; nothing is carried out."""
    import typer.main

    from torch_pru.cli import app
    from torch_pru.lm.recipe import find_recipe

    command = typer.main.get_command(app)
    name, *rest = arguments
    assert name in command.commands, f"there is no command pru {name}"
    command.commands[name].make_context(name, list(rest))
    if name in ("train", "sweep", "params", "settings"):
        for before, word in zip(arguments, rest, strict=False):
            if re.fullmatch(r"(ptb|wt2)-[\w-]+", word) and before != "--name":
                assert find_recipe(word, beside=Path())


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])
