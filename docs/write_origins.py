"""Write the tables "Claim by claim" of the pages in `docs/coming-from`: what each section of an original document
claims, as it holds in Holdfast, and the test that shows it.

    python docs/write_origins.py            write the tables
    python docs/write_origins.py --check    exit with 1 if a table is not current

A test without a docstring, one that asserts nothing and one that is always skipped show no claim: both commands refuse
them.

The tests are the source. A class of `tests/origins/test_NAME.py` is a section of the document, its docstring the
section's title; a test of the class is a claim, which the first paragraph of its docstring states. A page has the
lines

    <!-- claims: tests/origins/test_NAME.py -->
    <!-- end -->

and between the two is what this script writes.

Invariant: text outside the marked parts is never changed, and every test of `tests/origins` is in a table.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
#: Calls that fail if something does not hold, as an `assert` does.
_CHECKS = {"pytest.raises", "until"}
#: Marks with which a test says nothing. `skipif` depends on the machine.
_SKIPPED = {"skip", "xfail"}
_PART = re.compile(r"(?P<start><!-- claims: (?P<path>[\w/.-]+) -->\n).*?(?P<end><!-- end -->)", re.S)


def main(arguments: list[str]) -> int:
    """Write or check the tables; return the exit code."""
    written: set[Path] = set()
    stale: list[str] = []
    for path in sorted((DOCS / "coming-from").glob("*.md")):
        before = path.read_text()
        after = _PART.sub(lambda part: part["start"] + table(ROOT / part["path"]) + part["end"], before)
        written |= {ROOT / part["path"] for part in _PART.finditer(before)}
        if after == before:
            continue
        if "--check" in arguments:
            stale.append(f"{path.relative_to(ROOT)} is not current: run python docs/write_origins.py")
        else:
            path.write_text(after)
    for test in sorted(set((ROOT / "tests" / "origins").rglob("test_*.py")) - written):
        stale.append(f"{test.relative_to(ROOT)} is in no page: add its claims to a page of docs/coming-from")
    for line in stale:
        print(line, file=sys.stderr)
    return 1 if stale else 0


def table(test: Path) -> str:
    """Return the table of a module of tests."""
    if not test.is_file():
        raise SystemExit(f"{test.relative_to(ROOT)} does not exist: correct the name in the page")
    rows = "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in claims(test))
    head = f"Each row is a test of `{test.relative_to(ROOT)}`.\n\n| section | what holds | test |\n|---|---|---|\n"
    return f"\n{head}{rows}\n"


def claims(test: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the section, the claim and the name of each test of a module, in their order."""
    tree = ast.parse(test.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            raise SystemExit(f"{test.name}: {node.name} is in no class: put it into the class of its section")
        if not isinstance(node, ast.ClassDef) or not node.name.startswith("Test"):
            continue
        section = _stated(test, node)
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
                _check_shown(test, each)
                yield section, _stated(test, each), f"`{each.name}`"
                section = ""


def _stated(test: Path, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first paragraph of a docstring, on one line."""
    text = (ast.get_docstring(node) or "").partition("\n\n")[0]
    if not text:
        raise SystemExit(f"{test.name}: {node.name} has no docstring: state the section, or the claim")
    return " ".join(text.split())


def _check_shown(test: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Refuse a test that shows nothing."""
    marks = {
        part.attr
        for mark in node.decorator_list
        for part in ast.walk(mark)
        if isinstance(part, ast.Attribute)
    }
    if marks & _SKIPPED:
        raise SystemExit(f"{test.name}: {node.name} is skipped, or may fail: it shows no claim")
    called = {ast.unparse(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    if not called & _CHECKS and not any(isinstance(part, ast.Assert) for part in ast.walk(node)):
        raise SystemExit(f"{test.name}: {node.name} asserts nothing: it shows no claim")


def _cell(text: str) -> str:
    """Return a text as the content of a cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
