"""What a wheel contains and says about itself."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import torch_pru

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "torch_pru"
NOT_SHIPPED = {"__pycache__"}
BUILT = {"ops/native/*.so", "page/site/**/*"}
"""What only a wheel contains, or a checkout in which it was built."""


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_toolkit_names_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["torch_pru", "lm"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"torch_pru\.lm needs safetensors; pip install 'torch-pru\[lm\]'"):
        importlib.import_module("torch_pru.lm")


def test_every_file_of_the_package_is_shipped(pyproject: dict[str, Any]) -> None:
    patterns = pyproject["tool"]["setuptools"]["package-data"]["torch_pru"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    for pattern in set(patterns) - BUILT:
        assert any(PACKAGE.glob(pattern)), f"{pattern} matches nothing"
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and not NOT_SHIPPED & set(path.parts)}
    assert len(files) > 200
    left_out = {path for path in files if path.suffix != ".py"} - shipped
    assert not left_out, "add them to [tool.setuptools.package-data]"
    for path in files:
        if path.suffix == ".py":
            assert (path.parent / "__init__.py").is_file(), f"{path.parent} is not a package"


@pytest.fixture
def setup_script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py defines, and what it gives to ``setup`` as ``arguments``."""
    arguments: dict[str, Any] = {}
    stubs = {
        "setuptools": {"Distribution": object, "setup": lambda **given: arguments.update(given)},
        "setuptools.command.bdist_wheel": {"bdist_wheel": object},
        "setuptools.command.build_py": {"build_py": object},
        "setuptools.command.sdist": {"sdist": object},
    }
    for name, content in stubs.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(ROOT / "setup.py")) | {"arguments": arguments}


def test_a_page_of_other_sources_is_built_again(
    setup_script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, commands = tmp_path / "site", []
    build = setup_script["build_page"]
    monkeypatch.setitem(build.__globals__, "PAGE_SITE", site)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", lambda command, **_: commands.append(command))
    build()
    assert commands == [["npm", "ci", "--omit=dev"], ["npm", "run", "build"]]
    shutil.copytree(ROOT / "page" / "src", site)
    build()
    assert len(commands) == 2  # what is there is what the sources say
    (site / "main.js").write_text("")
    build()
    assert len(commands) == 4


def test_a_wheel_is_compared_with_the_sources(tmp_path: Path) -> None:
    check = runpy.run_path(str(ROOT / "tools" / "check_wheel.py"))
    wheel, runtime = tmp_path / "torch_pru-0.1.0-py3-none-any.whl", "torch_pru/page/site/runtime/x.wasm"
    whole = check["files"](check["PACKAGE"], "torch_pru/") | check["files"](check["PAGE"], check["SITE"])

    def missing(content: dict[str, bytes]) -> list[str]:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
        found: list[str] = check["missing"](wheel)
        return found

    assert missing({**whole, runtime: b""}) == []
    page = "torch_pru/page/site/main.js"
    assert missing({**whole, runtime: b"", page: b"other"}) == [f"the present {page}"]
    assert page in missing({name: data for name, data in whole.items() if name != page})


def test_the_readme_on_pypi_has_absolute_links_only(setup_script: dict[str, Any]) -> None:
    text = re.sub(r"```.*?```", "", setup_script["arguments"]["long_description"], flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    assert re.search(r"!\[[^\]]*\]\(https://[^)]*/raw/main/docs/figures/unit\.svg\)", text)


def test_the_citation_is_of_this_version_and_repository(pyproject: dict[str, Any]) -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {torch_pru.__version__}\n" in citation
    for url in ("Source", "Documentation"):
        assert f'"{pyproject["project"]["urls"][url]}"' in citation
    assert pyproject["project"]["urls"]["Paper"] in citation


def test_only_one_address_of_the_repository_is_used(pyproject: dict[str, Any]) -> None:
    source = pyproject["project"]["urls"]["Source"]
    owner = source.rpartition("/")[0]
    for name in ("mkdocs.yml", "CITATION.cff", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for found in re.findall(r"https://github\.com/[\w.-]+/torch-pru", text):
            assert found == source, name
        for found in re.findall(r"https://([\w-]+)\.github\.io/torch-pru", text):
            assert owner.endswith(f"/{found}"), name


def test_the_badges_are_of_workflows_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"/actions/workflows/([\w.-]+\.yml)", text))
    assert named == {"tests.yml", "docs.yml"}
    for name in named:
        assert (ROOT / ".github" / "workflows" / name).is_file()


def test_the_package_is_imported_without_the_compiler() -> None:
    """``torch._dynamo`` takes a second; a layer on a CPU does not need it either."""
    code = (
        "import sys, torch; before = set(sys.modules); import torch_pru;"
        "torch_pru.PRU(64, 64)(torch.zeros(3, 2, 64));"
        "print(sorted({'torch._dynamo', 'torch._inductor'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
