"""A state drawn as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.drawing import draw_tree
from holdfast.operator_view.text import display_width


def drawn(value: Any, **limits: int) -> list[str]:
    return [f"{line.guide}{line.name}|{line.value}" for line in draw_tree(value, **limits)]


def test_tree_of_a_state() -> None:
    state = {"plan": {"days": 3, "tasks": ["a" * 30, "b" * 30]}, "ok": True}
    assert drawn(state) == [
        "├─ plan|(2 items)",
        "│  ├─ days|3",
        "│  └─ tasks|(2 items)",
        f'│     ├─ [0]|"{"a" * 30}"',
        f'│     └─ [1]|"{"b" * 30}"',
        "└─ ok|true",
    ]


def test_tree_keeps_short_values_on_one_line() -> None:
    assert drawn({"a": {"b": [1, 2, {"c": None}]}}) == ["└─ a|{b: [1, 2, {c: null}]}"]


def test_tree_of_a_scalar() -> None:
    assert drawn("text") == ['|"text"']
    assert drawn({}) == ["|{}"]
    assert drawn(None) == ["|null"]


def test_tree_counts_entries_and_levels_beyond_the_limit() -> None:
    assert drawn({"list": [{"n": n} for n in range(100)]})[-1] == "   └─ |… 70 more"
    deep: Any = "x" * 100
    for _ in range(20):
        deep = {"a": deep}
    assert len(drawn(deep)) == 6


def test_tree_prints_many_numbers_on_one_line() -> None:
    (line,) = drawn({"vector": [0.5] * 1536}, width=60)
    assert line.endswith("… (1,536 items)")
    assert display_width(line.replace("|", "  ")) <= 60
    assert len(drawn({"vector": [0.5] * 30, "more": 1})) == 32


def test_tree_prints_keys_of_other_types() -> None:
    assert drawn({1: 2, "a\x1b[2J": 3, (1, 2): 4}) == ["├─ [1]|2", "├─ a\\e[2J|3", "└─ [(1, 2)]|4"]


def test_tree_reads_only_what_it_shows() -> None:
    class Endless(list[int]):
        def __len__(self) -> int:
            return 1 << 40

        def __iter__(self) -> Iterator[int]:
            yield from range(100)
            raise AssertionError("it was read to its end")

        def __bool__(self) -> bool:
            return True

    assert "more" in drawn(Endless())[-1]


trees: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=40), st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=60,
)


@given(trees, st.integers(60, 120))
def test_tree_lines_fit_and_every_branch_ends(tree: Any, width: int) -> None:
    lines = list(draw_tree(tree, width=width))
    for line in lines:
        assert "\n" not in line.guide + line.name + line.value
        assert display_width(line.guide) + display_width(line.name) + 2 + display_width(line.value) <= width
    if lines[0].guide:
        assert lines[-1].guide.startswith(("└", " ")), "nothing hangs below the last branch"
