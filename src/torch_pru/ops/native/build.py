"""Compiles the CPU kernels: C++ without headers of PyTorch or Python, so that one binary serves all versions.

Only the standard library is used here: ``setup.py`` runs this file where PyTorch is not installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("source")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
AVX512 = (
    "-mavx2",
    "-mfma",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mprefer-vector-width=512",
)
KERNELS = {  # one set of kernels for each instruction set; the best one is chosen when the library is loaded
    "baseline": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": AVX512,
    "avx512bf16": (*AVX512, "-mavx512bf16"),  # only layers in bfloat16
}


class BuildError(RuntimeError):
    """The compiler failed; the message holds its output."""


def platform_reason() -> str | None:
    """Why there are no kernels for this platform; None where there are."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"there are no CPU kernels for {platform.machine()} on {sys.platform}, only for x86_64 on linux"
        )
    return None


def find_compiler() -> str | None:
    """The path of a C++ compiler: ``$CXX``, g++ or clang++."""
    candidates = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


def source_digest() -> str:
    """A digest of everything that determines the binary, but for the compiler."""
    digest = hashlib.sha256(repr((FLAGS, KERNELS)).encode())
    for path in sorted(SOURCE.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compiler_version(compiler: str) -> str:
    """The first line of what the compiler says about itself."""
    run = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return run.stdout.partition("\n")[0]


def build(compiler: str, to: Path) -> None:
    """Compile the library and move it to ``to``, which other processes see complete or not at all."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".build-") as name:
        folder = Path(name)
        jobs = {"library": (), "threads": (), "host": ()} | {
            f"kernels_{kernels}": (*flags, f"-DKERNELS={kernels}") for kernels, flags in KERNELS.items()
        }
        commands = [
            [
                compiler,
                *FLAGS,
                *flags,
                "-c",
                str(SOURCE / f"{job.partition('_')[0]}.cpp"),
                "-o",
                str(folder / f"{job}.o"),
            ]
            for job, flags in jobs.items()
        ]
        _run_all(commands)
        objects = [str(folder / f"{job}.o") for job in jobs]
        library = folder / to.name
        _run_all([[compiler, "-shared", "-s", "-Wl,--as-needed", *objects, "-o", str(library), "-pthread"]])
        os.replace(library, to)


def _run_all(commands: list[list[str]]) -> None:
    """Run commands at the same time; raise if one of them fails."""
    running = [
        (command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for command in commands
    ]
    failures = []
    for command, process in running:
        output, _ = process.communicate()
        if process.returncode != 0:
            failures.append(f"{' '.join(command)}\n{output}")
    if failures:
        raise BuildError("\n".join(failures))
