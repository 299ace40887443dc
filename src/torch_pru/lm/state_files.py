"""The state of a trainer as two files: tensors as safetensors, everything else as JSON.

Neither format can hold code, or ask for more memory than the files have bytes. Earlier versions wrote
``state.pt``, a pickle, which is read only after its instructions were checked.
"""

from __future__ import annotations

import io
import json
import pickletools
import zipfile
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from torch_pru.lm.seal import parse_json

VALUES, TENSORS, PICKLED = "state.json", "state.safetensors", "state.pt"
TENSOR = "tensor"
"""Key of an object that stands for a tensor in the JSON."""

HEADER_LIMIT = 1 << 20
"""Bytes of the list of tensors in a safetensors file: enough for 10,000 of them."""

MOST_ITEMS = 1_000_000
"""Items of a state: more than any run has, and few enough for any memory."""

CALLABLES = {"torch._utils _rebuild_tensor_v2", "collections OrderedDict"}
STORAGES = {f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Long", "Int")}
HARMLESS = {
    *("PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "BINUNICODE", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("BINPERSID", "GLOBAL", "REDUCE"),
}
"""Instructions of a pickle that ``torch.save`` writes for tensors and plain values."""


def encode_state(state: Mapping[str, Any]) -> dict[str, bytes]:
    """The content of the two files.

    Example:
        >>> encode_state({"steps": 7, "h": torch.ones(2)})["state.json"]
        b'{"steps": 7, "h": {"tensor": "h"}}'
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {TENSOR: name}
        if isinstance(value, dict):
            return {key: plain(item, f"{name}.{key}" if name else key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item, f"{name}.{index}") for index, item in enumerate(value)]
        return value

    values = plain(dict(state), "")
    return {VALUES: json.dumps(values).encode(), TENSORS: save_tensors(tensors)}


def decode_state(contents: Mapping[str, bytes]) -> dict[str, Any]:
    """What ``encode_state`` was given, tuples as lists; raises whatever a malformed file leads to.

    Example:
        >>> decode_state(encode_state({"steps": 7, "pair": (1.5, torch.ones(2))}))
        {'steps': 7, 'pair': [1.5, tensor([1., 1.])]}
    """
    if PICKLED in contents:
        return read_pickled(contents[PICKLED])
    tensors = load_tensors(contents[TENSORS])

    def full(value: Any) -> Any:
        if isinstance(value, dict):
            if value.keys() == {TENSOR}:
                return tensors[value[TENSOR]]
            return {key: full(item) for key, item in value.items()}
        return [full(item) for item in value] if isinstance(value, list) else value

    state = full(parse_json(contents[VALUES]))
    if not isinstance(state, dict):
        raise ValueError(f"{VALUES} is not a JSON object")
    return state


def save_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file."""
    return safetensors.torch.save({name: each.detach().cpu().contiguous() for name, each in tensors.items()})


def load_tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, of which a header that lists too many is not read."""
    header = int.from_bytes(content[:8], "little")
    if header > HEADER_LIMIT:
        raise ValueError(f"its header has {header:,} bytes; the limit for it is {HEADER_LIMIT:,}")
    return dict(safetensors.torch.load(content))


def read_pickled(content: bytes) -> dict[str, Any]:
    """The state in a ``state.pt`` that holds tensors and plain values and nothing else."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type for entry in entries) or sum(e.file_size for e in entries) > len(content):
            raise ValueError(f"{PICKLED} is compressed")  # small files could fill the memory
        pickles = [entry for entry in entries if entry.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"{PICKLED} has {len(pickles)} pickles")
        check_pickle(archive.read(pickles[0]))
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError(f"{PICKLED} does not contain a dictionary")
    return state


def check_pickle(content: bytes) -> None:
    """Refuse a pickle that does anything but build tensors and plain values. Reading it executes nothing."""
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if number > MOST_ITEMS:
            raise ValueError(f"{PICKLED} has more than {MOST_ITEMS:,} instructions")
        if opcode.name not in HARMLESS:
            raise ValueError(f"{PICKLED} has the instruction {opcode.name}")
        if opcode.name == "GLOBAL" and argument not in CALLABLES | STORAGES:
            raise ValueError(f"{PICKLED} refers to {argument!r:.100}")
