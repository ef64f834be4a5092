"""Operations of the API, each declared once for serving and for describing it, and the types of their parameters.

A handler is a plain function: it gets the service, the parts of its path, and, if it declares them, `query`, `body` and
`caller`. Requests are checked against the declared types, and the OpenAPI document describes them.

Invariant: every operation has a role, or is declared public.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from holdfast.execution.limits import Limits

#: The largest integer that every JSON reader represents exactly.
_EXACT = (1 << 53) - 1

Limit = Annotated[int, Meta(ge=1, le=1000, description="The maximum number of items.")]
Cursor = Annotated[int, Meta(ge=0, le=_EXACT, description="Only entries after this cursor.")]
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
        description="The person you act for. Recorded in the journal as claimed_actor; the actor is your token's name.",
    ),
]
Wait = Annotated[
    float,
    Meta(ge=0, le=30, description="Seconds to wait for the task to end; then its current state is returned."),
]


class SpendingLimits(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a run, its children included. Each limit that is given replaces the current one."""

    cost: Annotated[float, Meta(ge=0, lt=1e12)] | None = None
    tokens: Annotated[int, Meta(ge=0, lt=10**12)] | None = None
    steps: Annotated[int, Meta(ge=0, lt=10**12)] | None = None
    seconds: Annotated[float, Meta(ge=0, lt=1e12)] | None = None

    def limits(self) -> Limits:
        """Return the limits as the engine takes them."""
        return Limits(**msgspec.to_builtins(self))


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Query parameters of an operation."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """JSON body of an operation."""


F = TypeVar("F", bound=Callable[..., Any])

_PART = re.compile(r"\{(\w+)\}")
#: Default limit of a body, in bytes.
BODY = 1 << 20


class Role(IntEnum):
    """Role of a caller; each includes the roles before it."""

    PUBLIC = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class Attachment(NamedTuple):
    """File as a response: browsers save it, and never display it."""

    name: str
    pieces: Iterator[bytes]
    media_type: str = "application/octet-stream"
    size: int | None = None


class Stream(NamedTuple):
    """Server-sent events as a response."""

    chunks: AsyncIterator[bytes]


class UploadBody(NamedTuple):
    """Body that is not parsed but written to a file."""

    #: Accepted media types.
    media_types: tuple[str, ...] = ("application/octet-stream",)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    role: Role
    handler: Callable[..., Any]
    summary: str
    description: str
    subject: str
    query: type | None = None
    body: type | None = None
    #: For a body that is not JSON.
    upload: UploadBody | None = None
    #: Limit of the body in bytes.
    most: int = BODY
    answer: Any = None
    #: Returns the status of a response, if it is not always 200.
    status: Callable[[Any], int] | None = None
    #: Whether it returns a task, which may still be running.
    long: bool = False
    #: Whether it changes something, whatever its method.
    changes: bool = True
    wants_caller: bool = False
    #: Whether it takes the cursor in `Last-Event-ID`.
    wants_last: bool = False

    @property
    def name(self) -> str:
        """Return its name in the OpenAPI document."""
        return self.handler.__name__

    @property
    def parts(self) -> list[str]:
        """Return the names of the variable parts of its path."""
        return _PART.findall(self.path)


class OperationTable(list[Operation]):
    """Operations of one subject."""

    def __init__(
        self, subject: str, root: str = "/api/v1", status: Callable[[Any], int] | None = None
    ) -> None:
        super().__init__()
        self.status = status
        self.subject = subject
        self.root = root

    def add(
        self,
        method: str,
        path: str,
        role: Role,
        *,
        upload: UploadBody | None = None,
        most: int = BODY,
        long: bool = False,
        changes: bool | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that declares a handler as an operation."""

        def declare(handler: F) -> F:
            hints = get_type_hints(handler, include_extras=True)
            text = inspect.cleandoc(handler.__doc__ or "")
            summary, _, rest = text.partition("\n\n")
            self.append(
                Operation(
                    method=method,
                    path=self.root + path,
                    role=role,
                    handler=handler,
                    summary=" ".join(summary.split()),
                    description=" ".join(rest.split()),
                    subject=self.subject,
                    query=hints.get("query"),
                    body=hints.get("body") if upload is None else None,
                    upload=upload,
                    most=most,
                    answer=hints["return"],
                    status=self.status,
                    long=long,
                    changes=method != "GET" if changes is None else changes,
                    wants_caller="caller" in hints,
                    wants_last="last_event_id" in hints,
                )
            )
            return handler

        return declare
