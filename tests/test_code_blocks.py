"""Every code block in the documents runs, and every example of the API reference.

Python runs as it stands; the blocks of one document share their names, and a folder with small runs. Shell
blocks run in bash, loops and all, with programs that only record their arguments: those of ``pru`` must be
valid, and recipes, extras, scripts and modules must exist. The commands themselves would train for hours;
``tests/cli/test_first_steps.py`` carries out the short ones on a small text. TOML is read as what it is.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

import torch_pru
from torch_pru.lm import load_recipe
from torch_pru.lm.grid import TABLES as GRID_TABLES
from torch_pru.lm.grid import read_grid
from torch_pru.lm.run import RunFolder

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "results/PLAN.md", "results/README.md"]
DOCUMENTS += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
ON_THE_SITE = [name for name in DOCUMENTS if name.startswith(("CONTRIBUTING", "docs"))]
LANGUAGES = {"", "bash", "bibtex", "python", "toml"}
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


@pytest.mark.parametrize("document", ON_THE_SITE)
def test_blocks_fit_the_site(document: str) -> None:
    """80 characters are visible beside the navigation on a screen of 1280 pixels."""
    lines = [line for _, block in blocks_of(document) for line in block.splitlines()]
    assert [line for line in lines if len(line) > 80] == []


# ------------------------------------------------------------------------------------------------ Python


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small runs under the names that the documents use, and their exports in DIR."""
    from torch_pru.lm import train
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
        torch.save(authors_weights(), "authors.pt")
    return folder


def authors_weights() -> dict[str, torch.Tensor]:
    """Weights under the authors' names, of a unit with 400 inputs, 1400 units, two levels and four groups."""
    shapes = {
        "pt.pyramid.0.weight": (4 * 1050, 400),
        "pt.pyramid.0.bias": (4 * 1050,),
        "pt.pyramid.1.weight": (4 * 350, 200),
        "pt.pyramid.1.bias": (4 * 350,),
        "glt.W": (4, 350, 4 * 350),
        "glt.bias": (4, 4 * 350),
    }
    return {name: torch.randn(shape) / 20 for name, shape in shapes.items()}


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


@pytest.mark.parametrize("document", [name for name in documents_with("python") if name not in ELSEWHERE])
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
    elif program == "npm" and arguments[0] in ("run", "test"):
        scripts = json.loads((ROOT / "page" / "package.json").read_text(encoding="utf-8"))["scripts"]
        assert arguments[-1] in scripts, arguments
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


# -------------------------------------------------------------------------------------------------- TOML


@pytest.mark.parametrize("document", documents_with("toml"))
def test_toml_blocks_are_recipes_or_grids(document: str, tmp_path: Path) -> None:
    """A block with a table of grids makes runs; any other is a recipe, whose settings are taken."""
    for number, (language, block) in enumerate(blocks_of(document)):
        if language != "toml":
            continue
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        given = tomllib.loads(block)
        if GRID_TABLES & set(given):
            assert len(read_grid(str(path)).cells()) > 1
        else:
            config = load_recipe(path)
            for key, value in given["training"].items():
                assert getattr(config.training, key) == value


# ------------------------------------------------------------------------------------- the API reference

DOWNLOADS = {"torch_pru.lm.data.fetch", "torch_pru.lm.data.adopt"}
"""They take the published corpora only; ``tests/lm/data/test_data_sources.py`` calls them."""


def reference() -> list[str]:
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), flags=re.M)]


def docstrings(name: str) -> Iterator[str]:
    """The docstring of a public object, and those of its methods."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    if inspect.isroutine(found) or inspect.isclass(found):
        yield inspect.getdoc(found) or ""
    if inspect.isclass(found):
        for member in vars(found).values():
            function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if inspect.isfunction(function) and not function.__name__.startswith("_"):
                yield inspect.getdoc(function) or ""


@pytest.mark.parametrize("name", [name for name in reference() if name not in DOWNLOADS])
def test_examples_of_the_reference_run(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with ``+SKIP`` too, which need a run; what they show differs from run to run."""
    for prefix, needed in {"torch_pru.hf": "transformers", "torch_pru.onnx": "onnxruntime"}.items():
        if name.startswith(prefix):
            pytest.importorskip(needed, reason=f"{prefix} needs {needed}")
    if name == "torch_pru.analysis.majority_tags":
        pytest.importorskip("nltk").data.find("taggers/averaged_perceptron_tagger_eng")
    monkeypatch.chdir(desk)
    monkeypatch.setenv("PRU_DATA", str(desk / "data"))
    if name == "torch_pru.onnx.OnnxLanguageModel":
        importlib.import_module("torch_pru.onnx").export_run(RunFolder.open("runs/quickstart-1"), "exported")
    if name == "torch_pru.lm.train":
        config = RunFolder.open("runs/quickstart-1").config
        monkeypatch.setattr("torch_pru.lm.recipe.load_recipe", lambda name: config)
    for docstring in docstrings(name):
        examples = doctest.DocTestParser().get_examples(docstring)
        sources = [example.source for example in examples]
        assert [one for one in sources if len(one.partition("  # doctest")[0].rstrip()) > 80] == []
        if not any(doctest.SKIP in example.options for example in examples):
            sources = []  # test_docstrings.py runs them, and compares what they show
        plain = re.search(r"^Example::\n\n((?: {4}.*\n?|\n)+)", docstring, flags=re.M)
        if plain is not None:
            sources.append(textwrap.dedent(plain[1]))
        names = vars(importlib.import_module(name.rpartition(".")[0])) | names_of_examples()
        for source in sources:
            shutil.rmtree("runs/first", ignore_errors=True)
            exec(compile(source, name, "exec"), names)


def names_of_examples() -> dict[str, Any]:
    """What the examples say is there: a run and what is in it."""
    from torch_pru.lm import RunFolder, scoring

    run = RunFolder.open("runs/quickstart-1")
    scorer = scoring.Scorer.open(run.path)
    names = {"run": run, "model": run.model(), "corpus": run.corpus(), "scorer": scorer}
    modules = {"itertools": itertools, "torch": torch, "RunFolder": RunFolder}
    return names | modules | {"lines": TEXT.splitlines()}
