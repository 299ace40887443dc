"""The documentation site lists every page and every public name."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "torch_pru",
    "torch_pru.analysis",
    "torch_pru.hf",
    "torch_pru.lm",
    "torch_pru.lm.data",
    "torch_pru.lm.evaluation",
    "torch_pru.lm.training",
    "torch_pru.onnx",
)
"""Packages whose ``__all__`` is public; those of ``ops`` and ``cli`` are internal."""


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= {"CHANGELOG.md", "CONTRIBUTING.md", "RESULTS.md"}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    needed = {"torch_pru.hf": "transformers", "torch_pru.onnx": "onnxscript"}.get(package)
    if needed is not None:
        pytest.importorskip(needed, reason=f"{package} needs {needed}")
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, flags=re.M)}
    objects = [resolve(name) for name in shown if name.startswith((f"{package}.", "torch_pru.lm."))]
    module = importlib.import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        assert any(found is one for one in objects), name  # shown once, also if two packages export it


def test_every_name_in_the_reference_exists() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), flags=re.M):
            assert resolve(name) is not None, name
            # The site shows modules under their names, also those that a function of the same name hides.
            assert name not in sys.modules, f"{name} is a module; name what is in it"


def resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_the_table_of_speeds_is_that_of_the_records() -> None:
    speeds = tool("speed_table")
    for name in speeds.TABLES:
        page = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert page == speeds.with_table(name, page), "run python tools/speed_table.py"
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.search(r"\| 2 CPU threads \| 1400 \| 0\.\d\d \| 0\.\d\d \| 0\.\d\d \|", page)


@pytest.mark.parametrize(("name", "needed"), [("site", "mkdocs"), ("docstrings", "griffe")])
def test_what_the_site_is_made_with(name: str, needed: str) -> None:
    pytest.importorskip(needed, reason=f"the site needs {needed}")
    found = doctest.testmod(tool(name))
    assert found.attempted >= 2
    assert found.failed == 0


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_pages_have_no_html_that_the_site_would_not_follow(page: Path) -> None:
    """MkDocs does not adjust the paths in raw HTML, and reports no dead link there."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    assert re.findall(r"<(?:img|a|script|link|iframe)\b[^>]*>", text) == []
