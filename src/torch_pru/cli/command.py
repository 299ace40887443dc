"""A command of ``pru``: help without Python's types, and errors that name options as they were typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from torch_pru.errors import PRUError, shown

HelpRecord = tuple[str, str]


class Command(TyperCommand):
    """What every command of ``pru`` is made of."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            vars(parameter)["get_help_record"] = _plain(parameter.get_help_record)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments in the usage line; required ones without braces."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            problems = getattr(error.__cause__, "errors", None)  # pydantic's, which checks values
            if problems is None or error.param is None:
                raise
            raise PRUError(value_problem(error.param.opts[0], problems()[0])) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PRUError as error:
            error.args = (with_options(str(error), dict(self._typed(ctx))), *error.args[1:])
            raise

    def _typed(self, ctx: Any) -> Iterator[tuple[str, str]]:
        """Each setting as a message has it, and as it was typed."""
        for parameter in self.params:
            value, source = ctx.params.get(parameter.name), ctx.get_parameter_source(parameter.name)
            if source is None or source.name != "COMMANDLINE" or parameter.param_type_name != "option":
                continue
            option = parameter.opts[0]
            if isinstance(value, str | int | float):
                yield from spellings(str(parameter.name), str(value), f"{option} ")
            texts = value if isinstance(value, list | tuple) else ()
            for text in texts:
                yield f"{parameter.name}={shown(text)}", f"{option} {text}"
            for text in texts if option == "--set" else ():
                key, _, typed = map(str.strip, text.partition("="))
                yield from spellings(key, typed, f"--set {key}=")


def spellings(key: str, typed: str, option: str) -> Iterator[tuple[str, str]]:
    """A setting as a message has it, and as it was typed: whole, and each of several values alone.

    Example:
        >>> dict(spellings("groups", "1,3", "--groups "))["groups=3"]
        '--groups 3'
    """
    from torch_pru.lm.recipe import parse_value

    for text in (typed, *split_values(typed)):
        for value in (text, parse_value(text)):
            yield f"{key}={shown(value)}", f"{option}{text}"


def split_values(text: str) -> list[str]:
    """Values between commas; a list in brackets is one value.

    Example:
        >>> split_values("1,2,4"), split_values("[64,64],[128]")
        (['1', '2', '4'], ['[64,64]', '[128]'])
    """
    values, depth = [""], 0
    for sign in text:
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            values.append("")
        else:
            values[-1] += sign
    return [value.strip() for value in values if value.strip()]


def value_problem(name: str, problem: Mapping[str, Any]) -> str:
    """What is wrong with the value of an option.

    Args:
        name: of the option.
        problem: one of pydantic's.

    Example:
        >>> value_problem("--batch", {"type": "int_parsing", "input": "x"})
        '--batch x must be an integer'
        >>> value_problem("--batch", {"type": "greater_than_equal", "input": 0, "ctx": {"ge": 1}})
        '--batch 0 must be at least 1'
    """
    kinds = {"int": "must be an integer", "float": "must be a number"}
    wanted = kinds.get(problem["type"].partition("_")[0])
    for bound, words in (("ge", "at least"), ("le", "at most")):
        if bound in problem.get("ctx", {}):
            wanted = f"must be {words} {problem['ctx'][bound]}"
    return f"{name} {problem['input']} {wanted or 'is not valid: ' + problem['msg']}"


def with_options(text: str, options: Mapping[str, str]) -> str:
    """A message about ``name=value`` that names the option that was typed instead.

    Args:
        options: what is replaced, and by what.

    Example:
        >>> with_options("top_k=0 must be a positive integer", {"top_k=0": "--top-k 0"})
        '--top-k 0 must be a positive integer'
        >>> with_options("mine: levels=9 is too many", {"levels=9": "--set levels=9"})
        'mine: --set levels=9 is too many'
    """
    for setting, typed in options.items():
        start = rf"(^|: ){re.escape(setting)}(?![\w.])"
        text = re.sub(start, lambda found, typed=typed: found[1] + typed, text)  # type: ignore[misc]
    return text


def _plain(record_of: Callable[[Any], HelpRecord | None]) -> Callable[[Any], HelpRecord | None]:
    def plain(ctx: Any) -> HelpRecord | None:
        record = record_of(ctx)
        return None if record is None else plain_record(*record)

    return plain


def plain_record(name: str, text: str) -> HelpRecord:
    """A line of the help, without Python's types and without ranges.

    Example:
        >>> plain_record("--seeds <int range>", "How many.  [default: 1; x>=1]")
        ('--seeds N', 'How many.  [default: 1]')
        >>> plain_record("--minutes <float range>", "Stop.  [default: (10 with --text); x>=0.1]")
        ('--minutes MINUTES', 'Stop.  [default: 10 with --text]')
        >>> plain_record("RUN <list[Path]>", "Folders.  [required]")
        ('RUN', 'Folders.  [required]')
    """
    if name.startswith("-"):
        value = "N" if "<int" in name else name.split()[0].strip("-").replace("-", "_").upper()
        name = re.sub(r"<[^>]*>$", value, name)
    else:
        name = re.sub(r" <.*>$", "", name)
    text, _, extra = text.partition("  [")
    parts = [part for part in extra.removesuffix("]").split("; ") if part and not re.search(r"\bx[<>]", part)]
    parts = [re.sub(r"^default: \((.*)\)$", r"default: \1", part) for part in parts]
    return name, f"{text}  [{'; '.join(parts)}]" if parts else text
