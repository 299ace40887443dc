"""An extension of griffe, which reads the docstrings for the site.

Docstrings have the sections "Example" and "Shape", as PyTorch's do. Griffe knows the first as "Examples" and
shows others as text, in which a list must not be indented.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

SHAPE = re.compile(r"^(Shape.*:)\n((?: {4}.*\n?)+)", flags=re.M)


class Sections(griffe.Extension):
    """Shows the examples as code, and the shapes as a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = SHAPE.sub(lambda match: f"{match[1]}\n\n{textwrap.dedent(match[2])}", value)
