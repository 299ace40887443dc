"""The CPU kernels under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, without PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from torch_pru.ops.native import build

FLAGS = ("-std=c++17", "-O1", "-g", "-ffp-contract=fast", f"-I{build.SOURCE}")


def compile_harness(folder: Path, sanitizers: str) -> Path:
    compiler = build.find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    sources = [
        Path(__file__).with_name("harness.cpp"),
        build.SOURCE / "library.cpp",
        build.SOURCE / "threads.cpp",
    ]
    jobs: dict[str, tuple[Path, tuple[str, ...]]] = {source.stem: (source, ()) for source in sources}
    for kernels, flags in build.KERNELS.items():
        jobs[kernels] = (build.SOURCE / "kernels.cpp", (*flags, f"-DKERNELS={kernels}"))
    common = (compiler, *FLAGS, f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    running = [
        subprocess.Popen([*common, *flags, "-c", str(source), "-o", str(folder / f"{name}.o")])
        for name, (source, flags) in jobs.items()
    ]
    assert not any(process.wait() for process in running)
    objects = [str(folder / f"{name}.o") for name in jobs]
    program = folder / "harness"
    subprocess.run([*common, *objects, "-o", str(program), "-pthread"], check=True)
    return program


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_kernels_under_sanitizers(sanitizers: str, tmp_path: Path):
    program = compile_harness(tmp_path, sanitizers)
    prefix = ["setarch", "-R"] if shutil.which("setarch") else []  # ThreadSanitizer needs fixed addresses
    run = subprocess.run(
        [*prefix, str(program)],
        capture_output=True,
        text=True,
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1"},
    )
    assert run.returncode == 0, run.stdout + run.stderr[-4000:]
    assert "0 failures" in run.stdout
