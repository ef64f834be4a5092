"""Events: pages of the journal, and the live stream."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

from holdfast.operator_view.records import EventView, event_view
from holdfast.web.live import EventFilter, KindFilter
from holdfast.web.operation import Cursor, Limit, Name, OperationTable, Query, Role, Stream
from holdfast.web.service import Service

TABLE = OperationTable("events")

Patterns = Annotated[
    tuple[Name, ...],
    Meta(max_length=50, description="Patterns such as `run.*`, at most 1,000 characters together."),
]


class EventsQuery(Query):
    """Which entries of the journal."""

    run: Name | None = None
    kind: Patterns = ()
    after: Cursor = 0
    limit: Limit = 1000


class EventPage(TypedDict):
    """Entries of the journal, oldest first. `cursor` is the `after` of the next page; `more` says whether there is
    one."""

    events: list[EventView]
    cursor: int
    more: bool


class StreamQuery(Query):
    """Which events, from which cursor on."""

    run: Name | None = None
    kind: Patterns = ()
    after: Cursor | None = None


@TABLE.add("GET", "/events", Role.VIEWER)
def list_events(service: Service, query: EventsQuery) -> EventPage:
    """List the events of a run, or of the whole store, oldest first."""
    hf = service.hf
    kinds = KindFilter(query.kind)
    if query.run is None:
        page = hf.events(after=query.after, limit=query.limit)
    else:
        page = hf.history(hf.get(query.run, prefix=True).id).events(after=query.after, limit=query.limit)
    return {
        "events": [event_view(event) for event in page if kinds.matches([event.kind])],
        "cursor": page[-1].cursor if page else query.after,
        "more": len(page) == query.limit,
    }


@TABLE.add("GET", "/events/stream", Role.VIEWER)
def stream_events(service: Service, query: StreamQuery, last_event_id: int | None = None) -> Stream:
    """Stream events as they happen: server-sent events.

    Starts after the cursor in `Last-Event-ID`, else in `after`, else from now. The data of an event is an entry of the
    journal, its id the cursor of the entry; events without an id (progress, a started step) are not stored or
    repeated. The first event is named `ready` and has the cursor; `reset` says that the cursor is not from this store,
    and that the client must reload."""
    run = None if query.run is None else service.hf.get(query.run, prefix=True).id
    after = query.after if last_event_id is None else last_event_id
    return Stream(service.broadcaster.follow(EventFilter(KindFilter(query.kind), run), after))
