"""Where the commands print. Of several processes only the first one does."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from torch_pru.lm.visible import visible


def rank() -> int:
    """The number of this process among those that ``torchrun`` started; 0 without it.

    Example:
        >>> rank()
        0
    """
    return number_in("RANK", 0)


def processes() -> int:
    """How many ``torchrun`` started; 1 without it.

    Example:
        >>> processes()
        1
    """
    return number_in("WORLD_SIZE", 1)


def number_in(variable: str, default: int) -> int:
    """An environment variable as an integer; of one that is none, training says so.

    Example:
        >>> number_in("NO_SUCH_VARIABLE", 7)
        7
    """
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and text.isascii() else default


def output() -> Console:
    """For results, on standard output.

    Example:
        >>> output().print("perplexity 56.56")
        perplexity 56.56
    """
    return plain_console(stderr=False)


def messages() -> Console:
    """For progress and notes, on standard error, so that results can be piped.

    Example:
        >>> messages().stderr
        True
    """
    return plain_console(stderr=True)


def plain_console(*, stderr: bool) -> Console:
    """Prints words as they are: brackets and colons in a path or a text are no markup and no emoji.

    Example:
        >>> plain_console(stderr=False).print("runs/[bold]-1 :smile:")
        runs/[bold]-1 :smile:
    """
    return PlainConsole(stderr=stderr, quiet=rank() != 0, highlight=False, markup=False, emoji=False)


class PlainConsole(Console):
    """A console that shows control characters of a text as escapes: only rich itself moves the cursor.

    Example:
        >>> PlainConsole().print("\\x1b[31mred")
        \\x1b[31mred
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """What every string goes through, in a table, too."""
        return super().render_str(visible(text, lines=True), **options)


def say(console: Console, text: str, *, style: str | None = None, indent: int = 0) -> None:
    """Print a sentence: a terminal wraps it between words, a file gets one line.

    Args:
        indent: of the lines after the first one.

    Example:
        >>> say(output(), "3 of 6 runs are finished already")
        3 of 6 runs are finished already
    """
    if wraps(console):
        lines = console.render_str(text).wrap(console, console.width - indent)
        console.print(Text("\n" + " " * indent).join(lines), style=style, soft_wrap=True)
    else:
        console.print(text, style=style, soft_wrap=True)


def wraps(console: Console) -> bool:
    """Whether sentences are wrapped between words: on a terminal, not in a file or a pipe.

    Example:
        >>> wraps(output())
        False
    """
    return console.is_terminal and not console.is_dumb_terminal


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line, without its place in the code; takes the place of ``warnings.showwarning``.

    Example:
        >>> show_warning("the checkpoint is damaged; trying the one before it", UserWarning, "", 0)
    """
    # To sys.stderr itself, where a live bar gives way; a console of our own would write into the bar.
    if rank() == 0:
        print(f"pru: warning: {visible(str(message))}", file=sys.stderr)


def complain(text: str) -> None:
    """One line on standard error. Every process may: an error of one of them must not be lost.

    Example:
        >>> complain("there is no recipe 'ptb-pru-g5'; did you mean 'ptb-pru-g4'?")
    """
    who = f"pru (rank {rank()})" if rank() else "pru"
    print(f"{who}: error: {visible(' '.join(text.split()))}", file=sys.stderr)
