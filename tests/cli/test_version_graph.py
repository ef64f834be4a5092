"""Timelines drawn as lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.drawing import GraphNode, GraphRow, draw_graph


def drawing(*points: tuple[int, tuple[int, ...]], head: int | None = None) -> str:
    rows = draw_graph([GraphNode(number, parents) for number, parents in points], head)
    return "\n".join(f"{row.text.rstrip():8}{row.number or ''}".rstrip() for row in rows)


def test_graph_of_one_timeline_is_one_lane() -> None:
    assert drawing((3, (2,)), (2, (1,)), (1, ()), head=3) == "●       3\n○       2\n○       1"


def test_graph_draws_an_abandoned_timeline_in_a_second_lane() -> None:
    found = drawing((4, (2,)), (3, (2,)), (2, (1,)), (1, ()), head=4)
    assert found == "●       4\n│ ○     3\n├─╯\n○       2\n○       1"


def test_graph_joins_timelines_at_their_common_version() -> None:
    found = drawing((4, (1,)), (3, (1,)), (2, (1,)), (1, ()))
    assert found == "○       4\n│ ○     3\n│ │ ○   2\n├─┴─╯\n○       1"


def test_graph_of_a_merge_opens_a_lane() -> None:
    found = drawing((4, (3, 2)), (3, (1,)), (2, (1,)), (1, ()))
    assert found == "○       4\n├─╮\n○ │     3\n│ ○     2\n├─╯\n○       1"


def test_graph_of_a_merge_uses_an_existing_lane() -> None:
    found = drawing((4, (2,)), (3, (1, 2)), (2, (1,)), (1, ()))
    assert found == "○       4\n│ ○     3\n├─┤\n○ │     2\n├─╯\n○       1"


def test_graph_lines_continue_below_the_list() -> None:
    """Else 7 would look like the parent of 8."""
    assert drawing((8, (2,)), (7, (6,)), (6, (3,)), head=8) == "●       8\n│ ○     7\n│ ○     6"


def test_graph_shows_a_gap_for_a_pruned_parent() -> None:
    assert drawing((9, (8,)), (5, (4,)), (4, ())) == "○       9\n┆\n○       5\n○       4"


def test_graph_of_no_versions_is_empty() -> None:
    assert list(draw_graph([])) == []


@st.composite
def histories(pick: st.DrawFn) -> list[GraphNode]:
    """Versions that follow earlier ones, merge some, and of which some may be forgotten or below the list."""
    points = [GraphNode(1, ())]
    for number in range(2, pick(st.integers(1, 25)) + 1):
        parent = pick(st.one_of(st.just(number - 1), st.integers(1, number - 1)))
        merged = pick(st.one_of(st.none(), st.integers(1, number - 1)))
        more = () if merged is None or merged == parent else (merged,)
        points.append(GraphNode(number, (parent, *more)))
    gone = pick(st.sets(st.integers(1, len(points)), max_size=4))
    kept = [point for point in reversed(points) if point.number not in gone]
    return kept[: pick(st.integers(0, len(kept)))]


@given(histories())
def test_graph_lines_lead_from_versions_to_parents(points: list[GraphNode]) -> None:
    rows = list(draw_graph(points))
    listed = {point.number for point in points}
    assert [row.number for row in rows if row.number is not None] == [point.number for point in points]
    for point in points:
        wanted = {parent for parent in point.parents if parent in listed}
        assert reached(rows, point.number) - {None} == wanted, drawing(*points)


@given(histories())
def test_graph_row_has_one_dot_and_no_trailing_blanks(points: list[GraphNode]) -> None:
    for row in draw_graph(points, points[0].number if points else None):
        assert sum(row.text.count(sign) for sign in "○●") == (row.number is not None)
        assert row.cells[-1][0].strip()


def reached(rows: list[GraphRow], number: int) -> set[int | None]:
    """The dots that one finds by following the lines down from a version's dot; None for beyond the drawing."""
    start = next(place for place, row in enumerate(rows) if row.number == number)
    lane = next(lane for lane, (sign, _) in enumerate(rows[start].cells) if sign[0] in "○●")
    found: set[int | None] = set()
    walkers = {(start + 1, lane)}
    while walkers:
        place, lane = walkers.pop()
        if place == len(rows):
            found.add(None)
            continue
        signs = [sign[0] for sign, _ in rows[place].cells]
        assert lane < len(signs), "a line ends in nothing"
        sign = signs[lane]
        if sign in "○●":
            found.add(rows[place].number)
        elif sign == "┆":
            found.add(None)
        elif sign in "╯┴╰":
            walkers.add((place + 1, next(at for at, each in enumerate(signs) if each in "├┤")))
        else:
            assert sign in "│┼├┤", f"{sign!r} cannot be entered from above"
            walkers.add((place + 1, lane))
            opens = not set(signs) & set("╯┴╰")
            if sign in "├┤" and opens and place == start + 1:
                walkers |= {
                    (place + 1, at) for at, each in enumerate(signs) if each in "╮╭┬├┤" and at != lane
                }
    return found
