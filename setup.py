"""The parts of the package that need code: compiled CPU kernels, and the README for PyPI.

A wheel built on x86-64 Linux with a C++ compiler contains the kernels; any other wheel, and one built with
TORCH_PRU_NATIVE=0, is pure Python. An editable install contains none: the kernels are then compiled when they
are first used.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
NATIVE = ROOT / "src" / "torch_pru" / "ops" / "native"
PAGE_SOURCE = ROOT / "page"
PAGE_SITE = ROOT / "src" / "torch_pru" / "page" / "site"
PLATFORM = "manylinux_2_17_x86_64"  # the newest symbol that the library needs is memcpy@GLIBC_2.14


def native_build() -> ModuleType:
    """``torch_pru.ops.native.build`` without its package, which imports PyTorch."""
    spec = importlib.util.spec_from_file_location("native_build", NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = native_build()
PURE = os.environ.get("TORCH_PRU_NATIVE") == "0" or BUILD.platform_reason() is not None
COMPILER = None if PURE else BUILD.find_compiler()


class DistributionWithKernels(Distribution):
    """Installs among the files of the platform if it contains kernels."""

    def has_ext_modules(self) -> bool:
        return COMPILER is not None


def page_is_built() -> bool:
    """Whether the files of ``pru page`` are there and those of the sources, which are copied unchanged."""
    sources = [path for path in (PAGE_SOURCE / "src").rglob("*") if path.is_file()]
    built = [PAGE_SITE / path.relative_to(PAGE_SOURCE / "src") for path in sources]
    return all(
        copy.is_file() and copy.read_bytes() == path.read_bytes()
        for path, copy in zip(sources, built, strict=True)
    )


def build_page() -> None:
    """Build the files of ``pru page``, unless they are there or npm is missing."""
    npm = shutil.which("npm")
    if page_is_built() or npm is None:
        return
    for command in (["ci", "--omit=dev"], ["run", "build"]):
        subprocess.run([npm, *command], cwd=PAGE_SOURCE, check=True)


class SourceWithPage(sdist):
    """Puts the built page into the source distribution, so that installing it does not need npm."""

    def run(self) -> None:
        build_page()
        super().run()


class BuildWithKernels(build_py):
    """Puts the page and the compiled kernels into the wheel; an editable install works without the page."""

    def run(self) -> None:
        try:
            build_page()
        except subprocess.CalledProcessError as error:
            if not self.editable_mode:
                raise
            print(f"pru page is not available: {error}")
        super().run()
        if not self.editable_mode and COMPILER is not None:
            folder = Path(self.build_lib, "torch_pru", "ops", "native")
            BUILD.build(COMPILER, folder / f"kernels_{BUILD.source_digest()}.so")


class WheelWithKernels(bdist_wheel):
    """A wheel with kernels is for one platform, and for any version of Python and PyTorch."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", "any" if COMPILER is None else PLATFORM)


def readme() -> str:
    """README.md with absolute links: PyPI shows it without the files that it links to."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{source}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\1{source}/blob/main/", text)


setup(
    distclass=DistributionWithKernels,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels, "sdist": SourceWithPage},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
