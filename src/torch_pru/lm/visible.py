"""Text from files and prompts, as it is shown: control characters are made visible, tables are Markdown."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Sequence

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's control, format, surrogate, private and unassigned characters, and its line separators."""

JOINERS = "\u200c\u200d"
"""Format characters that ordinary words in some scripts, and emoji, are written with."""


def visible(text: str, *, lines: bool = False) -> str:
    """``text`` with every character that moves a cursor, changes a color or hides others as an escape.

    Args:
        text: from a file, a prompt or a name.
        lines: keep line breaks and tabs.

    Example:
        >>> print(visible("a\\x1b[31mb\\nc"))
        a\\x1b[31mb\\nc
    """
    if text.isascii() and text.isprintable():
        return text
    kept = JOINERS + ("\n\t" if lines else "")
    return "".join(
        character
        if unicodedata.category(character) not in HIDDEN or character in kept
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )


def count(number: int, thing: str) -> str:
    """A number of things.

    Example:
        >>> count(1, "layer"), count(1200, "epoch")
        ('1 layer', '1,200 epochs')
    """
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] | None = None) -> str:
    """A Markdown table; a bar inside a cell is escaped.

    Args:
        heading: a title for each column.
        rows: a cell for each column.
        left: titles of the columns that are aligned to the left, the others to the right; None aligns none.

    Example:
        >>> print(table(["a", "b"], [["1", "2|3"]]))
        | a | b |
        |---|---|
        | 1 | 2\\|3 |
    """
    rule = ["---" if left is None or title in left else "---:" for title in heading]
    body = [" | ".join(visible(cell).replace("|", "\\|") for cell in row) for row in (heading, *rows)]
    return "\n".join([f"| {body[0]} |", f"|{'|'.join(rule)}|", *(f"| {line} |" for line in body[1:])])
