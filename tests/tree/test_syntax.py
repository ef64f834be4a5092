"""syntax.parse works while the garbage collector parses, too."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator

import pytest

from holdfast.tree import path, syntax
from holdfast.workflow.definition import fingerprint


class Left:
    """What parses when it is collected, and leaves another, a few times."""

    left = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        ast.parse("a = 1")
        if Left.left:
            Left.left -= 1
            Left()


@pytest.fixture
def often() -> Iterator[None]:
    """Garbage is collected every few objects."""
    before = gc.get_threshold()
    gc.set_threshold(20, 1, 1)
    yield
    gc.set_threshold(*before)
    Left.left = 0


def many() -> list[int]:
    """What takes a while to parse."""
    return [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26]


@pytest.mark.usefixtures("often")
def test_parse_works_while_the_collector_parses() -> None:
    text = "[1, 2, 3]\n" * 100
    for _ in range(20):
        Left.left = 5
        Left()
        assert ast.dump(syntax.parse(text)).count("value=3") == 100


@pytest.mark.usefixtures("often")
def test_paths_and_fingerprints_are_parsed_while_the_collector_parses() -> None:
    numbers = tuple(range(300))
    same = fingerprint(many)
    for _ in range(20):
        Left.left = 5
        Left()
        assert path.parse(f"a[{numbers}]") == ["a", numbers]
        Left.left = 5
        Left()
        assert fingerprint(many) == same


def test_syntax_error_is_raised() -> None:
    with pytest.raises(SyntaxError):
        syntax.parse("a b")
