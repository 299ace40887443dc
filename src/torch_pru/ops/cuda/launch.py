"""Loading and launching compiled kernels through the CUDA driver, on PyTorch's context and stream."""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from torch_pru.ops.torch_private import assume_constant_result, current_stream

from . import compile as compiler
from .plan import OLDEST, Device, Launch


class LaunchError(RuntimeError):
    """The CUDA driver refused a kernel."""


def _checked(answer, what: str):
    if int(answer[0]) != 0:
        raise LaunchError(f"{what}: {answer[0]!r}")
    return answer[1] if len(answer) == 2 else answer[1:]


@assume_constant_result  # a compiler asks once, and looks no further
def unserved(index: int) -> str | None:
    """Why no kernel can be compiled for the GPU of this index, or None."""
    return _unserved(device_of(index).capability)


@functools.cache
def _unserved(capability: tuple[int, int]) -> str | None:
    name = f"compute capability {capability[0]}.{capability[1]}"
    if capability < OLDEST:
        return f"{name} is below {OLDEST[0]}.{OLDEST[1]}"
    try:
        known = compiler.architectures()
    except ModuleNotFoundError:
        return "cuda-bindings is not installed"
    except RuntimeError as error:
        return f"NVRTC cannot be used: {error}"
    if 10 * capability[0] + capability[1] not in known:
        return f"{compiler.nvrtc_version()} does not know {name}"
    return None


_runs = 1


def share(runs: int) -> None:
    """Say how many runs, each on its own stream, share a GPU: each then takes less of it, and more time."""
    global _runs
    _runs = runs


@assume_constant_result
def device_of(index: int) -> Device:
    """What the planner has to know of a GPU."""
    return _device(index, _runs)


@functools.cache
def _device(index: int, runs: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    return Device(
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
        runs=runs,
    )


_thread = threading.local()


def make_context_current(index: int) -> None:
    """Once a thread. PyTorch leaves it to the CUDA runtime, which does it when the thread first calls it.

    Autograd runs backward in threads whose first call may be ours.
    """
    if getattr(_thread, "ready", False):
        return
    from cuda.bindings import driver

    if int(_checked(driver.cuCtxGetCurrent(), "asking for the context")) == 0:
        context = _checked(driver.cuDevicePrimaryCtxRetain(index), "asking for the primary context")
        _checked(driver.cuCtxSetCurrent(context), "setting the context")
    _thread.ready = True


LARGEST_ARGUMENT = 4096  # bytes that a kernel's arguments may have


class Kernel:
    """One variant, loaded into one device's primary context, with its launch configuration."""

    def __init__(self, launch: Launch, index: int):
        from cuda.bindings import driver

        code = compiler.cubin(launch.kernel, launch.constants, device_of(index).architecture)
        self._module = _checked(driver.cuModuleLoadData(code), f"loading {launch.kernel}")
        found = driver.cuModuleGetFunction(self._module, launch.kernel.encode())
        self._function = _checked(found, f"finding {launch.kernel}")
        self._launch = driver.cuLaunchKernelEx
        self._what = f"launching {launch.kernel}"
        self.function = int(self._function)
        self._configure(driver, launch)
        self._prepare()

    def _configure(self, driver, launch: Launch) -> None:
        attribute = driver.CUfunction_attribute
        settings = [(attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes)]
        if launch.cluster > 8:
            settings.append((attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        for key, value in settings:
            answer = driver.cuFuncSetAttribute(self._function, key, value)
            _checked(answer, f"{launch.kernel}: setting {key.name}")
        extras = []
        if launch.cluster > 1:
            extras.append(driver.CUlaunchAttribute())
            extras[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape = extras[-1].value.clusterDim
            shape.x, shape.y, shape.z = launch.cluster, 1, 1
        if launch.cooperative:
            extras.append(driver.CUlaunchAttribute())
            extras[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            extras[-1].value.cooperative = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *launch.blocks, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
        config.sharedMemBytes = launch.shared_bytes
        if extras:
            config.attrs, config.numAttrs = extras, len(extras)
        self._config = config

    def _prepare(self) -> None:
        """What a launch reads: pointers to the arguments, here to the one struct. The driver copies that."""
        self._words = ctypes.create_string_buffer(LARGEST_ARGUMENT)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self._words))
        self._arguments = ctypes.addressof(self._pointers)
        self._lock = threading.Lock()

    def __call__(self, stream: int, words: Sequence[int]) -> None:
        """Launches with one struct argument made of 64-bit words: pointers and integers."""
        with self._lock:  # one configuration serves every stream, and backward runs in threads of its own
            struct.pack_into(f"<{len(words)}q", self._words, 0, *words)
            self._config.hStream = stream
            answer = self._launch(self._config, self._function, self._arguments, 0)
        _checked(answer, self._what)


@functools.cache
def kernel(launch: Launch, index: int) -> Kernel:
    return Kernel(launch, index)


def launch_on(
    launch: Launch, device: torch.device, tensors: Iterable[Tensor | None], numbers: Iterable[int]
) -> None:
    """Launch on PyTorch's current stream; the kernel's one argument is the pointers, then the numbers."""
    words = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    words += numbers
    if device.index == torch.cuda.current_device():
        _launch_here(launch, device.index, words)
    else:
        with torch.cuda.device(device):
            _launch_here(launch, device.index, words)


def _launch_here(launch: Launch, index: int, words: list[int]) -> None:
    """On the current device, which is the one of this index."""
    make_context_current(index)
    kernel(launch, index)(current_stream(index), words)


PASS = (512, 4)
PASSES = {
    "fold": (512, 3),
    "unfold": (512, 3),
    "spread": (512, 3),
    "collect": (512, 3),
    "gradient_squares": (256, 8),
    "sgd": (256, 4),
}
"""Threads of a block, and blocks per multiprocessor, of kernels that pass over memory once; else ``PASS``."""


def pass_over(kernel: str, constants: tuple[tuple[str, int], ...], device: torch.device) -> Launch:
    """A launch of as many blocks as fill the device; each walks over its share of the data."""
    threads, per_multiprocessor = PASSES.get(kernel, PASS)
    blocks = per_multiprocessor * device_of(device.index).multiprocessors
    return _pass_over(kernel, constants, blocks, threads)


@functools.cache
def _pass_over(kernel: str, constants: tuple[tuple[str, int], ...], blocks: int, threads: int) -> Launch:
    return Launch(kernel, (*constants, ("THREADS", threads)), (blocks, 1), threads)


def at_multiple(tensor: Tensor, size: int) -> Tensor:
    """The tensor at an address that ``size`` divides: itself, or a copy where a slice starts in between."""
    return tensor.clone() if tensor.data_ptr() % size else tensor


def bits(number: float) -> int:
    """A double as the 64-bit word that carries it to a kernel."""
    return struct.unpack("<q", struct.pack("<d", number))[0]
