"""Private names of PyTorch: all in one file, and all there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torch_pru
from torch_pru.ops import torch_private

PACKAGE = Path(torch_pru.__file__).parent
FILE = Path(torch_private.__file__)
OPTIONAL = {"torch.ops.mkldnn._linear_pointwise"}  # not in builds without oneDNN
ONLY_WITH_CUDA = {"torch._C._cuda_getCurrentRawStream"}


def dotted(node: ast.AST) -> str | None:
    """``a.b.c`` for the expression a.b.c."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return None


def private_names(source: str) -> Iterator[str]:
    """Full names of private PyTorch attributes and modules in a source file, the longest of each."""
    tree = ast.parse(source)
    modules = {"torch": "torch"}  # name in the file: what it stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            modules |= {a.asname: a.name for a in node.names if a.asname and a.name.split(".")[0] == "torch"}
    names = set()
    for node in ast.walk(tree):
        name = dotted(node) if isinstance(node, (ast.Attribute, ast.Name)) else None
        if name is not None and name.split(".")[0] in modules:
            first, *others = name.split(".")
            names.add(".".join([modules[first], *others]))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            owner, attribute = dotted(node.args[0]), node.args[1]
            if owner is not None and owner.split(".")[0] == "torch" and isinstance(attribute, ast.Constant):
                names.add(f"{owner}.{attribute.value}")
    private = {name for name in names if any(is_private(part) for part in name.split("."))}
    return (name for name in private if not any(other.startswith(f"{name}.") for other in private))


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def is_there(name: str) -> bool:
    value: object = torch
    for part in name.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


def test_every_private_name_is_still_there():
    names = set(private_names(FILE.read_text()))
    assert len(names) > 10
    expected = names - OPTIONAL - (set() if torch.cuda.is_available() else ONLY_WITH_CUDA)
    gone = sorted(name for name in expected if not is_there(name))
    assert not gone, f"PyTorch {torch.__version__} no longer has {', '.join(gone)}"


@pytest.mark.parametrize("folder", ["ops"])
def test_private_names_are_nowhere_else(folder: str):
    files = [file for file in (PACKAGE / folder).rglob("*.py") if file != FILE]
    assert files
    found = {str(file): sorted(private_names(file.read_text())) for file in files}
    assert not {file: names for file, names in found.items() if names}


def test_the_reader_finds_them():
    source = (
        "import torch\nfrom torch.autograd import forward_ad\nfrom torch._C import DispatchKey\n"
        "torch._foreach_add_(a, b)\nforward_ad._current_level\nDispatchKey.CPU\nx._private\n"
        "getattr(torch.ops, '_x')\ntorch.ops.fine\n"
    )
    assert set(private_names(source)) == {
        "torch._foreach_add_",
        "torch.autograd.forward_ad._current_level",
        "torch._C.DispatchKey.CPU",
        "torch.ops._x",
    }


def test_constants_for_a_compiler_are_marked_as_by_pytorch() -> None:
    def function() -> int:
        return 1

    def own() -> int:
        return 1

    torch.compiler.assume_constant_result(function)
    assert torch_private.assume_constant_result(own) is own
    assert vars(own) == vars(function) != {}
