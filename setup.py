"""Adds the compiled CPU kernels to a wheel for x86-64 Linux, where a C++ compiler is found.

An editable install needs none of this: the kernels are then compiled when they are first used.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path(__file__).parent / "src" / "torch_pru" / "ops" / "native"
PLATFORM = "manylinux_2_17_x86_64"  # the newest symbol that the library needs is memcpy@GLIBC_2.14


def native_build() -> ModuleType:
    """``torch_pru.ops.native.build`` without its package, which imports PyTorch."""
    spec = importlib.util.spec_from_file_location("native_build", NATIVE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithKernels(build_py):
    """Compiles the kernels into the wheel."""

    def run(self) -> None:
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
