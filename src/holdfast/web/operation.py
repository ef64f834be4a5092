"""An operation of the API, declared once: the table serves from it and is described from it.

A handler is a plain function: it gets the service, the parts of its path, and, where it declares them, `query`,
`body` and `caller`. The types that it declares are what is checked on the way in and described in the document.

Invariant: an operation has a role, or says that it is public.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

F = TypeVar("F", bound=Callable[..., Any])

_PART = re.compile(r"\{(\w+)\}")
#: Bytes of a body, unless an operation says otherwise.
BODY = 1 << 20


class Role(IntEnum):
    """What a caller may do; each may do what those before it may."""

    PUBLIC = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class Attachment(NamedTuple):
    """A file as an answer: never shown by a browser, always saved."""

    name: str
    pieces: Iterator[bytes]
    media_type: str = "application/octet-stream"
    size: int | None = None


class Stream(NamedTuple):
    """Server-sent events as an answer."""

    chunks: AsyncIterator[bytes]


class Upload(NamedTuple):
    """A body that is taken as it comes, into a file."""

    #: Media types, the first of which is meant where the request does not say.
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
    #: Of a body that is no JSON.
    upload: Upload | None = None
    #: Bytes of a body.
    most: int = BODY
    answer: Any = None
    #: The status of an answer, where that is not always 200.
    status: Callable[[Any], int] | None = None
    #: Is the answer a task, which may still be under way?
    long: bool = False
    #: Does it change something, whatever its method?
    changes: bool = True
    wants_caller: bool = False
    #: Does it go on after the cursor in `Last-Event-ID`?
    wants_last: bool = False

    @property
    def name(self) -> str:
        """Its name in the document."""
        return self.handler.__name__

    @property
    def parts(self) -> list[str]:
        """The names of the variable parts of its path."""
        return _PART.findall(self.path)


class Table(list[Operation]):
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
        upload: Upload | None = None,
        most: int = BODY,
        long: bool = False,
        changes: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare a handler as an operation."""

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
