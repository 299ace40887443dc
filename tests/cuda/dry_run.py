"""The GPU path on a CPU: tensors claim to be on a GPU, and each launch is checked, recorded and executed."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from executing import execute
from kernel_arguments import Field, fields_of
from shapes import HOPPER
from torch import Tensor

from torch_pru.ops.cuda import launch as launching
from torch_pru.ops.cuda.plan import Device, Launch

SIXTEEN_BITS = (torch.float16, torch.bfloat16, torch.int16)
DTYPES = {
    "float": (torch.float32,),
    "float4": (torch.float32,),
    "double": (torch.float64,),
    "u8": (torch.uint8,),
    "unsigned char": (torch.uint8,),
    "u16": SIXTEEN_BITS,
    "uint2": SIXTEEN_BITS,
    "uint4": SIXTEEN_BITS,
    "int": (torch.int32,),
    "u32": (torch.int32,),
    "i64": (torch.int64,),
    "u64": (torch.int64,),
    "void": (torch.float32, torch.float16, torch.bfloat16),
}
ANY_SIXTEEN_BITS = {"exchange", "activations", "cells"}  # not of the kind that BF16 tells
STRIDED = {("drop", "values"), ("drop", "mask"), ("add_rows", "table")}  # strides are passed, too
ALSO_READ = {
    ("cross_entropy", "logits"),
    ("decoder_rows", "gradient"),
    ("add_rows", "table"),
    ("fold", "weights"),
    ("unfold", "folded"),
    ("spread", "values"),
    ("collect", "gates"),
    ("dynamic", "weight"),
    ("sgd", "sums"),
    ("forward_grid", "exchange"),
}
FILLED = {("backward_grid", "dgates"), ("token_scores", "key"), ("sgd", "steps"), ("sgd", "first_bad")}


@contextmanager
def dry_run(device: Device = HOPPER) -> Iterator[list[list[str]]]:
    """Inside, every tensor says that it is on a GPU of this kind; the list grows by one entry per launch."""
    records: list[list[str]] = []

    def launch_on(launch: Launch, _: torch.device, tensors, numbers) -> None:
        records.append(_run(launch, [*tensors], [int(number) for number in numbers]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_cuda", property(lambda self: True), raising=False)
        # Lengths and indices stay on the host; nothing else that decides is int64.
        on_host = property(lambda self: self.dtype == torch.int64)
        patch.setattr(torch.Tensor, "is_cpu", on_host, raising=False)
        patch.setattr(torch, "mm", _with_out_dtype(torch.mm))
        patch.setattr(torch, "bmm", _with_out_dtype(torch.bmm))
        patch.setattr(launching, "_device", lambda index, runs: device)
        patch.setattr(launching, "_unserved", lambda capability: None)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch_pru.ops.cuda") and hasattr(module, "launch_on"):
                patch.setattr(module, "launch_on", launch_on)
        yield records


def at(address: int, count: int) -> Tensor:
    """Float32 numbers at an address."""
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def double(word: int) -> float:
    return struct.unpack("<d", struct.pack("<q", word))[0]


def _with_out_dtype(product):
    """PyTorch has products with ``out_dtype`` on GPUs only."""

    def run(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, **others) -> Tensor:
        return product(a, b, **others) if out_dtype is None else product(a.to(out_dtype), b.to(out_dtype))

    return run


def _run(launch: Launch, tensors: list[Tensor | None], numbers: list[int]) -> list[str]:
    """Check one launch against the kernel's source, describe it, and execute it."""
    fields = fields_of(launch.kernel, launch.constants)
    assert len(fields) == len(tensors) + len(numbers), f"{launch.kernel}: {[f.name for f in fields]}"
    constants = dict(launch.constants)
    record = [_configuration(launch)]
    values = [*tensors, *numbers]
    for field, value in zip(fields, values, strict=True):
        _check(launch, constants, field, value)
        if value is not None and not (type(value) is int and value == 0):
            record.append(f"{field.name} {_described(launch.kernel, field, value)}")
    arguments = SimpleNamespace()
    for field, value in zip(fields, values, strict=True):
        setattr(arguments, field.name, value)
    if launch.kernel in ("gradient_squares", "sgd"):  # a list of addresses
        record = [line for line in record if not line.startswith("entry[")] + _entries(arguments)
    _execute(launch, fields[: len(tensors)], tensors, numbers)
    return record


def _execute(launch: Launch, fields: list[Field], tensors: list[Tensor | None], numbers: list[int]) -> None:
    names = [field.name for field in fields]
    keys = [(launch.kernel, name.split("[")[0]) for name in names]
    constant = [field.is_const for field in fields]
    unwritten = [
        not field.is_const and key not in ALSO_READ | FILLED for field, key in zip(fields, keys, strict=True)
    ]
    execute(launch, tensors, numbers, unwritten, constant, names)


def _configuration(launch: Launch) -> str:
    names = ("blocks", "threads", "cluster", "shared_bytes", "bias_rows", "cooperative")
    parts = [f"{name}={getattr(launch, name)}".replace(" ", "") for name in names]
    constants = [f"{name}={value}" for name, value in launch.constants]
    return " ".join([launch.kernel, *parts, "|", *constants])


def _check(launch: Launch, constants: dict[str, int], field: Field, value: Tensor | int | None) -> None:
    where = f"{launch.kernel}: {field.name}"
    base = field.name.split("[")[0]
    if isinstance(value, int):
        assert not field.is_pointer or "." in field.name, f"{where} is a pointer, {value} was passed"
        return
    assert field.is_pointer, f"{where} is a number, a tensor was passed"
    if value is None:
        return
    expected = DTYPES[field.kind]
    if (launch.kernel, base) == ("forward_token", "weight") and constants["FLOAT"]:
        expected = (torch.float32,)
    assert value.dtype in expected, f"{where} is a {field.kind}, {value.dtype} was passed"
    if expected is SIXTEEN_BITS and base not in ANY_SIXTEEN_BITS:
        brain = bool(constants.get("BF16"))
        assert value.dtype == (torch.bfloat16 if brain else torch.float16), f"{where}: {value.dtype}"
    assert (launch.kernel, base) in STRIDED or _is_dense(value), f"{where} has gaps: {value.stride()}"


def _is_dense(tensor: Tensor) -> bool:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() in (0, extent)


def _described(kernel: str, field: Field, value: Tensor | int) -> str:
    if isinstance(value, int):
        return f"{double(value):.6g}" if field.kind == "double" else str(value)
    kind = str(value.dtype).removeprefix("torch.")
    base = field.name.split("[")[0]
    dense, value = _is_dense(value), value.detach()
    layout = str(value.numel()) if dense else f"{tuple(value.shape)}{value.stride()}".replace(" ", "")
    if not field.is_const and (kernel, base) not in ALSO_READ:
        return f"{kind} {layout} unwritten"
    memory = value.as_strided((value.numel(),), (1,)) if dense else value.reshape(-1)
    return f"{kind} {layout} {summary(memory)}"


def summary(values: Tensor) -> str:
    """Two numbers that tell contents and their order: a weighted sum, in standard deviations, and a mean."""
    numbers = values.double().nan_to_num(0, 1, -1)
    places = torch.arange(len(numbers), dtype=torch.float64)
    root = numbers.square().sum().sqrt().clamp(min=1e-30)
    return f"{float((numbers * (0.37 * places + 0.1).cos()).sum() / root):.3f} {float(root):.4g}"


def _entries(arguments: SimpleNamespace) -> list[str]:
    """The weights of an update by their contents instead of their addresses."""
    lines = []
    for index in range(arguments.entries):
        entry = {
            name: getattr(arguments, f"entry[{index}].{name}")
            for name in ("weight", "gradient", "average", "count", "columns", "stride", "first")
        }
        rows = entry["count"] // entry["columns"]
        memory = at(entry["gradient"], (rows - 1) * entry["stride"] + entry["columns"])
        gradient = memory.as_strided((rows, entry["columns"]), (entry["stride"], 1)).reshape(-1)
        parts = [f"{name}={entry[name]}" for name in ("count", "columns", "stride", "first")]
        contents = [at(entry["weight"], entry["count"]), gradient]
        if entry["average"]:
            contents.append(at(entry["average"], entry["count"]))
        lines.append(f"entry[{index}] {' '.join(parts)} {' '.join(map(summary, contents))}")
    return lines


def differences(found: list[list[str]], expected: list[list[str]]) -> list[str]:
    """Where two lists of launches differ, in words; summaries may differ by what rounding does."""
    kernels = [[record[0].split()[0] for record in records] for records in (found, expected)]
    if kernels[0] != kernels[1]:
        return [f"launched {kernels[0]}", f"expected {kernels[1]}"]
    result = []
    for mine, theirs in zip(found, expected, strict=True):
        if len(mine) != len(theirs):
            result += [f"launched {mine}", f"expected {theirs}"]
            continue
        pairs = zip(mine, theirs, strict=True)
        result += [f"{mine[0].split()[0]}: {a!r}, expected {b!r}" for a, b in pairs if not _are_close(a, b)]
    return result


def _are_close(mine: str, theirs: str) -> bool:
    words = mine.split(), theirs.split()
    if len(words[0]) != len(words[1]):
        return False
    for a, b in zip(*words, strict=True):
        if a != b:
            if not ("." in a or "e" in a) or a[-1].isalpha():
                return False
            try:
                if abs(float(a) - float(b)) > 0.02 + 0.01 * abs(float(b)):
                    return False
            except ValueError:
                return False
    return True
