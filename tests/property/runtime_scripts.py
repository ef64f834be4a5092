"""Scripts of workflows, drawn: which operations there are is told in `runtime_oracle`."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

EVENTS = ["go", "stop"]
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, False, 0, 1.5, "x", [], {"a": [1, None]}])
KEYS = st.sampled_from(["k1", "k2", "k3"])
CHANGES = st.one_of(
    st.tuples(st.just("append"), VALUES),
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("drop"), KEYS),
).map(list)


@st.composite
def scripts(draw: st.DrawFn, *, kinds: tuple[str, ...], most: int, prefix: str = "") -> list[Any]:
    """Operations of some kinds, with labels that begin with a prefix."""
    found = []
    for number in range(draw(st.integers(1, most))):
        label = f"{prefix}{number}"
        found.append(_operation(draw, draw(st.sampled_from(kinds)), label))
    return found


_INNER = ("act", "act", "flaky", "value", "try act", "ask")
_PART = ("act", "act", "value", "look", "try act", "ask", "wait", "nest")
_ALL = (*_PART, "flaky", "nest", "pair", "part", "try nest", "try pair", "try part", "stop")


def _operation(draw: st.DrawFn, kind: str, label: str) -> list[Any]:
    if kind.startswith("try "):
        return ["try", _operation(draw, kind[4:], label)]
    if kind == "value":
        return ["value", draw(st.sampled_from(["now", "uuid4", "random"]))]
    if kind == "look":
        return ["look"]
    if kind in ("ask", "wait"):
        return [kind, draw(st.sampled_from(EVENTS))]
    if kind == "pair":
        apart = [["append", label], ["set", f"by {label}", label]]
        return ["pair", *(["act", f"{label}{side}", draw(st.sampled_from(apart)), side] for side in "ab")]
    if kind == "part":
        return ["part", draw(scripts(kinds=_PART, most=3, prefix=f"{label}."))]
    if kind == "nest":
        return ["nest", label, draw(CHANGES), draw(scripts(kinds=_INNER, most=3, prefix=f"{label}/"))]
    if kind == "stop":
        return ["stop", label, draw(CHANGES), draw(st.sampled_from(["pause", "pause", "cancel"]))]
    return [kind, label, draw(CHANGES), draw(VALUES)]


SCRIPTS = scripts(kinds=_ALL, most=6)


def labels(script: list[Any]) -> list[str]:
    """The steps of a script that can be told to fail or to crash."""
    found: list[str] = []
    for kind, *args in script:
        if kind in ("act", "flaky", "nest", "stop"):
            found.append(args[0])
        inner = {"try": args, "pair": args, "part": args[:1], "nest": args[2:]}.get(kind, [])
        found += labels(inner if kind in ("try", "pair") else [op for ops in inner for op in ops])
    return found
