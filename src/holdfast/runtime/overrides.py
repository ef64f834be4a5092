"""Functions that take the place of steps in one run.

Their names are in the run's record, so that a process that lacks the functions does not run the steps' own code.

Invariant: a run with recorded overrides is executed with a function for each of them, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import InvalidCall, OverridesMissing
from holdfast.runtime.definition import implementation, step_named

Overrides = Mapping[str, Callable[..., Any]]
#: As a caller gives them: None is for the step's own function.
Given = Mapping[str, Callable[..., Any] | None]


def check_overrides(given: Given | None) -> Given | None:
    """Return the functions behind what a caller gives, or raise `InvalidCall`."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(each is None or callable(each) for each in given.values()):
        raise InvalidCall("overrides maps names of steps to functions, or to None for the step's own")
    for name in given:
        if step_named(name) is None:
            raise InvalidCall(f"overrides names {name!r:.60}, which is not a step that this process knows")
    return {name: getattr(getattr(each, "holdfast", None), "function", each) for name, each in given.items()}


def merged(recorded: Mapping[str, Any], given: Given | None, known: Overrides) -> tuple[Overrides, list[str]]:
    """Return the overrides of a run: those recorded, of which this process knows functions, with those given; and the
    names of those whose functions are missing. An empty mapping clears all."""
    if given is not None and not given:
        return {}, []
    functions = {name: known[name] for name in recorded if name in known}
    given = given or {}
    functions.update({name: each for name, each in given.items() if each is not None})
    for name, each in given.items():
        if each is None:
            functions.pop(name, None)
    return functions, [name for name in recorded if name not in functions and name not in given]


def settled(run_id: str, recorded: Mapping[str, Any], given: Given | None, known: Overrides) -> Overrides:
    """Return the functions with which a run is to be executed, or raise `OverridesMissing`."""
    functions, missing = merged(recorded, given, known)
    if missing:
        shown = ", ".join(f"{name} ({recorded[name]})" for name in missing)
        raise OverridesMissing(
            f"run {run_id!r} runs other functions in the place of steps, which this process does not know: {shown}; "
            "resume it with overrides={name: function, …}, or with overrides={} (--clear-overrides) to run the steps' "
            "own code",
            run=run_id,
            steps=missing,
        )
    return functions


def described(functions: Given) -> dict[str, str]:
    """Return overrides as the run's record keeps them."""
    return {name: " ".join(implementation(each)) for name, each in functions.items() if each is not None}
