"""Adds the compiled CPU kernels to a wheel for x86-64 Linux, where a C++ compiler is found.

An editable install needs none of this: the kernels are then compiled when they are first used.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path(__file__).parent / "src" / "torch_pru" / "ops" / "native"
PAGE_SOURCE = Path(__file__).parent / "page"
PAGE_SITE = Path(__file__).parent / "src" / "torch_pru" / "page" / "site"
PLATFORM = "manylinux_2_17_x86_64"  # the newest symbol that the library needs is memcpy@GLIBC_2.14


def native_build() -> ModuleType:
    """``torch_pru.ops.native.build`` without its package, which imports PyTorch."""
    spec = importlib.util.spec_from_file_location("native_build", NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_page() -> None:
    """Build the files of ``pru page``, which a wheel contains, unless they are there or npm is missing."""
    npm = shutil.which("npm")
    if (PAGE_SITE / "index.html").is_file() or npm is None:
        return
    for command in (["ci", "--omit=dev"], ["run", "build"]):
        subprocess.run([npm, *command], cwd=PAGE_SOURCE, check=True)


class BuildWithKernels(build_py):
    """Puts the page and the compiled kernels into the wheel."""

    def run(self) -> None:
        if not self.editable_mode:
            build_page()
        super().run()
        build = native_build()
        compiler = build.find_compiler()
        if not self.editable_mode and compiler is not None and build.platform_reason() is None:
            folder = Path(self.build_lib, "torch_pru", "ops", "native")
            build.build(compiler, folder / f"kernels-{build.source_digest()}.so")


class WheelWithKernels(bdist_wheel):
    """A wheel with kernels is for one platform, and for any version of Python and PyTorch."""

    def get_tag(self) -> tuple[str, str, str]:
        has_kernels = any(Path(self.bdist_dir).rglob("kernels-*.so"))
        return ("py3", "none", PLATFORM if has_kernels else "any")


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels})
