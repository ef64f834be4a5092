"""The code in README and docs runs as written, and console blocks show the real output.

All `python` blocks of a page run in order in one namespace, in an empty folder. A block after the comment
`<!-- no-run -->` is skipped. A block with `title="agent.py"` is written to that file first; written as `py` instead of
`python`, it is only written. In a `console` block, each line after a `$` is typed into a real terminal, and the lines
below it must be its output, except for times, sizes and hashes. The command line reports completed steps from another
thread, so these lines are compared separately from what the steps print.
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
#: Text that differs on every run.
_VARIES = re.compile(
    r"just now|\d+(\.\d+)? (µs|ms|s|min)( ago)?|\d+(\.\d+)? k?B\b|[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
)
#: A line that reports a step of a run.
_PROGRESS = re.compile(r"^  [✓✗↻?] ")
_TITLE = re.compile(r'title="([\w.-]+)"')


class Block(NamedTuple):
    """A block of code, its first line on the page, and the file that it is written to."""

    language: str
    line: int
    code: str
    file: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page to run or to write."""
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


def commands(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the output below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(expected: list[str], screen: list[str]) -> bool:
    """Return whether the screen is as expected, except for times, sizes and hashes."""
    return all(_normalise(expected, progress) == _normalise(screen, progress) for progress in (False, True))


def _normalise(lines: list[str], progress: bool) -> list[str]:
    lines = [line for line in lines if bool(_PROGRESS.match(line)) is progress]
    return [re.sub(" +", " ", _VARIES.sub("…", line)).strip() for line in lines if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page.read_text()):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.code)
        if block.language == "console":
            _check_console(page, block, tmp_path)
        elif block.language == "python":
            # Empty lines first, so that a traceback has the line numbers of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), vars(module))
    for value in vars(module).values():
        # The threads of an open store would run until the tests end.
        if isinstance(value, Holdfast):
            value.close()


def _check_console(page: Path, block: Block, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, expected in commands(block.code):
        terminal = Terminal(command, cwd=folder, columns=100, program=["bash", "-c"], PATH=path)
        terminal.end()
        while expected and not expected[-1].strip():
            expected.pop()
        if expected and not matches(expected, terminal.text.splitlines()):
            raise AssertionError(
                f"{page.name}, line {block.line}: $ {command}\nshows:\n{terminal.text}\ninstead of:\n"
                + "\n".join(expected)
            )


def test_blocks_are_found_or_skipped() -> None:
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
```py title="only_written.py"
f = 6
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
        Block("py", 16, "f = 6\n", "only_written.py"),
        Block("python", 20, "if a:\n    d = 4\n"),
    ]
    assert blocks("no code") == []


def test_terminal_output_is_compared() -> None:
    assert commands("$ a b\none\ntwo\n$ c\n") == [("a b", ["one", "two"]), ("c", [])]
    assert matches(["run  age       size", "a  just now   2 B"], ["run  age      size", "a  1.5 s ago  31 B"])
    assert not matches(["one", "two"], ["one", "three"])
    assert not matches(["one"], ["one", "two"])
    assert matches(["printed", "  ✓ a  2 ms", "  ✓ b"], ["  ✓ a  1 ms", "  ✓ b", "printed"])
    assert not matches(["  ✓ a", "  ✓ b"], ["  ✓ b", "  ✓ a"])


def test_readme_links_resolve_on_a_package_index() -> None:
    """A package index shows the README alone: relative links and pictures would lead nowhere."""
    prose = _FENCE.sub("", (ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)\s]+)|\bsrc=\S+", prose)
    assert targets
    assert [target for target in targets if not target.startswith("https://")] == []


def test_readme_names_existing_files() -> None:
    named = re.findall(r"`((?:docs|examples)/[\w./-]*|[A-Z_]+\.md)`", (ROOT / "README.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tutorial_builds_the_agent_of_the_readme() -> None:
    readme, *_ = blocks((ROOT / "README.md").read_text())
    tutorial = [block.code for block in blocks((ROOT / "docs" / "tutorial.md").read_text())]
    assert readme.file == "agent.py"
    assert readme.code in tutorial


def test_decisions_are_short_records_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text()
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    for path in records:
        text = path.read_text()
        title = text.splitlines()[0].removeprefix(f"# {path.name[:4]} ")
        assert f"| {path.name[:4]} | [{title}]({path.name}) |" in index
        assert re.findall("^## (.*)", text, re.M) == ["Context", "Decision", "Consequence"]
        assert 10 <= len(text.splitlines()) <= 25


def test_architecture_names_existing_modules() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "src" / "holdfast"
    named = re.findall(r"`((?:\w+/)+\w+\.py|(?:\w+/)+)`", text)
    assert len(named) > 40
    assert [name for name in named if not (package / name).exists() and not (ROOT / name).exists()] == []
    folders = [path.parent.relative_to(package) for path in package.glob("*/**/__init__.py")]
    assert [str(folder) for folder in folders if f"`{folder}/`" not in text] == []
