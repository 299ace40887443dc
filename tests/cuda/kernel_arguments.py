"""The one struct that each kernel takes as its argument, parsed from its source."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from torch_pru.ops.cuda.compile import source


class Field(NamedTuple):
    """One 64-bit word of a kernel's argument."""

    name: str  # such as "weights[1]"
    kind: str  # C type without const and pointer, typedefs resolved: "float", "u16", "i64", ...
    is_pointer: bool
    is_const: bool


@functools.cache
def fields_of(kernel: str, constants: tuple[tuple[str, int], ...]) -> list[Field]:
    """The words of the kernel's argument, in order."""
    text = _preprocessed(source(kernel), dict(constants))
    parameter = re.search(rf"\b{kernel}\((?:const __grid_constant__ )?(\w+) \w+\)", text)
    assert parameter, f"{kernel} does not take one struct"
    typedefs = re.findall(r"typedef ([^;]+) (\w+);", text)
    types = {name: _resolved(kind, dict(constants)) for kind, name in typedefs if " " not in kind}
    return list(_fields(parameter[1], text, types, dict(constants)))


def _resolved(kind: str, constants: dict[str, int]) -> str:
    chosen = re.fullmatch(r"Number<(\w+)>", kind)
    return ("float" if constants[chosen[1]] else "u16") if chosen else kind


def _preprocessed(text: str, constants: dict[str, int]) -> str:
    """The text with comments removed and #if, #else and #endif resolved."""
    lines, keep = [], [True]
    for line in re.sub(r"//.*", "", text).splitlines():
        word = line.split()[0] if line.split() else ""
        if word in ("#if", "#ifdef", "#ifndef"):
            keep.append(_is_true(line.split(None, 1)[1], constants))
        elif word == "#else":
            keep[-1] = not keep[-1]
        elif word == "#endif":
            keep.pop()
        elif all(keep):
            lines.append(line)
    return "\n".join(lines)


def _is_true(condition: str, constants: dict[str, int]) -> bool:
    names = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", condition), 0) | constants
    python = condition.replace("&&", " and ").replace("||", " or ").replace("!", " not ")
    return bool(eval(python.replace(" not =", "!="), {}, names))


def _fields(struct: str, text: str, types: dict[str, str], constants: dict[str, int], prefix: str = ""):
    body = re.search(rf"struct {struct} \{{(.*?)\}};", text, re.DOTALL)
    assert body, f"struct {struct} was not found"
    for declaration in filter(None, map(str.strip, body[1].split(";"))):
        match = re.fullmatch(r"(const )?(\w+)(\*?) (.+)", " ".join(declaration.split()))
        assert match, declaration
        const, kind, star, names = match.groups()
        kind = types.get(kind, kind)
        for name in names.split(", "):
            single = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", name)
            assert single, name
            length = single[2]
            count = None if length is None else constants.get(length) or int(length)
            for index in range(count or 1):
                label = prefix + single[1] + ("" if count is None else f"[{index}]")
                if f"struct {kind} {{" in text:
                    yield from _fields(kind, text, types, constants, label + ".")
                else:
                    yield Field(label, kind, bool(star), bool(const))
