"""Draw the unit: python docs/figures/make_unit.py writes unit.svg beside this file.

The colors follow the reader's light or dark theme.
"""

from __future__ import annotations

from pathlib import Path

CELL = 16  # side of one feature of a vector
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .small { font-size: 11px; fill: #59636e; }
  .math { font-style: italic; }
  .title { font-weight: 600; }
  .cell { fill: #eaeef2; stroke: #8b949e; }
  .one { fill: #b6d7f5; stroke: #1f6fb2; }
  .two { fill: #ffd8b0; stroke: #b35900; }
  .weight { stroke-width: 1.2; }
  .gate { fill: none; stroke: #59636e; stroke-width: 1.2; }
  .line { stroke: #59636e; stroke-width: 1.2; fill: none; }
  .head { fill: #59636e; }
  .thin { stroke: #8b949e; stroke-width: 0.8; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small { fill: #9198a1; }
    .cell { fill: #2d333b; stroke: #768390; }
    .one { fill: #14395c; stroke: #6cb6ff; }
    .two { fill: #5c3508; stroke: #f0a45d; }
    .gate, .line { stroke: #9198a1; }
    .head { fill: #9198a1; }
    .thin { stroke: #768390; }
  }
"""


def vector(x: float, y: float, kinds: str, cell: float = CELL) -> str:
    """A column of features; a letter for the kind of each: c, 1 or 2; a space is a gap."""
    names = {"c": "cell", "1": "one", "2": "two"}
    parts = []
    for kind in kinds:
        if kind == " ":
            y += 5
            continue
        parts.append(f'<rect class="{names[kind]}" x="{x:g}" y="{y:g}" width="{cell:g}" height="{cell:g}"/>')
        y += cell
    return "\n".join(parts)


def rectangle(x: float, y: float, width: float, height: float, kind: str, radius: float = 2) -> str:
    """A weight matrix, or a frame."""
    size = f'width="{width:g}" height="{height:g}" rx="{radius:g}"'
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size}/>'


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "middle") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{content}</text>'


def arrow(*points: tuple[float, float]) -> str:
    """A line with a head at its end, which must be horizontal or point down or up."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    (x0, y0), (x1, y1) = points[-2:]
    if x1 != x0:
        head = f"{x1:g},{y1:g} {x1 - 7:g},{y1 - 4:g} {x1 - 7:g},{y1 + 4:g}"
    else:
        back = -7 if y1 > y0 else 7
        head = f"{x1:g},{y1:g} {x1 - 4:g},{y1 + back:g} {x1 + 4:g},{y1 + back:g}"
    return f'<polyline class="line" points="{path}"/><polygon class="head" points="{head}"/>'


def subscript(letter: str, index: str) -> str:
    """A letter with an index."""
    return f'<tspan class="math">{letter}</tspan><tspan dy="4" font-size="10">{index}</tspan>'


def pyramid() -> list[str]:
    """The pyramidal transform of the input."""
    top = 64
    parts = [text(40, 24, "pyramidal transform of the input, K = 2", "title", "start")]
    parts += [vector(48, top, "c" * 8), text(56, top - 8, subscript("x", "t"))]
    # Level 2: each feature is the mean of three features of level 1, two apart.
    for row in range(4):
        middle = top + 32 + CELL * (row + 0.5)
        for offset in (-1, 0, 1):
            source = min(max(2 * row + offset, 0), 7)
            start = top + CELL * (source + 0.5)
            parts.append(f'<line class="thin" x1="64" y1="{start:g}" x2="118" y2="{middle:g}"/>')
    parts += [vector(118, top + 32, "c" * 4), text(126, top + 112, "mean of 3,", "small")]
    parts += [text(126, top + 126, "stride 2", "small")]
    parts += [rectangle(222, top - 14, 82, 66, "one weight"), text(263, top + 24, subscript("W", "1"))]
    parts += [rectangle(222, top + 70, 52, 36, "two weight"), text(248, top + 93, subscript("W", "2"))]
    parts.append(arrow((64, top + 8), (219, top + 8)))
    parts.append(arrow((134, top + 88), (219, top + 88)))
    parts += [vector(434, top, "11111122"), arrow((304, top + 32), (431, top + 32))]
    parts.append(arrow((274, top + 88), (360, top + 88), (360, top + 112), (431, top + 112)))
    parts += [text(456, top + 36, "3M/4", "small", "start"), text(456, top + 117, "M/4", "small", "start")]
    return parts


def groups() -> list[str]:
    """The grouped transform of the context."""
    top = 262
    parts = [text(40, top - 36, "grouped transform of the context, g = 4", "title", "start")]
    parts += [vector(48, top, "11 22 11 22"), text(56, top - 8, subscript("h", "t−1"))]
    for number, kind in enumerate(("one", "two", "one", "two")):
        y = top + 37 * number
        parts.append(rectangle(222 + 36 * number, y, 36, 32, f"{kind} weight"))
        parts.append(arrow((64, y + 16), (219 + 36 * number, y + 16)))
        parts.append(arrow((258 + 36 * number, y + 16), (431, y + 16)))
    parts += [vector(434, top, "11 22 11 22")]
    parts.append(text(286, top + 164, "each group of units reads its own group only", "small"))
    return parts


def gates() -> list[str]:
    """The sum of both, and the gates of an LSTM."""
    x, y = 536, 210
    parts = [f'<circle class="gate" cx="{x}" cy="{y}" r="12"/>', text(x, y + 5, "+")]
    parts += [arrow((450, 128), (x, 128), (x, y - 13)), arrow((450, 333), (x, 333), (x, y + 13))]
    parts += [
        text(x - 20, y - 2, "bias", "small", "end"),
        text(x - 20, y + 12, "(and residual)", "small", "end"),
    ]
    parts += [rectangle(590, 150, 104, 120, "gate", 6), arrow((x + 12, y), (587, y))]
    parts += [
        text(642, 174, "gates", "title"),
        text(642, 200, "input, forget,"),
        text(642, 218, "cell, output"),
    ]
    parts += [text(642, 242, "as in an", "small"), text(642, 257, "LSTM", "small")]
    parts += [arrow((694, 180), (732, 180)), text(748, 185, subscript("h", "t"))]
    parts += [arrow((694, 240), (732, 240)), text(748, 245, subscript("c", "t"))]
    parts += [arrow((642, 310), (642, 273)), text(642, 328, subscript("c", "t−1"))]
    return parts


def draw() -> str:
    """The whole figure."""
    body = "\n".join([*pyramid(), *groups(), *gates()])
    title = "<title>The pyramidal recurrent unit</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 776 440" width="776" role="img">\n'
        f"{title}\n<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    (Path(__file__).parent / "unit.svg").write_text(draw(), encoding="utf-8")
