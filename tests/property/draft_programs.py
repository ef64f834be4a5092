"""Operations on a state that is a draft, or plain Python: the same for both, by methods, by loops and by C code."""

from __future__ import annotations

import bisect
import copy
import dataclasses
import heapq
import itertools
import operator
from collections import deque
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import holdfast


@holdfast.register
@dataclasses.dataclass
class Profile:
    """A leaf that can change."""

    name: str
    notes: list[Any] = dataclasses.field(default_factory=list)


#: Equal ones differ in type: a change from one to the other is a change.
NUMBERS = st.sampled_from([0, 1, 2, 7, -3, True, False, 1.0, 0.0, -0.0, 2.5, 10**30])
TEXTS = st.sampled_from(["", "a", "b", "a longer text"])
SCALARS = st.one_of(NUMBERS, TEXTS, st.none())
RECORDS = st.fixed_dictionaries(
    {"n": NUMBERS, "text": TEXTS}, optional={"parts": st.lists(st.builds(dict, k=NUMBERS), max_size=3)}
)
SIZES = st.sampled_from([0, 1, 2, 5, 31, 32, 33, 40, 64, 65, 100, 200])


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    """A state with lists and dicts of all sizes, nested ones, and leaves that can change."""
    few = draw(st.lists(RECORDS, min_size=1, max_size=4))
    numbers = draw(st.lists(NUMBERS, min_size=1, max_size=6))
    size = draw(SIZES)
    return {
        "heap": sorted(itertools.islice(itertools.cycle(numbers), draw(SIZES))),
        "records": [copy.deepcopy(record) for record in itertools.islice(itertools.cycle(few), size)],
        "wide": {f"k{at}": copy.deepcopy(few[at % len(few)]) for at in range(draw(SIZES))},
        "tree": draw(
            st.dictionaries(TEXTS, st.dictionaries(TEXTS, st.lists(SCALARS, max_size=3)), max_size=3)
        ),
        "rows": draw(st.lists(st.lists(NUMBERS, max_size=3), max_size=40)),
        "pairs": [(at, {"k": number}) for at, number in enumerate(numbers)],
        "seen": set(draw(st.lists(st.integers(0, 9), max_size=3))),
        "queue": deque(numbers, maxlen=5),
        "raw": bytearray(b"abc"),
        "profile": Profile("p", [{"a": 1}]),
        "profiles": [Profile(str(at)) for at in range(draw(st.integers(0, 3)))],
        "n": 0,
    }


def _set(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return None


def _loop(records: Any, value: Any) -> Any:
    for record in records:
        record["n"] = value
    return None


def _unpack(records: Any, value: Any) -> None:
    first, *rest = records
    first["n"] = value
    for record in rest[-2:]:
        record["unpacked"] = value


def _match(state: Any, value: Any) -> None:
    match state:
        case {"records": [{"n": _} as first, *_], "tree": {**tree}}:
            _set(first, "matched", value)
            for inner in tree.values():
                _set(inner, "matched", [value])


def _twice(records: Any, value: Any) -> None:
    record: dict[str, Any] = {"n": value, "parts": [{"k": value}]}
    records.append(record)
    records.append(record)
    record["text"] = "in both"


def _alias(state: Any, value: Any) -> None:
    state["alias"] = state["records"][0]
    state["alias"]["aliased"] = value
    assert state["records"][0] is state["alias"]


def _move(records: Any, value: Any) -> None:
    record = records.pop(0)
    record["moved"] = value
    records.append(record)


def _heap_of_lists(rows: Any, value: Any) -> None:
    heapq.heapify(rows)
    row = heapq.heappop(rows)
    row.append(value)
    heapq.heappush(rows, row)
    heapq.heappush(rows[0], value)


def _repeat(records: Any, value: Any) -> None:
    records *= 2
    records[0]["repeated"] = value


def _while_looping(records: Any, value: Any) -> None:
    for at, record in enumerate(records):
        record["at"] = at
        if at < 3:
            records.append({"n": value})


def _first(records: Any, value: Any) -> None:
    for record in records:
        record["first"] = value
        break


OPERATIONS: dict[str, Callable[[Any, int, Any], Any]] = {
    # C code, past the methods
    "heappush": lambda s, i, v: heapq.heappush(s["heap"], v),
    "heappop": lambda s, i, v: heapq.heappop(s["heap"]),
    "heapify": lambda s, i, v: heapq.heapify(s["heap"]),
    "heapreplace": lambda s, i, v: heapq.heapreplace(s["heap"], v),
    "heappushpop": lambda s, i, v: heapq.heappushpop(s["heap"], v),
    "list.append": lambda s, i, v: list.append(s["heap"], v),
    "list.__setitem__": lambda s, i, v: list.__setitem__(s["heap"], i, v),
    "list.insert": lambda s, i, v: list.insert(s["heap"], i, v),
    "list.sort": lambda s, i, v: list.sort(s["heap"]),
    "list.reverse": lambda s, i, v: list.reverse(s["heap"]),
    "list.pop": lambda s, i, v: list.pop(s["heap"], i),
    "list.clear": lambda s, i, v: list.clear(s["heap"]),
    "list.append record": lambda s, i, v: list.append(s["records"], {"n": v}),
    "list.reverse records": lambda s, i, v: list.reverse(s["records"]),
    "list.__delitem__": lambda s, i, v: list.__delitem__(s["records"], i),
    "dict.__setitem__": lambda s, i, v: dict.__setitem__(s, "n", v),
    "dict.__setitem__ new": lambda s, i, v: dict.__setitem__(s["wide"], f"new{i}", {"n": v}),
    "dict.__setitem__ text": lambda s, i, v: dict.__setitem__(s["records"][i], "text", f"by C {v}"),
    "dict.update": lambda s, i, v: dict.update(s["tree"], {"c": {"d": [v]}}),
    "dict.pop": lambda s, i, v: dict.pop(s["wide"], f"k{i}"),
    "dict.__delitem__ in a loop": lambda s, i, v: [dict.pop(r, "text", None) for r in s["records"]][:0],
    "dict.popitem": lambda s, i, v: dict.popitem(s["wide"])[0],
    "insort": lambda s, i, v: bisect.insort(s["heap"], v),
    "operator.setitem": lambda s, i, v: operator.setitem(s["heap"], i, v),
    "iadd": lambda s, i, v: s["heap"].__iadd__([v]) and None,
    "heap of lists": lambda s, i, v: _heap_of_lists(s["rows"], v),
    "heap of tuples": lambda s, i, v: _set(heapq.heappop(s["pairs"])[1], "k", v),
    # Loops and other ways to read
    "loop": lambda s, i, v: _loop(s["records"], v),
    "reversed": lambda s, i, v: _loop(reversed(s["records"]), v),
    "sorted": lambda s, i, v: _loop(sorted(s["records"], key=lambda r: r["text"])[:2], v),
    "slice": lambda s, i, v: _loop(s["records"][i : i + 3], v),
    "comprehension": lambda s, i, v: _loop([r for r in s["records"] if r["n"] == v], None),
    "enumerate": lambda s, i, v: [_set(r, "i", at) for at, r in enumerate(s["records"])],
    "zip": lambda s, i, v: [_set(r, "z", row) for r, row in zip(s["records"], s["heap"], strict=False)],
    "min": lambda s, i, v: _set(min(s["records"], key=lambda r: r["n"]), "least", v),
    "next": lambda s, i, v: _set(next(iter(s["records"])), "n", v),
    "unpack": lambda s, i, v: _unpack(s["records"], v),
    "match": lambda s, i, v: _match(s, v),
    "values": lambda s, i, v: _loop(s["wide"].values(), v),
    "items": lambda s, i, v: [inner.update(x=[key]) for key, inner in s["tree"].items()],
    "nested loops": lambda s, i, v: [_loop(r.get("parts", ()), v) for r in s["records"]][:0],
    "dict copy": lambda s, i, v: _loop(list(dict(s["wide"]).values())[:2], v),
    "dict unpack": lambda s, i, v: _loop(list({**s["wide"]}.values())[:2], v),
    "dict or": lambda s, i, v: _loop(list((s["wide"] | {"o": {}}).values())[:2], v),
    "list plus": lambda s, i, v: _loop((s["records"] + [{}])[:2], v),
    "plus list": lambda s, i, v: _loop(([{}] + s["records"])[:2], v),
    "list times": lambda s, i, v: _loop((s["records"] * 2)[-2:], v),
    "copy": lambda s, i, v: _loop(copy.copy(s["records"])[:1], v),
    "deepcopy": lambda s, i, v: _loop(copy.deepcopy(s["records"])[:1], v),
    "get": lambda s, i, v: s["wide"].get(f"k{i}", {}).update(got=v),
    "identity": lambda s, i, v: s["records"][i] is s["records"][i] is list(s["records"])[i],
    "contains": lambda s, i, v: v in s["heap"],
    "index": lambda s, i, v: s["records"].index({"n": v, "text": "a"}),
    "while looping": lambda s, i, v: _while_looping(s["records"], v),
    "first of a loop": lambda s, i, v: _first(s["records"], v),
    # Methods
    "set": lambda s, i, v: _set(s["records"][i], "n", v),
    "replace": lambda s, i, v: _set(s["records"], i, {"n": v}),
    "replace number": lambda s, i, v: _set(s["heap"], i, v),
    "set slice": lambda s, i, v: _set(s["records"], slice(i, i + 2), [{"n": v}]),
    "append": lambda s, i, v: s["records"].append({"n": v, "text": ""}),
    "twice": lambda s, i, v: _twice(s["records"], v),
    "alias": lambda s, i, v: _alias(s, v),
    "move": lambda s, i, v: _move(s["records"], v),
    "repeat": lambda s, i, v: _repeat(s["records"], v) if len(s["records"]) < 100 else None,
    "insert": lambda s, i, v: s["records"].insert(i, {"n": v}),
    "pop": lambda s, i, v: s["records"].pop(i)["n"],
    "remove": lambda s, i, v: s["heap"].remove(v),
    "sort": lambda s, i, v: s["records"].sort(key=lambda r: r.get("text", "")),
    "reverse": lambda s, i, v: s["records"].reverse(),
    "delete": lambda s, i, v: s["records"].__delitem__(slice(i, i + 2)),
    "clear": lambda s, i, v: s["tree"].clear(),
    "setdefault": lambda s, i, v: s["tree"].setdefault("new", {}).setdefault("list", []).append(v),
    "dict pop": lambda s, i, v: s["wide"].pop(f"k{i}", {}).get("n"),
    "put back": lambda s, i, v: _set(s["wide"], f"k{i}", s["wide"].pop(f"k{i}")),
    "popitem": lambda s, i, v: s["wide"].popitem()[0],
    "update": lambda s, i, v: s["wide"].update({f"k{i}": {"n": v}, "u": {"n": v}}),
    "ior": lambda s, i, v: s["wide"].__ior__({f"k{i}": {"n": v}}) and None,
    "count": lambda s, i, v: _set(s, "n", s["n"] + 1),
    "rows": lambda s, i, v: [row.append(v) for row in s["rows"]],
    "tuples": lambda s, i, v: [_set(inner, "k", v) for _, inner in s["pairs"]],
    # Leaves that change in place
    "set.add": lambda s, i, v: s["seen"].add(i),
    "deque.append": lambda s, i, v: s["queue"].append(v),
    "bytearray": lambda s, i, v: s["raw"].append(i),
    "dataclass": lambda s, i, v: setattr(s["profile"], "name", str(v)),
    "dataclass list": lambda s, i, v: s["profile"].notes.append({"v": v}),
    "dataclasses": lambda s, i, v: [each.notes.append(v) for each in s["profiles"]],
}

PROGRAMS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 40), NUMBERS), min_size=1, max_size=8
)


def apply(state: Any, program: list[tuple[str, int, Any]]) -> list[Any]:
    """Return the result of each operation, or its error."""
    given: list[Any] = []
    for name, index, value in program:
        try:
            given.append(copy.deepcopy(OPERATIONS[name](state, index, value)))
        except (IndexError, KeyError, ValueError, TypeError, StopIteration) as error:
            given.append(type(error))
    return given
