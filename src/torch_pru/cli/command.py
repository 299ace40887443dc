"""A command of ``pru``: help without Python's types, and errors that name options as they were typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from typer.core import TyperCommand

from torch_pru.errors import PRUError

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

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PRUError as error:
            options = {
                parameter.name: (parameter.opts[0], ctx.params[parameter.name])
                for parameter in self.params
                if parameter.param_type_name == "option" and _was_typed(ctx, parameter.name)
            }
            error.args = (with_options(str(error), options), *error.args[1:])
            raise


def _was_typed(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and name in ctx.params


def with_options(text: str, options: Mapping[str, tuple[str, object]]) -> str:
    """A message in which ``name=value`` is replaced by the option that was typed.

    Args:
        options: by name, the option and its value.

    Example:
        >>> with_options("top_k=0 must be a positive integer", {"top_k": ("--top-k", 0)})
        '--top-k 0 must be a positive integer'
        >>> with_options("mine --set levels=9: levels=9 is too many", {"levels": ("--levels", 9)})
        'mine --levels 9: --levels 9 is too many'
    """
    for name, (option, value) in options.items():
        if isinstance(value, str | int | float):
            typed = f"{option} {value}"
            text = text.replace(f"--set {name}={value}", typed)
            text = re.sub(
                rf"(?<![\w.-]){name}={re.escape(repr(value))}(?![\w.])", typed.replace("\\", r"\\"), text
            )
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
