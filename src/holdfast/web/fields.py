"""What parameters and bodies are made of: one type for each kind of text or number that several operations take."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.runtime.limits import Limits

#: No number in JSON is larger, so that every reader gets it as it was written.
_EXACT = (1 << 53) - 1

Limit = Annotated[int, Meta(ge=1, le=1000, description="So many at most.")]
Cursor = Annotated[int, Meta(ge=0, le=_EXACT, description="Only what comes after this cursor.")]
Number = Annotated[int, Meta(ge=1, le=_EXACT)]
Offset = Annotated[int, Meta(ge=0, le=_EXACT)]
Ref = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1000,
        description="A version: `RUN@12`, `RUN~2`, `RUN:tag`; `RUN` is its head.",
    ),
]
Path = Annotated[
    str, Meta(max_length=10_000, description='A part of the state: `plan.tasks[3]`, `["any key"]`.')
]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Tags = Annotated[tuple[Name, ...], Meta(max_length=50)]
Text = Annotated[str, Meta(max_length=10_000)]
Actor = Annotated[
    str,
    Meta(
        max_length=500,
        description="For whom you do it. Kept in the journal as claimed_actor; the actor is your token's name.",
    ),
]
Wait = Annotated[
    float,
    Meta(ge=0, le=30, description="Seconds to wait for the end; then the task is answered as it stands."),
]


class SpendingLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a run may spend, its children included. Those that are given replace those that it has."""

    cost: Annotated[float, Meta(ge=0, lt=1e12)] | None = None
    tokens: Annotated[int, Meta(ge=0, lt=10**12)] | None = None
    steps: Annotated[int, Meta(ge=0, lt=10**12)] | None = None
    seconds: Annotated[float, Meta(ge=0, lt=1e12)] | None = None

    def limits(self) -> Limits:
        """The same for the engine."""
        return Limits(**msgspec.to_builtins(self))


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of an operation."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of an operation."""
