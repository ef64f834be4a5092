"""Scripts of workflows, drawn: `runtime_oracle` lists the operations."""

from __future__ import annotations

from typing import Any

from expected_runs import Code, Script
from hypothesis import strategies as st

EVENTS = ["go", "stop"]
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, False, 0, 1.5, "x", [], {"a": [1, None]}])
KEYS = st.sampled_from(["k1", "k2", "k3"])
CHANGES = st.one_of(
    st.tuples(st.just("append"), VALUES),
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("drop"), KEYS),
).map(list)
#: Places that parallel branches write: the first has no reducer.
PLACES = ["n", "total", "latest", "seen", "best"]


@st.composite
def scripts(draw: st.DrawFn, *, kinds: tuple[str, ...], most: int, prefix: str = "") -> list[Any]:
    """Operations of some kinds, with labels that begin with a prefix."""
    found = []
    for number in range(draw(st.integers(1, most))):
        label = f"{prefix}{number}"
        found.append(operation(draw, draw(st.sampled_from(kinds)), label))
    return found


_INNER = ("act", "act", "flaky", "value", "try act", "ask")
_PART = ("act", "act", "value", "look", "try act", "ask", "wait", "nest")
_BESIDE = ("count", "count", "try count")
_ALL = (*_PART, "flaky", "nest", "pair", "part", *_BESIDE, "try nest", "try pair", "try part", "stop")
_TASKS = (*_PART, "flaky", "part", *_BESIDE, *_BESIDE, "try part", "stop")
#: Without steps in steps: a limit that stops one of those is another matter.
_LIMITED_PART = ("act", "act", "try act", "ask")
_LIMITED = ("act", "flaky", "try act", "ask", "wait", "look", "pair", "limited part", *_BESIDE)
#: What a later version of the code may have more.
INSERTED = ("act", "act", "flaky", "ask", "value", "limited part", "count")


def operation(draw: st.DrawFn, kind: str, label: str) -> list[Any]:
    """Draw an operation."""
    if kind.startswith("try "):
        return ["try", operation(draw, kind[4:], label)]
    if kind == "value":
        return ["value", draw(st.sampled_from(["now", "uuid4", "random"]))]
    if kind == "look":
        return ["look"]
    if kind in ("ask", "wait"):
        return [kind, draw(st.sampled_from(EVENTS))]
    if kind == "pair":
        # Two writes of one place conflict, equal values too: each side has its own.
        apart = {side: [["append", label], ["set", f"by {label}{side}", label]] for side in "ab"}
        return [
            "pair",
            *(["act", f"{label}{side}", draw(st.sampled_from(apart[side])), side] for side in "ab"),
        ]
    if kind == "count":
        place, one_by_one = draw(st.sampled_from(PLACES)), draw(st.booleans())
        amounts = draw(st.lists(st.integers(1, 9), min_size=2, max_size=3))
        return [
            "count", one_by_one, *(["tally", f"{label}.{at}", place, each] for at, each in enumerate(amounts))
        ]  # fmt: skip
    if kind in ("part", "limited part"):
        kinds = _PART if kind == "part" else _LIMITED_PART
        return ["part", draw(scripts(kinds=kinds, most=3, prefix=f"{label}."))]
    if kind == "nest":
        return ["nest", label, draw(CHANGES), draw(scripts(kinds=_INNER, most=3, prefix=f"{label}/"))]
    if kind == "stop":
        return ["stop", label, draw(CHANGES), draw(st.sampled_from(["pause", "pause", "cancel"]))]
    return [kind, label, draw(CHANGES), draw(VALUES)]


SCRIPTS = scripts(kinds=_ALL, most=6)
TASKS = scripts(kinds=_TASKS, most=6)
LIMITED = scripts(kinds=_LIMITED, most=6)


def add_program(code: Code, name: str, script: Script) -> None:
    """Make a script that was drawn a program of the code, and the scripts of its children others."""
    code.scripts[name] = [with_programs(code, f"{name}.{number}", op) for number, op in enumerate(script)]


def with_programs(code: Code, name: str, op: list[Any]) -> list[Any]:
    """An operation that names the program of the child that it calls."""
    if op[0] in ("try", "patched"):
        return [*op[:-1], with_programs(code, name, op[-1])]
    if op[0] != "part":
        return op
    add_program(code, name, op[1])
    return ["part", name]


def labels(code: Code, script: Script) -> list[str]:
    """The steps of a script that can be made to fail or to crash."""
    found: list[str] = []
    for kind, *args in script:
        if kind in ("act", "flaky", "nest", "stop", "tally"):
            found.append(args[0])
        inner: Script = {
            "try": args,
            "pair": args,
            "count": args[1:],
            "patched": args[1:],
            "part": code.scripts[args[0]] if kind == "part" else [],
            "nest": args[2] if kind == "nest" else [],
        }.get(kind, [])
        found += labels(code, inner)
    return found
