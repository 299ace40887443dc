"""Runs a launch on a CPU: the kernel's own text, compiled as C++, with a fiber for each thread of the GPU.

The folder ``execution`` has what the text needs from CUDA: ``machine.cpp`` is the scheduler, ``cuda.h`` has
built-in functions, ``ptx.h`` those of ``kernels/ptx.cu``, and ``instructions.cpp`` what they do. Kernels get
copies of tensors, with guards around them, filled with ones where the kernel is to write all of it. Shared
memory starts as ones in each block. A deadlock, an address that is not aligned and an access outside of
memory are reported as :class:`KernelError`. Time is not modeled, nor is the order in which other threads
see stores: a fence that is missing goes unnoticed.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from torch_pru.ops.cuda import compile as compiler
from torch_pru.ops.cuda.plan import Launch

HERE = Path(__file__).parent / "execution"
COMPILER = shutil.which("g++")


def missing_reason() -> str | None:
    """Why kernels cannot be executed here, or None."""
    if sys.platform != "linux" or COMPILER is None:
        return "kernels are executed on Linux with g++"
    version = subprocess.run([COMPILER, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    return None if int(version.split(".")[0]) >= 12 else f"g++ {version.strip()} is older than 12: no float16"


MISSING = missing_reason()
needs_compiler = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
LIBRARY_OPTIONS = ("-O2", "-march=native")
# Trap where an address is not aligned as on a GPU it must be, and where an index is outside of an array.
TRAPS = ("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error")
KERNEL_OPTIONS = ("-O1", "-w", "-fvisibility=hidden", *TRAPS)
LAUNCHED = r" __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];"
VARIABLE = r"__shared__ (\w+) (\w+)(\[[^;]+\]);"
GUARD = 4096  # bytes on both sides of a tensor
GUARD_BYTE = 0xA5
_numbers = itertools.count(1)  # of variants, and the seeds of runs


class KernelError(AssertionError):
    """A kernel did what it must not, such as waiting for something that never comes."""


@functools.cache
def folder() -> Path:
    """For what is compiled; it goes when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="torch-pru-kernels-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def build(target: str, *arguments: str | Path) -> Path:
    assert COMPILER
    result = folder() / target
    command = [
        COMPILER,
        "-std=c++17",
        "-fPIC",
        "-shared",
        "-U_FORTIFY_SOURCE",
        f"-I{HERE}",
        "-o",
        result,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise KernelError(f"{target} did not compile:\n{done.stderr}")
    return result


@functools.cache
def library() -> Path:
    return build("machine.so", *LIBRARY_OPTIONS, HERE / "machine.cpp", HERE / "instructions.cpp")


@functools.cache
def machine() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library()))
    words = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_uint32] * 4, ctypes.c_uint64, ctypes.c_uint32]
    loaded.run_kernel.argtypes = [*words, ctypes.c_uint64]
    loaded.run_kernel.restype = ctypes.c_char_p
    return loaded


def translate(kernel: str, text: str, constants: Sequence[tuple[str, int]]) -> str:
    """The kernel as C++: its text, in which only declarations of shared memory are written differently."""
    text = text[text.index('#line 1 "common.cu"') :]  # ptx.h is in the place of ptx.cu
    text = re.sub(r"(?m)^extern" + LAUNCHED, r"#define \2 ((\1*)machine::launched_bytes())", text)
    text = re.sub("extern" + LAUNCHED, r"\1* const \2 = (\1*)machine::launched_bytes();", text)
    text = re.sub(VARIABLE, r"auto& \2 = *(\1(*)\3)machine::variable(__COUNTER__, sizeof(\1\3));", text)
    assert "__shared__" not in text
    kind = f"#define BF16 {dict(constants).get('BF16', 0)}\n"
    others = "".join(f"#define {name} {value}\n" for name, value in constants if name != "BF16")
    entry = f'extern "C" __global__ void enter(const void* argument) {{ call({kernel}, argument); }}\n'
    return f'{kind}#include "ptx.h"\n{others}{text}\n{entry}'


@functools.cache
def compiled(kernel: str, constants: tuple[tuple[str, int], ...], text: str) -> ctypes.CDLL:
    name = f"{kernel}-{next(_numbers)}"
    source = folder() / f"{name}.cpp"
    source.write_text(translate(kernel, text, constants))
    return ctypes.CDLL(str(build(f"{name}.so", *KERNEL_OPTIONS, source, library())))


class Guarded:
    """A copy of a tensor's memory, from its first to its last element, with guards on both sides."""

    def __init__(self, tensor: Tensor, fill: bool) -> None:
        extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        self.size = extent * tensor.element_size() if tensor.numel() else 0
        self.original = (ctypes.c_ubyte * self.size).from_address(tensor.data_ptr() if self.size else 1)
        self.memory = torch.full((self.size + 2 * GUARD + 256,), GUARD_BYTE, dtype=torch.uint8)
        first = -(-(self.memory.data_ptr() + GUARD) // 256) * 256 + tensor.data_ptr() % 256
        self.start = first - self.memory.data_ptr()
        self.inside = self.memory[self.start : self.start + self.size]
        self.before = torch.frombuffer(self.original, dtype=torch.uint8) if self.size else self.inside
        if fill:
            self.inside.fill_(0xFF)
        else:
            self.inside.copy_(self.before)

    @property
    def address(self) -> int:
        return self.memory.data_ptr() + self.start

    def finish(self, name: str, constant: bool) -> None:
        around = (self.memory[: self.start], self.memory[self.start + self.size :])
        if any((side != GUARD_BYTE).any() for side in around):
            raise KernelError(f"wrote outside of {name}")
        if constant and not torch.equal(self.inside, self.before):
            raise KernelError(f"wrote to {name}")
        if not constant:
            self.before.copy_(self.inside)


def execute(
    launch: Launch,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[int],
    unwritten: Sequence[bool],
    constant: Sequence[bool],
    names: Sequence[str],
) -> None:
    """Run a launch.

    Args:
        unwritten: of each tensor, whether the kernel writes it before it reads it.
        constant: of each tensor, whether the kernel only reads it.
        names: of each tensor, for messages.
    """
    code = compiled(launch.kernel, launch.constants, compiler.source(launch.kernel))
    memory = [None if t is None else Guarded(t, fill) for t, fill in zip(tensors, unwritten, strict=True)]
    words = [0 if each is None else each.address for each in memory] + [*numbers]
    argument = struct.pack(f"<{len(words)}q", *words)
    shape = (*launch.blocks, launch.threads, launch.cluster, launch.shared_bytes, launch.cooperative)
    entry = ctypes.cast(code.enter, ctypes.c_void_p)
    said = machine().run_kernel(entry, argument, *shape, next(_numbers))
    if said is not None:
        raise KernelError(f"{launch.kernel}: {said.decode()}")
    for each, name, only_read in zip(memory, names, constant, strict=True):
        if each is not None:
            each.finish(f"{launch.kernel}: {name}", only_read)
