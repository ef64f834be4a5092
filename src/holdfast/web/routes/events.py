"""What happened, and what happens."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

from holdfast.desk.records import event_record
from holdfast.desk.shapes import EventShown
from holdfast.web.fields import Cursor, Limit, Name, Query
from holdfast.web.live import Kinds, Wanted
from holdfast.web.operation import Role, Stream, Table
from holdfast.web.service import Service

TABLE = Table("events")

Patterns = Annotated[
    tuple[Name, ...],
    Meta(max_length=50, description="Patterns such as `run.*`, 1,000 characters together."),
]


class EventsQuery(Query):
    """Which entries of the journal."""

    run: Name | None = None
    kind: Patterns = ()
    after: Cursor = 0
    limit: Limit = 1000


class Events(TypedDict):
    """Entries of the journal, oldest first. `cursor` is where to read on; `more` tells whether to do so at once."""

    events: list[EventShown]
    cursor: int
    more: bool


class StreamQuery(Query):
    """What to listen to."""

    run: Name | None = None
    kind: Patterns = ()
    after: Cursor | None = None


@TABLE.add("GET", "/events", Role.VIEWER)
def list_events(service: Service, query: EventsQuery) -> Events:
    """What happened to a run, or in the whole store, oldest first."""
    hf = service.hf
    kinds = Kinds(query.kind)
    if query.run is None:
        page = hf.events(after=query.after, limit=query.limit)
    else:
        page = hf.history(hf.find(query.run)).events(after=query.after, limit=query.limit)
    return {
        "events": [event_record(event) for event in page if kinds.has([event.kind])],
        "cursor": page[-1].cursor if page else query.after,
        "more": len(page) == query.limit,
    }


@TABLE.add("GET", "/events/stream", Role.VIEWER)
def stream_events(service: Service, query: StreamQuery, last_event_id: int | None = None) -> Stream:
    """What happens, as it happens: server-sent events.

    Goes on after the cursor in `Last-Event-ID`, else in `after`, else from now. The data of an event is an entry of
    the journal, its id the entry's cursor; what has no id (progress, a step that begins) passes by and is not
    repeated. First comes an event named `ready` with the cursor; `reset` says that the cursor is not of this store,
    and to load anew."""
    run = None if query.run is None else service.hf.find(query.run)
    after = query.after if last_event_id is None else last_event_id
    return Stream(service.hub.follow(Wanted(Kinds(query.kind), run), after))
