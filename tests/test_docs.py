"""The code in README and docs runs as it stands there, and the terminal shows what it is said to show.

All blocks of one page run in order and share their names, in an empty folder. A block after the comment
`<!-- no-run -->` is left out; one with `title="agent.py"` is written to that file first. In a `console` block each line
after a `$` is typed into a real terminal, and what follows must be what comes, but for times, sizes and hashes.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from terminal import Terminal

from holdfast import Holdfast

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

_FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<ticks>`{3,})(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^(?P=indent)(?P=ticks)[ ]*$",
    re.M | re.S,
)
_SKIP = re.compile(r"<!--\s*no-run\s*-->\s*$")
#: What is another every time.
_VARIES = re.compile(
    r"just now|\d+(\.\d+)? (µs|ms|s|min)( ago)?|\d+(\.\d+)? k?B\b|[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
)
_TITLE = re.compile(r'title="([\w.-]+)"')


class Block(NamedTuple):
    """A block of code, with the line at which it begins and the file that it is."""

    language: str
    line: int
    code: str
    file: str | None = None


def blocks(text: str) -> list[Block]:
    """The blocks on a page that are to be run or written."""
    found = []
    for match in _FENCE.finditer(text):
        title = _TITLE.search(match["rest"])
        if match["language"] not in ("python", "console") and title is None:
            continue
        if _SKIP.search(text, 0, match.start()) is None:
            indent = len(match["indent"])
            code = "".join(line[indent:] if line.strip() else "\n" for line in match["code"].splitlines(True))
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(Block(match["language"], line, code, title and title[1]))
    return found


def typed(block: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that follow it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def fits(wanted: list[str], screen: list[str]) -> bool:
    """Is a screen what a page says it is, but for times, sizes and hashes?"""
    return _steady(wanted) == _steady(screen)


def _steady(lines: list[str]) -> list[str]:
    return [re.sub(" +", " ", _VARIES.sub("…", line)).strip() for line in lines if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page.read_text()):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.code)
        if block.language == "console":
            _type(page, block, tmp_path)
        elif block.language == "python":
            # Empty lines first, so that a traceback names the line on the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), vars(module))
    for left_open in vars(module).values():
        # Its threads would go on for as long as the tests do.
        if isinstance(left_open, Holdfast):
            left_open.close()


def _type(page: Path, block: Block, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, wanted in typed(block.code):
        terminal = Terminal(command, cwd=folder, columns=100, program=["bash", "-c"], PATH=path)
        terminal.end()
        while wanted and not wanted[-1].strip():
            wanted.pop()
        if wanted and not fits(wanted, terminal.text.splitlines()):
            raise AssertionError(
                f"{page.name}, at line {block.line}: $ {command}\nshows:\n{terminal.text}\nnot:\n"
                + "\n".join(wanted)
            )


def test_blocks_are_found_and_left_out() -> None:
    page = """
```python
a = 1
```
<!-- no-run -->
```python
b = 2
```
```sh
c
```
```toml title="pyproject.toml"
e = 5
```
- a list
  ```python
  if a:
      d = 4
  ```
"""
    assert blocks(page) == [
        Block("python", 3, "a = 1\n"),
        Block("toml", 13, "e = 5\n", "pyproject.toml"),
        Block("python", 17, "if a:\n    d = 4\n"),
    ]
    assert blocks("no code") == []


def test_what_a_terminal_shows_is_compared() -> None:
    assert typed("$ a b\none\ntwo\n$ c\n") == [("a b", ["one", "two"]), ("c", [])]
    assert fits(["run  age       size", "a  just now   2 B"], ["run  age      size", "a  1.5 s ago  31 B"])
    assert not fits(["one", "two"], ["one", "three"])
    assert not fits(["one"], ["one", "two"])
