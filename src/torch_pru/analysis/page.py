"""One self-contained HTML page with all figures."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape as escape_html

from torch_pru.lm.visible import visible

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 44rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif;
  color: #1a1a1a; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 0.5rem; }
figure { margin: 1rem 0; }
img { display: block; width: 100%; max-width: 34rem; height: auto; }
a { color: #005a8c; }
nav ul { padding-left: 1.2rem; }
"""


@dataclass(frozen=True)
class Picture:
    """A figure on the page.

    Attributes:
        name: name of its files, without suffix.
        svg: its content.
        alt: alternative text.
        sentence: caption; empty if the section's sentence is enough.
    """

    name: str
    svg: bytes
    alt: str
    sentence: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: name of the analysis.
        title: its heading.
        sentence: what its pictures show.
        pictures: in order.
    """

    name: str
    title: str
    sentence: str
    pictures: list[Picture]


def page(title: str, sections: Iterable[Section]) -> str:
    """The whole document, with images and style embedded.

    Example:
        >>> text = page("Analysis", [Section("sweep", "Levels by groups", "A < B.", [])])
        >>> "A &lt; B." in text, "http" in text
        (True, False)
    """
    sections = list(sections)
    links = "\n".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in sections)
    body = "\n".join(map(_section, sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<nav aria-label="Contents">
<ul>
{links}
</ul>
</nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    sentence = f"\n<p>{escape(section.sentence)}</p>" if section.sentence else ""
    pictures = "\n".join(map(_picture, section.pictures))
    return (
        f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>{sentence}\n{pictures}\n</section>'
    )


def _picture(picture: Picture) -> str:
    source = base64.b64encode(picture.svg).decode()
    caption = f"\n<figcaption>{escape(picture.sentence)}</figcaption>" if picture.sentence else ""
    return (
        f'<figure id="{picture.name}">\n'
        f'<img src="data:image/svg+xml;base64,{source}" alt="{escape(picture.alt)}">{caption}\n</figure>'
    )


def escape(text: str) -> str:
    """Text from files as HTML, its control characters made visible.

    Example:
        >>> print(escape("a < \\x1b[0m"))
        a &lt; \\x1b[0m
    """
    return escape_html(visible(text))
