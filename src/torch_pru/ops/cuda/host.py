"""A layer's call in 16 bits as one operator each way, in C++: the host does little but launch kernels.

``layer.py`` does the same in Python, for calls and machines that this is not made for. The C++ code
(``ops/native/source/host.cpp``) reads a *plan*: the kernels of calls of one kind, with everything that is the
same in all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_pru.ops import native
from torch_pru.ops.folding import ALIGNMENT, aligned, pooling_levels
from torch_pru.ops.spec import LayerCall, LayerSpec, Outputs
from torch_pru.ops.torch_private import current_stream

from . import launch as launching
from .folding import GATES, fold_launch, residual_launch
from .passes import tail_launch
from .plan import RESIDUAL, Device, Launch, choose_once, step_launch
from .recurrent import as_operand, saved_dtype

# What C++ calls, in the order of ``Functions`` in host.h: functions of PyTorch for any device, its products
# for one type of device, and functions of CUDA's driver.
TENSORS = (
    "aoti_torch_empty_strided",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_sizes",
    "aoti_torch_get_dtype",
    "aoti_torch_is_contiguous",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_copy_",
    "torch_new_list_reserve_size",
    "torch_list_get_item",
    "torch_list_size",
    "torch_list_push_back",
    "torch_delete_list",
    "aoti_torch_library_init_fragment",
    "aoti_torch_library_def",
    "aoti_torch_library_init_impl",
    "torch_library_impl",
)
PRODUCTS = ("aoti_torch_{}_mm_out", "aoti_torch_{}_addmm_out", "aoti_torch_{}_bmm_out")
DRIVER = ("cuLaunchKernelEx", "cuMemsetD16Async")
MOST_LEVELS = 12
DTYPES = {
    torch.int16: 2,
    torch.float16: 5,
    torch.float32: 6,
    torch.bfloat16: 15,
}  # PyTorch's numbers

# Flags of the operators, as in host.cpp.
HAS_BIAS, HAS_OTHER_BIAS, HAS_H0, HAS_C0, HAS_LENGTHS, SAVE, REVERSE = (1 << bit for bit in range(7))
HAS_GRAD_OUT, HAS_GRAD_HN, HAS_GRAD_CN, OF_X, OF_CONTEXT, OF_LEVELS = (1 << bit for bit in range(7, 13))
OF_BIAS, OF_OTHER_BIAS = 1 << 13, 1 << 14


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_int64),
        ("blocks", ctypes.c_int64 * 2),
        ("threads", ctypes.c_int64),
        ("cluster", ctypes.c_int64),
        ("shared_bytes", ctypes.c_int64),
        ("cooperative", ctypes.c_int64),
    )


_PerLevel = ctypes.c_int64 * MOST_LEVELS


class _Fold(ctypes.Structure):
    _fields_ = (
        *((name, _PerLevel) for name in ("first", "share", "units", "widths")),
        ("levels", ctypes.c_int64),
        ("columns", ctypes.c_int64),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        ("functions", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("device_kind", "device_index", "dtype", "kept", "cell")),
        *((name, ctypes.c_int64) for name in ("bias", "level", "features", "width", "groups", "padded")),
        *((name, ctypes.c_int64) for name in ("bias_rows", "residual", "real_bias", "real_cells")),
        ("bands", _Fold),
        *((name, _Kernel) for name in ("input", "residual_pass", "recurrence", "tail")),
    )


class Kind(NamedTuple):
    """What decides how a call is computed, besides its direction and what is given."""

    spec: LayerSpec
    dtype: torch.dtype
    level: torch.dtype
    bias: torch.dtype
    cell: torch.dtype  # of c0 and cn
    batch: int
    single_step: bool


class Plan(NamedTuple):
    """A plan in memory that C++ reads, and what must live as long."""

    address: int
    memory: _Plan
    functions: Any


@functools.cache
def functions_for(kind: str) -> Any | None:
    """The addresses that C++ calls for tensors on a type of device; None where there are none.

    The operators are registered when they are looked up first.
    """
    if kind != "cuda" or native.missing_reason() is not None:
        return None
    with contextlib.suppress(OSError, AttributeError):  # no such library, or not all of the functions
        return look_up(kind, [_address(ctypes.CDLL("libcuda.so.1"), name) for name in DRIVER])
    return None


def look_up(kind: str, driver: Sequence[int]) -> Any | None:
    """The functions for a type of device, with the two of the driver; None if they cannot be registered."""
    libraries = _loaded("torch_cpu"), _loaded(f"torch_{kind}")
    found = [_address(libraries[0], name) for name in TENSORS]
    found += [_address(libraries[1], name.format(kind)) for name in PRODUCTS]
    table = (ctypes.c_void_p * (len(found) + len(driver)))(*found, *driver)
    return table if _register(ctypes.addressof(table)) else None


def _loaded(name: str) -> ctypes.CDLL:
    """A library of PyTorch, which is loaded already."""
    path = Path(torch.__file__).with_name("lib") / f"lib{name}.so"
    return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


_registered = False


def _register(table: int) -> bool:
    global _registered
    if not _registered:
        _registered = native.library.library().register_host(table) == 0
    return _registered


def forward(
    spec: LayerSpec,
    dtype: torch.dtype,
    x: Tensor,
    context: Tensor,
    levels: Sequence[Tensor],
    biases: tuple[Tensor | None, Tensor | None],
    states: tuple[Tensor | None, Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    save: bool,
) -> tuple[Kind | None, list[Tensor]]:
    """The kind of the call, and out, hn and cn, with ``save`` also the folded matrix, activations and cells.

    Nothing if C++ cannot compute it: the tensors would have to be converted or copied first.
    """
    if not x.dtype == dtype == context.dtype:
        return None, []
    kind = _kind(spec, dtype, x, levels[0], biases[0], states[1])
    found = _prepared(kind, x.device, "forward")
    if found is None:
        return None, []
    plan, stream = found
    given, flags = [x, context, *levels], SAVE * save | REVERSE * reverse
    flags |= _append(given, (*biases, *states, lengths), HAS_BIAS)
    results = torch.ops.torch_pru_host.forward.default(plan.address, given, flags, stream)
    return kind if results else None, results


def step(call: LayerCall, dtype: torch.dtype) -> Outputs | None:
    """A single step without gradients as in ``step.py``; None if C++ cannot compute it."""
    x, weights, h0, c0, _, spec, _ = call
    context, biases = weights.context[0], (*weights.biases, None, None)[:2]
    if not x.dtype == dtype == context.dtype == weights.input[0].dtype:
        return None
    found = _prepared(_kind(spec, dtype, x, context, biases[0], c0), x.device, "step")
    if found is None:
        return None
    plan, stream = found
    given = [x, context, *weights.input]
    flags = _append(given, (*biases, h0, c0), HAS_BIAS)
    results = torch.ops.torch_pru_host.step.default(plan.address, given, flags, stream)
    return (results[0], results[1], results[2]) if results else None


def _kind(
    spec: LayerSpec, dtype: torch.dtype, x: Tensor, level: Tensor, bias: Tensor | None, c0: Tensor | None
) -> Kind:
    of_bias, of_cell = (dtype if tensor is None else tensor.dtype for tensor in (bias, c0))
    return Kind(spec, dtype, level.dtype, of_bias, of_cell, x.shape[1], x.shape[0] == 1)


def backward(
    kind: Kind,
    saved: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    states: tuple[Tensor | None, Tensor | None],
    lengths: Tensor | None,
    reverse: bool,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients of x, h0, c0, context, both biases and the levels; nothing if that failed.

    Args:
        saved: out, context, x, the folded matrix, activations and cells.
        grads: of out, hn and cn.
        states: h0 and c0.
        needed: which gradients are.
    """
    of_out, of_hn, of_cn = grads
    grads = as_operand(of_out, kind.dtype), as_operand(of_hn, kind.dtype), as_operand(of_cn, torch.float32)
    h0, c0 = states
    prepared = _prepared(kind, saved[0].device, "backward")
    if prepared is None:
        return []
    plan, stream = prepared
    given, flags = [*saved], REVERSE * reverse
    flags |= _append(given, grads, HAS_GRAD_OUT)
    flags |= _append(given, (h0, as_operand(c0, torch.float32), lengths), HAS_H0)
    of_x, of_h0, of_c0, of_context, of_bias, of_other_bias, *of_levels = needed
    flags |= OF_X * of_x | OF_CONTEXT * of_context | OF_BIAS * of_bias | OF_OTHER_BIAS * of_other_bias
    flags |= OF_LEVELS * any(of_levels)
    found = torch.ops.torch_pru_host.backward.default(plan.address, given, flags, stream)
    if not found:
        return []
    made = (of_x, True, True, of_context, of_bias, of_other_bias, *(any(of_levels) for _ in of_levels))
    results = iter(found)
    dx, dh0, dc0, *others = (next(results) if one else None for one in made)
    return [dx, dh0 if of_h0 else None, dc0 if of_c0 else None, *others]


def _append(given: list[Tensor], optional: Sequence[Tensor | None], flag: int) -> int:
    """Append the tensors that there are; their flags, the first of which is ``flag``."""
    flags = 0
    for tensor in optional:
        if tensor is not None:
            given.append(tensor)
            flags |= flag
        flag <<= 1
    return flags


def _prepared(kind: Kind, device: torch.device, operator: str) -> tuple[Plan, int] | None:
    """The plan and the stream of a call on the current device, for the operator of this name."""
    if functions_for(device.type) is None or torch.cuda.current_device() != device.index:
        return None
    launching.make_context_current(device.index)
    plan = _plan(kind, device, launching.device_of(device.index), operator)
    return None if plan is None else (plan, current_stream(device.index))


@functools.lru_cache(maxsize=1024)
def _plan(kind: Kind, device: torch.device, gpu: Device, operator: str) -> Plan | None:
    """None if C++ does not compute calls of this kind."""
    spec, dtype, features = kind.spec, kind.dtype, kind.spec.input_size
    size, groups = spec.hidden_size // spec.groups, spec.groups
    converted = any(one not in (dtype, torch.float32) for one in (kind.level, kind.bias, kind.cell))
    if converted or spec.input.levels > MOST_LEVELS or (features % ALIGNMENT and operator != "step"):
        return None
    recurrence = _recurrence(kind, gpu, operator)
    functions = functions_for(device.type)
    memory = _Plan(
        functions=ctypes.addressof(functions),  # type: ignore[arg-type]
        device_kind=int(device.type == "cuda"),
        device_index=device.index or 0,
        dtype=DTYPES[dtype],
        kept=DTYPES[saved_dtype(dtype)],
        cell=DTYPES[kind.cell],
        bias=DTYPES[kind.bias],
        level=DTYPES[kind.level],
        features=features,
        width=spec.hidden_size,
        groups=groups,
        padded=aligned(size) if operator == "backward" else dict(recurrence.constants).get("PADDED", 0),
        bias_rows=recurrence.bias_rows,
        residual=RESIDUAL in recurrence.constants,
        real_bias=kind.bias == dtype,
        real_cells=kind.cell == dtype,
        bands=_bands(spec, device, transposed=operator != "forward"),
        recurrence=_kernel(recurrence, device),
    )
    like = torch.empty(0, dtype=dtype, device=device)
    if operator != "step":
        name = "fold" if operator == "forward" else "unfold"
        launch = fold_launch(name, spec.input.levels, GATES, 16 // kind.level.itemsize, kind.level, like)
        memory.input = _kernel(launch, device)
        if spec.residual and RESIDUAL not in recurrence.constants:
            name = "spread" if operator == "forward" else "collect"
            memory.residual_pass = _kernel(residual_launch(name, like), device)
    if operator == "backward":
        memory.tail = _kernel(tail_launch(like, dtype, kind.bias, size), device)
    return Plan(ctypes.addressof(memory), memory, functions)


def _recurrence(kind: Kind, gpu: Device, operator: str) -> Launch:
    spec, dtype, batch = kind.spec, kind.dtype, kind.batch
    if operator == "step":
        return step_launch(spec, batch, dtype)
    size, backward = spec.hidden_size // spec.groups, operator == "backward"
    shape = (size, batch, spec.groups, dtype, backward, kind.single_step, spec.residual)
    recurrence = choose_once(gpu, *shape)
    if isinstance(recurrence, str):
        raise ValueError(f"there are no fused kernels for this shape: {recurrence}")
    return recurrence


def _bands(spec: LayerSpec, device: torch.device, transposed: bool) -> _Fold:
    levels = pooling_levels(spec.input_size, spec.input.windows, device)  # which are never given up
    bands = [level.unfold if transposed else level.fold for level in levels]
    fold = _Fold(levels=spec.input.levels, columns=aligned(spec.input_size))
    fold.units[: fold.levels] = spec.input.level_sizes
    fold.first[1 : fold.levels] = [band.first.data_ptr() for band in bands]
    fold.share[1 : fold.levels] = [band.share.data_ptr() for band in bands]
    fold.widths[1 : fold.levels] = [band.share.shape[0] for band in bands]
    return fold


def _kernel(launch: Launch, device: torch.device) -> _Kernel:
    function = launching.kernel(launch, device.index or 0).function
    blocks, threads, cluster = (ctypes.c_int64 * 2)(*launch.blocks), launch.threads, launch.cluster
    return _Kernel(function, blocks, threads, cluster, launch.shared_bytes, launch.cooperative)
