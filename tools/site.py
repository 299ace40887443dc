"""Hooks of MkDocs: pages from outside docs/, and links that are right on the site and in the repository.

Documents link to each other by their paths in the repository. On the site, a link to a page stays inside the
site, and a link to any other file leads to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "RESULTS.md")
WIDE = ("RESULTS.md",)
"""Pages whose tables get the room of the table of contents."""
ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<code>)")
QUANTITY = re.compile(r"<td>([\d.,]+ \S{1,3})</td>")
OPTION = re.compile(r"(?<![\w-])--\w[\w-]*")
CODE = re.compile(r"(?<=<code>)[^<]+")
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the documents at the root of the repository."""
    for name in PAGES:
        content = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn links between files of the repository into links of the site, and make room for wide tables."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    here = page.file.src_uri if page.file.src_uri in PAGES else f"docs/{page.file.src_uri}"
    pieces = re.split(r"(```.*?```)", markdown, flags=re.S)
    for index in range(0, len(pieces), 2):  # code is left alone
        pieces[index] = LINK.sub(
            lambda match: match[1] + site_link(match[2], here, config.extra["social"][0]["link"]) + match[3],
            pieces[index],
        )
    return "".join(pieces)


def on_page_content(html: str, **_: Any) -> str:
    """Adjust what a page contains.

    Docstrings name classes with Sphinx's roles, which editors understand; here the name is enough. A number
    and its unit stay on one line, and so does an option, which a browser would break after its hyphens.

    Example:
        >>> on_page_content("see :class:`<code>PRU</code>".replace("`", ""))
        'see <code>PRU</code>'
        >>> on_page_content("<td>1.5 ms</td>")
        '<td><span class="keep">1.5 ms</span></td>'
        >>> on_page_content("<code>pru score --no-bos</code>")
        '<code>pru score <span class="keep">--no-bos</span></code>'
    """
    html = QUANTITY.sub(r'<td><span class="keep">\1</span></td>', ROLE.sub("", html))
    return CODE.sub(lambda code: OPTION.sub(r'<span class="keep">\g<0></span>', code[0]), html)


def site_link(target: str, here: str, repository: str) -> str:
    """A link of the document ``here`` as it must be on the site.

    Example:
        >>> site_link("../RESULTS.md#experiments", "docs/experiments.md", "https://host/it")
        'RESULTS.md#experiments'
        >>> site_link("docs/layer.md", "CONTRIBUTING.md", "https://host/it")
        'layer.md'
        >>> site_link("../results", "docs/experiments.md", "https://host/it")
        'https://host/it/tree/main/results'
    """
    path, mark, anchor = target.partition("#")
    if not path or "://" in target or target.startswith("mailto:"):
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    folder = posixpath.dirname(here.removeprefix("docs/"))
    if file in PAGES or (file.startswith("docs/") and not (ROOT / file).is_dir()):
        return posixpath.relpath(file.removeprefix("docs/"), folder or ".") + mark + anchor
    kind = "tree" if (ROOT / file).is_dir() else "blob"
    return f"{repository}/{kind}/main/{file}{mark}{anchor}"
