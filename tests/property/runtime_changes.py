"""Changes that scripted steps make to a state, and merges of changes that branches make at once."""

from __future__ import annotations

from typing import Any

_MISSING: Any = object()


class Conflict(Exception):
    """Two branches have changed a place that has no reducer."""


def change(state: Any, op: list[Any]) -> None:
    """Change a state, plain or draft, as a step does."""
    if op[0] == "tally":
        tally(state, op)
        return
    what = op[2]
    if what[0] == "append":
        if "log" not in state:
            state["log"] = []
        state["log"].append(what[1])
    elif what[0] == "set":
        state[what[1]] = what[2]
    elif what[0] == "drop" and what[1] in state:
        del state[what[1]]
    if op[0] == "nest":
        state[f"nest {op[1]}"] = "done"


def tally(state: Any, op: list[Any]) -> None:
    """Write to a place that other branches write to as well."""
    _, label, place, amount = op
    if place in ("n", "total"):
        state[place] = state.get(place, 0) + amount
    elif place == "latest":
        state[place] = label
    elif place == "seen":
        state[place] = [*state.get(place, []), label]
    else:
        state[place] = {"score": amount, "by": label}


def better(base: Any, mine: Any, theirs: Any) -> Any:
    """A reducer: the higher score, or the one that was recorded first."""
    return mine if mine["score"] > theirs["score"] else theirs


def merge(state: Any, base: Any, own: Any, place: str) -> None:
    """Bring what a branch has made of a place into a state that others may have changed meanwhile."""
    was, mine, theirs = (each.get(place, _MISSING) for each in (base, own, state))
    if theirs == was:
        state[place] = mine
    elif place == "total":
        state[place] = theirs + mine - (0 if was is _MISSING else was)
    elif place == "latest":
        state[place] = mine
    elif place == "seen":
        known = [] if was is _MISSING else was
        state[place] = [*theirs, *(each for each in mine if each not in known)]
    elif place == "best":
        state[place] = better(was, mine, theirs)
    else:
        raise Conflict
