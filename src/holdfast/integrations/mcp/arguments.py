"""What tools take, each argument with what it is for: their schemas are made of this, and calls are checked by it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec


def about(text: str, **more: Any) -> Any:
    """What an argument is for, and what it may be."""
    return msgspec.Meta(description=text, **more)


_Limit = Annotated[int, about("So many at most.", ge=1, le=100)]
_Offset = Annotated[int, about("Leave out so many from the beginning: for the next page.", ge=0)]
Ref = Annotated[str, about("A version: RUN (its head), RUN@12, RUN@head, RUN~2 or RUN:tag.")]
RunId = Annotated[str, about("The id of a run, or its beginning.")]
_Path = Annotated[str, about('A part of the state, such as plan.tasks[3] or ["any key"].')]
_Status = Literal[
    "queued",
    "running",
    "interrupted",
    "suspended",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "frozen",
    "kept",
]


class Takes(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The arguments of a tool. One that it does not have is refused: it may be a misspelt `confirm`."""


class Runs(Takes):
    """Of `runs`."""

    status: Annotated[list[_Status], about("Only runs of these.")] = []
    workflow: Annotated[str | None, about("Only runs of this workflow.")] = None
    tags: Annotated[list[str], about("Only runs with versions of these tags.")] = []
    since: Annotated[str | None, about("Only runs changed since: 2h, 3d, 2026-11-15.")] = None
    search: Annotated[str, about("Only runs with this text in their id, workflow, step or tags.")] = ""
    limit: _Limit = 20
    after: Annotated[str | None, about("The id of a page's last run: for the next page.")] = None


class Log(Takes):
    """Of `log`."""

    run: RunId
    limit: _Limit = 20
    before: Annotated[int, about("Only versions before this number: for the next page.", ge=1)] | None = None
    step: Annotated[str | None, about("Only versions of this step.")] = None
    tag: Annotated[str | None, about("Only versions with this tag.")] = None
    timeline: Annotated[int, about("Only versions of this timeline.", ge=1)] | None = None


class Show(Takes):
    """Of `show`."""

    ref: Ref
    path: Annotated[str, about('Only this part, such as plan.tasks[3] or ["any key"]. Empty is all.')] = ""
    part: Annotated[
        Literal["all", "state", "arguments", "result", "meta", "error", "failure"],
        about(
            "What path and offset are of: the state; what the step returned; what shaped it (model, tokens, …); its "
            "error; what the run failed with, at its head. all is a summary of everything; with a path, the state."
        ),
    ] = "all"
    offset: Annotated[
        int, about("Begin with this item of a list, entry of a dict, character of a text.", ge=0)
    ] = 0


class Diff(Takes):
    """Of `diff`."""

    a: Ref
    b: Annotated[
        str | None,
        about(
            "The other version; @4, ~1 and :tag are of A's run. Without it, it is the head; if A is that, what A "
            "itself changed."
        ),
    ] = None
    path: Annotated[str | None, about("Only what changed below this part of the state.")] = None
    limit: _Limit = 50
    offset: _Offset = 0


class Blame(Takes):
    """Of `blame`."""

    ref: Ref
    path: _Path = ""
    depth: Annotated[int, about("Levels below the path.", ge=0, le=20)] = 1
    limit: _Limit = 50
    offset: _Offset = 0


class Prompts(Takes):
    """Of `prompts`."""

    run: Annotated[str | None, about("Only those of this run.")] = None
    answered: Annotated[bool, about("Those that have been answered instead.")] = False
    limit: _Limit = 20
    offset: _Offset = 0
