"""``pru settings``, and ``--set key=value`` as typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from torch_pru.cli.console import output
from torch_pru.errors import PRUError

SET_HELP = "Change a setting (see pru settings); may be repeated."
OWN_SET_HELP = "Change a setting; may be repeated."


def settings(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a TOML file.")
    ] = "quickstart",
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=OWN_SET_HELP)
    ] = None,
) -> None:
    """List the settings of a recipe.

    Prints everything that --set can change, as TOML with an explanation of each setting. Redirected to a
    file, the output is a recipe.
    """
    from torch_pru.lm.recipe import load_recipe, settings_text

    config = load_recipe(recipe, parse_settings(changes))
    output().print(settings_text(config, explained=True), end="", soft_wrap=True)


def parse_settings(settings: Iterable[str] | None) -> dict[str, str]:
    """``["epochs=3"]`` to ``{"epochs": "3"}``.

    Example:
        >>> parse_settings(["epochs=3", "hidden=[200, 200]"])
        {'epochs': '3', 'hidden': '[200, 200]'}
    """
    parsed = {}
    for text in settings or ():
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise PRUError(f"--set {text}: write it as key=value, as in --set epochs=3")
        parsed[key.strip()] = value.strip()
    return parsed
