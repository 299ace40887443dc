"""The compiled kernels, loaded with ctypes: packaged in a wheel, cached, or compiled at first use."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from torch_pru.cache import cache_folder
from torch_pru.ops.native import build
from torch_pru.ops.torch_private import assume_constant_result

log = logging.getLogger(__name__)


class Library(NamedTuple):
    """The functions of the library.

    Attributes:
        forward, backward: take a packed ``Call`` (see ``source/call.h``); they release the GIL.
        decoder_forward, decoder_backward: the same for a packed ``DecoderCall``. The first returns the row of
            a target that is no word, or -1.
        choose_kernels: selects the kernels for an instruction set by name; returns whether that is possible.
        kernels: returns the name of the ones in use.
        register_host: makes the operators of ``ops/cuda/host.py`` known to PyTorch; takes the address of what
            they call, and returns 0 if that worked.
    """

    forward: Callable[[bytes], None]
    backward: Callable[[bytes], None]
    decoder_forward: Callable[[bytes], int]
    decoder_backward: Callable[[bytes], None]
    choose_kernels: Callable[[bytes], int]
    kernels: Callable[[], bytes]
    register_host: Callable[[int], int]


@assume_constant_result  # a compiler asks once, and does not trace the search
def missing_reason() -> str | None:
    """Why there is no library; None if it is loaded."""
    found = _load()
    return found if isinstance(found, str) else None


@functools.cache
def library() -> Library:
    """The library, which must not be missing."""
    found = _load()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


@functools.cache
def _load() -> Library | str:
    """The library, or why there is none; said once in the log."""
    if os.environ.get("TORCH_PRU_NATIVE") == "0":
        return "TORCH_PRU_NATIVE=0 turns the CPU kernels off"
    reason = build.platform_reason()
    if reason is None:
        path = _packaged() or _compiled()
        if isinstance(path, Path):
            try:
                return _open(path)
            except OSError as error:
                path = f"the compiled CPU kernels cannot be loaded: {error}"
        reason = path
    log.info("%s; layers run as PyTorch operations", reason)
    return reason


def _packaged() -> Path | None:
    """The library of a wheel, unless the source was changed since."""
    path = Path(__file__).with_name(f"kernels_{build.source_digest()}.so")
    return path if path.is_file() else None


def _compiled() -> Path | str:
    """The library in the cache, compiled now if it is not there; or why there is none."""
    compiler = build.find_compiler()
    if compiler is None:
        return "there is no C++ compiler for the CPU kernels"
    folder = cache_folder()
    if folder is None:
        return "there is no cache folder for the CPU kernels; set TORCH_PRU_CACHE to one"
    version = hashlib.sha256(f"{compiler} {build.compiler_version(compiler)}".encode()).hexdigest()[:8]
    path = folder / "kernels" / f"kernels-{build.source_digest()}-{version}.so"
    if not path.is_file():
        log.warning("compiling the CPU kernels with %s into %s (only the first time)", compiler, path.parent)
        try:
            build.build(compiler, path)
        except (build.BuildError, OSError) as error:
            return f"the CPU kernels could not be compiled: {error}"
    return path


def _open(path: Path) -> Library:
    loaded = ctypes.CDLL(str(path))
    layer = loaded.pru_forward, loaded.pru_backward
    decoder = loaded.pru_decoder_forward, loaded.pru_decoder_backward
    for function in (*layer, *decoder):
        function.argtypes, function.restype = [ctypes.c_char_p], None
    loaded.pru_decoder_forward.restype = ctypes.c_int64
    loaded.pru_choose_kernels.argtypes = [ctypes.c_char_p]
    loaded.pru_kernels.restype = ctypes.c_char_p
    with contextlib.suppress(OSError, AttributeError):  # without its threads, calls run on one
        _share_threads(loaded)
    loaded.pru_register_host.argtypes = [ctypes.c_void_p]
    others = loaded.pru_choose_kernels, loaded.pru_kernels, loaded.pru_register_host
    return Library(*layer, *decoder, *others)


def _share_threads(loaded: ctypes.CDLL) -> None:
    """Hand over the OpenMP runtime that PyTorch has loaded, so that both use the same threads.

    A symbol is looked up in PyTorch's library and then in those that it was linked with.
    """
    folder = Path(torch.__file__).with_name("lib")
    runtime = ctypes.CDLL(str(folder / "libtorch_cpu.so"), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    functions = (runtime.GOMP_parallel, runtime.omp_get_thread_num, runtime.omp_get_num_threads)
    loaded.pru_set_runtime(*(ctypes.cast(function, ctypes.c_void_p) for function in functions))
