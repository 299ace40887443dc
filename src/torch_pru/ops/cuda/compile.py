"""Kernel source to machine code: NVRTC at first use, a cache on disk afterwards.

NVRTC comes with PyTorch's CUDA wheels and needs neither a compiler nor, for compiling alone, a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path

from torch_pru.cache import cache_folder

SOURCES = {
    "forward_cluster": ("ptx.cu", "common.cu", "recurrence.cu", "cluster.cu", "forward_cluster.cu"),
    "backward_cluster": ("ptx.cu", "common.cu", "recurrence.cu", "cluster.cu", "backward_cluster.cu"),
    "forward_grid": ("ptx.cu", "common.cu", "recurrence.cu", "grid.cu", "forward_grid.cu"),
    "backward_grid": ("ptx.cu", "common.cu", "recurrence.cu", "grid.cu", "backward_grid.cu"),
    "forward_token": ("ptx.cu", "common.cu", "recurrence.cu", "step.cu", "forward_token.cu"),
    "layer_step": ("ptx.cu", "common.cu", "recurrence.cu", "step.cu", "layer_step.cu"),
    "gradient_scale": ("ptx.cu", "common.cu", "gradient_scale.cu"),
    "cross_entropy": ("ptx.cu", "common.cu", "cross_entropy.cu"),
    "decoder_operand": ("ptx.cu", "common.cu", "decoder_operand.cu"),
    "decoder_rows": ("ptx.cu", "common.cu", "decoder_rows.cu"),
    "add_rows": ("ptx.cu", "common.cu", "add_rows.cu"),
    "gradient_squares": ("ptx.cu", "common.cu", "sgd.cu"),
    "drop": ("ptx.cu", "common.cu", "packs.cu", "drop.cu"),
    "penalties": ("ptx.cu", "common.cu", "packs.cu", "penalties.cu"),
    "penalties_backward": ("ptx.cu", "common.cu", "packs.cu", "penalties_backward.cu"),
    "backward_tail": ("ptx.cu", "common.cu", "packs.cu", "backward_tail.cu"),
    "sgd": ("ptx.cu", "common.cu", "sgd.cu"),
    "fold": ("ptx.cu", "common.cu", "packs.cu", "fold.cu"),
    "unfold": ("ptx.cu", "common.cu", "packs.cu", "fold.cu"),
    "spread": ("ptx.cu", "common.cu", "residual.cu"),
    "collect": ("ptx.cu", "common.cu", "residual.cu"),
    "dynamic": ("ptx.cu", "common.cu", "dynamic.cu"),
    "token_layer": ("ptx.cu", "common.cu", "token.cu", "token_layer.cu"),
    "token_scores": ("ptx.cu", "common.cu", "token.cu", "token_scores.cu"),
}
OPTIONS = ("-std=c++17",)
DIGEST_BYTES = 32


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message carries its log."""


@functools.cache
def source(kernel: str) -> str:
    """The kernel's whole text; the parts are joined here because the compiler sees no include path."""
    here = resources.files(__package__) / "kernels"
    return "\n".join(f'#line 1 "{name}"\n{(here / name).read_text()}' for name in SOURCES[kernel])


def cubin(kernel: str, constants: tuple[tuple[str, int], ...], architecture: str) -> bytes:
    """Machine code of a kernel variant for an architecture such as "sm_90a", from the cache if possible."""
    definitions = (f"-D{name}={value}" for name, value in constants)
    options = (f"--gpu-architecture={architecture}", *OPTIONS, *definitions)
    key = "\n".join((source(kernel), *options, nvrtc_version()))
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    folder = cache_folder()
    if folder is None:
        return _compile(kernel, options)
    entry = folder / "kernels" / f"{kernel}-{architecture}-{digest}.cubin"
    code = _read(entry)
    if code is None:
        code = _compile(kernel, options)
        _write(entry, code)
    return code


def _read(entry: Path) -> bytes | None:
    """An entry's code, or None when it is absent or its checksum is off."""
    try:
        content = entry.read_bytes()
    except OSError:
        return None
    digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return code if code and hashlib.sha256(code).digest() == digest else None


def _write(entry: Path, code: bytes) -> None:
    """Writes aside and renames, so that other processes see an entry whole or not at all."""
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a compilation per process
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=entry.parent, prefix=entry.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(aside, entry)
        except OSError:
            os.unlink(aside)


@functools.cache
def nvrtc_version() -> str:
    from cuda.bindings import nvrtc

    _, major, minor = _checked(nvrtc.nvrtcVersion())
    return f"nvrtc {major}.{minor}"


@functools.cache
def architectures() -> frozenset[int]:
    """What NVRTC compiles for: numbers such as 90, for compute capability 9.0."""
    from cuda.bindings import nvrtc

    _, known = _checked(nvrtc.nvrtcGetSupportedArchs())
    return frozenset(known)


def _checked(answer):
    if int(answer[0]) != 0:
        raise CompileError(f"NVRTC failed: {answer[0]!r}")
    return answer


def _compile(kernel: str, options: tuple[str, ...]) -> bytes:
    from cuda.bindings import nvrtc

    text, name = source(kernel).encode(), f"{kernel}.cu".encode()
    _, program = _checked(nvrtc.nvrtcCreateProgram(text, name, 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if int(status) != 0:
            _, size = _checked(nvrtc.nvrtcGetProgramLogSize(program))
            log = b" " * size
            _checked(nvrtc.nvrtcGetProgramLog(program, log))
            said = log.decode(errors="replace").strip("\0 \n")
            raise CompileError(f"{kernel} did not compile with {' '.join(options)}:\n{said}")
        _, size = _checked(nvrtc.nvrtcGetCUBINSize(program))
        code = b" " * size
        _checked(nvrtc.nvrtcGetCUBIN(program, code))
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)
