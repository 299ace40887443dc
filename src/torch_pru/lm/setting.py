"""A setting: a dataclass field with its help, and the checks that every setting goes through."""

from __future__ import annotations

import types
import typing
from dataclasses import field
from typing import Any

from torch_pru.errors import LARGEST_SIZE, PRUError, either, shown

LARGEST_FLOAT = 3e38


def setting(default: Any, text: str) -> Any:
    """A dataclass field with its help."""
    return field(default=default, metadata={"help": text})


def check_types(section: object) -> None:
    """Refuse a value of the wrong type; an integer is accepted as a float."""
    for name, expected in typing.get_type_hints(type(section)).items():
        value = getattr(section, name)
        kinds = typing.get_args(expected) if isinstance(expected, types.UnionType) else (expected,)
        check_size(name, value)
        if isinstance(value, str):
            check_encodable(name, value)
        if float in kinds and type(value) is int:
            object.__setattr__(section, name, float(value))
        elif not any(type(value) is (typing.get_origin(kind) or kind) for kind in kinds):
            wanted = [_KINDS[typing.get_origin(kind) or kind] for kind in kinds]
            raise PRUError(f"{name}={shown(value)} must be {either(wanted)}")


def check_size(name: str, value: object) -> None:
    """Refuse numbers that PyTorch cannot take; some have too many digits to be shown."""
    for number in value if isinstance(value, tuple) else (value,):
        if type(number) is int and abs(number) > LARGEST_SIZE:
            raise PRUError(f"{name} is out of range; use an integer below 2**63")
        if type(number) is float and LARGEST_FLOAT < abs(number) < float("inf"):
            raise PRUError(f"{name}={number!r} is too large for float32, in which training computes")


def check_encodable(name: str, value: str) -> None:
    """Refuse a string that cannot be written to config.toml: a path in another encoding."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise PRUError(
            f"{name}={value!r} is not UTF-8, as config.toml is; rename the file or folder"
        ) from None


_KINDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple: "a list in brackets, such as [64]",
}
