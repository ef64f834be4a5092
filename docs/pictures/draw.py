"""Draws the pictures of the concepts page: `python docs/pictures/draw.py` writes the SVG files into its folder.

Colours are variables, so that one file serves light and dark, alone and within a page (see pages.css).
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path

STYLE = """
svg.picture { --ink: #1f2d2b; --faint: #6b7a78; --paper: #ffffff; --old: #e3e8e7; --new: #8fd3c8; --gone: #f3d9b1;
  font: 14px sans-serif; max-width: 100%; height: auto }
@media (prefers-color-scheme: dark) { svg.picture { --ink: #e6edec; --faint: #9fb0ad; --paper: #1e2625;
  --old: #37423f; --new: #1f7a6d; --gone: #6f5423 } }
.picture text { fill: var(--ink); text-anchor: middle }
.picture .faint { fill: var(--faint) }
.picture .left { text-anchor: start }
.picture rect, .picture circle { stroke: var(--ink); stroke-width: 1.2; fill: var(--old) }
.picture .new { fill: var(--new) }
.picture .gone { fill: var(--gone) }
.picture .plain { fill: var(--paper) }
.picture path { stroke: var(--ink); stroke-width: 1.4; fill: none }
.picture .dashed { stroke-dasharray: 5 4 }
.picture .tip { fill: var(--ink); stroke: none }
"""


class Picture:
    """Shapes on a sheet."""

    def __init__(self, name: str, width: int, height: int, title: str) -> None:
        self.name = name
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<text x="{x:g}" y="{y:g}" dy=".35em"{_class(kind)}>{escape(words)}</text>')

    def box(self, x: float, y: float, words: str, kind: str = "", width: int = 104, height: int = 34) -> None:
        """A box around a middle, with lines of text in it."""
        corner = f'x="{x - width / 2:g}" y="{y - height / 2:g}"'
        self._parts.append(f'<rect {corner} width="{width}" height="{height}" rx="6"{_class(kind)}/>')
        lines = words.split("\n")
        for number, line in enumerate(lines):
            self.text(x, y + (number - (len(lines) - 1) / 2) * 18, line)

    def disc(self, x: float, y: float, words: str, kind: str = "") -> None:
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="20"{_class(kind)}/>')
        self.text(x, y, words)

    def line(self, way: str, kind: str = "") -> None:
        self._parts.append(f'<path d="{way}"{_class(kind)}/>')

    def arrow(self, way: str, end: tuple[float, float], turn: int = 0, kind: str = "") -> None:
        """A line with a tip at its end; `turn` 0 points right, 90 down."""
        self.line(way, kind)
        x, y = end
        self._parts.append(
            f'<path class="tip" d="M0 0 l-9 -4.5 v9 z" transform="translate({x:g} {y:g}) rotate({turn})"/>'
        )

    def svg(self) -> str:
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width} {height}" width="{width}" '
            f'role="img" aria-label="{escape(self._title)}">'
        )
        return "\n".join([head, f"<style>{STYLE}</style>", *self._parts, "</svg>", ""])


def tree() -> Picture:
    """Two versions that share what did not change."""
    it = Picture("tree", 740, 330, "Versions 7 and 8 of a run share every node that did not change")
    for x, name, kind in ((190, "version 7", ""), (530, "version 8", "new")):
        it.text(x, 20, name, "faint")
        it.box(x, 55, "state", kind, 90)
    for top, bottom in ((190, 80), (190, 360), (190, 240), (530, 660), (530, 360), (530, 240)):
        it.line(f"M{top} 72 C{top} 110 {bottom} 90 {bottom} 128")
    it.box(80, 145, "messages")
    it.box(240, 145, "plan")
    it.box(360, 145, "sources")
    it.box(660, 145, "messages", "new")
    for top, bottom in ((80, 80), (80, 200), (80, 320), (660, 200), (660, 80), (660, 560)):
        it.line(f"M{top} 162 C{top} 215 {bottom} 195 {bottom} 233")
    it.box(80, 250, "1 … 32")
    it.box(200, 250, "33 … 64")
    it.box(320, 250, "65")
    it.box(560, 250, "65, 66", "new")
    it.box(210, 308, "stored before", "", 130, 26)
    it.box(360, 308, "written by version 8", "new", 160, 26)
    return it


def timelines() -> Picture:
    """A rollback and a fork."""
    it = Picture(
        "timelines", 740, 300, "A rollback starts a new timeline in the run, a fork starts another run"
    )
    it.text(8, 24, "run “strategy”", "left faint")
    xs = (150, 250, 350, 450)
    for left, right in pairwise(xs):
        it.arrow(f"M{left + 20} 70 H{right - 28}", (right - 21, 70))
    for number, x in enumerate(xs, 1):
        it.disc(x, 70, str(number), "gone" if number > 2 else "")
    it.text(490, 70, "timeline 1: left, still readable", "left faint")
    it.arrow("M262 87 C290 150 310 150 320 150", (329, 150))
    it.disc(350, 150, "5", "new")
    it.arrow("M370 150 H422", (429, 150))
    it.disc(450, 150, "6", "new")
    it.text(490, 150, "timeline 2: after rollback(to=2)", "left faint")
    it.text(8, 250, "run “other”", "left faint")
    it.arrow("M250 91 C250 180 250 200 250 220", (250, 229), 90, "dashed")
    it.disc(250, 250, "1", "new")
    it.arrow("M270 250 H322", (329, 250))
    it.disc(350, 250, "2", "new")
    it.text(390, 250, "fork(“strategy@2”): numbers of its own", "left faint")
    return it


def commit() -> Picture:
    """A step from its draft to the disk."""
    it = Picture("commit", 740, 250, "A step from its draft to the disk")
    parts = (
        (70, "draft\nof the state", "plain"),
        (220, "fold:\nnew nodes only", "plain"),
        (375, "merge, if the\nhead moved on", "plain"),
        (530, "one pack\nwith result", "plain"),
        (675, "one\ntransaction", "new"),
    )
    for (x, words, kind), width in zip(parts, (110, 124, 124, 110, 106), strict=True):
        it.box(x, 80, words, kind, width, 56)
    for start, end in ((125, 158), (282, 313), (437, 475), (585, 622)):
        it.arrow(f"M{start} 80 H{end - 7}", (end, 80))
    it.text(70, 28, "the step works", "faint")
    it.text(375, 28, "in memory; nothing is visible yet", "faint")
    it.text(675, 28, "fsync", "faint")
    it.arrow("M70 108 V172", (70, 180), 90, "dashed")
    it.box(84, 200, "attempt failed:\ndraft is dropped", "gone", 150, 44)
    it.arrow("M675 108 V172", (675, 180), 90)
    it.box(650, 200, "a numbered version,\nfor good", "new", 160, 44)
    it.arrow("M640 108 C600 150 430 150 400 116", (394, 109), 225, "dashed")
    it.text(480, 166, "another wrote first: merge again", "faint")
    return it


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def main() -> None:
    """Write all pictures."""
    for picture in (tree(), timelines(), commit()):
        Path(__file__).with_name(f"{picture.name}.svg").write_text(picture.svg())


if __name__ == "__main__":
    main()
