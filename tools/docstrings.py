"""An extension of griffe, which reads the docstrings for the site.

Docstrings have the sections "Example" and "Shape", as PyTorch's do, and attributes that share a description.
Griffe expects "Examples", shows other sections as text, in which a list must not be indented, and takes the
second of several names for a type.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

CODE = re.compile(r"^Example::$", flags=re.M)
EXAMPLE = re.compile(r"^( *)Example:$", flags=re.M)
SHAPE = re.compile(r"^(Shape.*:)\n((?: {4}.*\n?)+)", flags=re.M)
NAMES = re.compile(r"^ {4}\w+(?:, [\w…]+)+:", flags=re.M)


class Sections(griffe.Extension):
    """Shows the sections of our docstrings as they are meant."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = for_griffe(obj.docstring.value)


def for_griffe(text: str) -> str:
    """A docstring in the form that griffe understands.

    Example:
        >>> for_griffe("Example:\\n    >>> 1\\n    1")
        'Examples:\\n    >>> 1\\n    1'
        >>> for_griffe("Shape:\\n    * input: (T, B, N)\\n    * output: (T, B, M)")
        'Shape:\\n\\n* input: (T, B, N)\\n* output: (T, B, M)'
    """
    text = CODE.sub("**Example:**", text)
    text = EXAMPLE.sub(r"\1Examples:", text)
    text = SHAPE.sub(lambda match: f"{match[1]}\n\n{textwrap.dedent(match[2])}", text)
    return NAMES.sub(lambda match: match[0].replace(", ", ",\N{NO-BREAK SPACE}"), text)
