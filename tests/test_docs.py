"""The code in README and docs runs as it stands there.

All blocks of one page run in order and share their names, in an empty folder. A block after the comment
`<!-- no-run -->` is left out.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]

_FENCE = re.compile(
    r"^(?P<indent>[ ]*)(?P<ticks>`{3,})python[^\n]*\n(?P<code>.*?)^(?P=indent)(?P=ticks)[ ]*$", re.M | re.S
)
_SKIP = re.compile(r"<!--\s*no-run\s*-->\s*$")


def blocks(text: str) -> list[tuple[int, str]]:
    """The blocks of Python on a page that are to be run, each with the line at which its code begins."""
    found = []
    for match in _FENCE.finditer(text):
        if _SKIP.search(text, 0, match.start()) is None:
            indent = len(match["indent"])
            code = "".join(line[indent:] if line.strip() else "\n" for line in match["code"].splitlines(True))
            found.append((text.count("\n", 0, match.start("code")) + 1, code))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, code in blocks(page.read_text()):
        # Empty lines first, so that a traceback names the line on the page.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), vars(module))


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
- a list
  ```python
  if a:
      d = 4
  ```
"""
    assert blocks(page) == [(3, "a = 1\n"), (14, "if a:\n    d = 4\n")]
    assert blocks("no code") == []
