"""Runs: list, details, versions, timelines and tags."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, cast

from msgspec import Meta

from holdfast.errors import CorruptVersion
from holdfast.history.version import Version
from holdfast.model.records import StatusFilter
from holdfast.operator_view.actions import pending_waits
from holdfast.operator_view.lookup import find_runs, parse_conditions
from holdfast.operator_view.records import (
    MovesView,
    QuestionView,
    RunView,
    SpendingView,
    TimelineView,
    VersionView,
    has_failed,
    moves_view,
    question_view,
    run_view,
    spending_view,
    timeline_view,
    version_view,
)
from holdfast.operator_view.text import as_json, parse_time
from holdfast.operator_view.truncate import result_value
from holdfast.web.operation import Limit, Name, Number, OperationTable, Query, Role, Tags, Text
from holdfast.web.service import Service

TABLE = OperationTable("runs")


class RunsQuery(Query):
    """Which runs."""

    status: Annotated[tuple[StatusFilter, ...], Meta(max_length=50)] = ()
    workflow: Name | None = None
    tag: Tags = ()
    since: Annotated[Text, Meta(description="`2h`, `3d` (ago), `2026-11-15`.")] | None = None
    meta: Annotated[Tags, Meta(description="Metadata of the run: `customer=7`.")] = ()
    search: Annotated[Text, Meta(description="Text in the id, the workflow, the step or a tag.")] = ""
    asking: Annotated[bool, Meta(description="Only runs with an open question.")] = False
    limit: Limit = 100
    after: Annotated[Name, Meta(description="The id of the last run of the previous page.")] | None = None


class RunPage(TypedDict):
    """Runs, newest first. `next` is the `after` of the next page; null on the last page."""

    runs: list[RunView]
    next: str | None


class RunDetailQuery(Query):
    """Whether the result is truncated."""

    cut: Annotated[bool, Meta(description="`result` truncated to nodes, as a state with `depth`.")] = False


class FullRunView(RunView, SpendingView, MovesView):
    """Run with its result, failure, waits, spending, parent and children. `totals` are the sums of tokens and costs."""

    result: Any
    failure: Any
    waits: list[str]
    questions: list[QuestionView]
    parent: str | None
    children: list[str]
    timelines: list[TimelineView]


class VersionsQuery(Query):
    """Which versions."""

    limit: Limit = 100
    before: Number | None = None
    timeline: Number | None = None
    step: Name | None = None
    tag: Name | None = None
    kind: Literal["initial", "step", "manual", "timed", "merge", "import", "final", "fork"] | None = None
    where: Annotated[Tags, Meta(description="Annotations: `model=gpt-4`, `cost>0.5`.")] = ()
    annotations: Annotated[bool, Meta(description="Include annotations (tokens, cost, …) and errors.")] = (
        False
    )


class VersionRow(VersionView, total=False):
    """Version in a list; with annotations and error if requested."""

    annotations: Any
    error: Any


class VersionPage(TypedDict):
    """Versions, newest first. `next` is the `before` of the next page; null on the last page."""

    run: str
    head: int
    versions: list[VersionRow]
    next: int | None


class TagView(TypedDict):
    """Tag, with the newest version that has it."""

    tag: str
    version: int
    step: str | None


@TABLE.add("GET", "/runs", Role.VIEWER)
def list_runs(service: Service, query: RunsQuery) -> RunPage:
    """List runs, newest first."""
    found = find_runs(
        service.hf,
        status=query.status,
        workflow=query.workflow,
        tags=query.tag,
        since=None if query.since is None else parse_time(query.since),
        meta=query.meta,
        search=query.search,
        asking=query.asking,
        limit=query.limit + 1,
        after=query.after,
    )
    page = found[: query.limit]
    return {
        "runs": [run_view(run) for run in page],
        "next": page[-1].id if len(found) > query.limit else None,
    }


@TABLE.add("GET", "/runs/{run}", Role.VIEWER)
def get_run(service: Service, run: str, query: RunDetailQuery) -> FullRunView:
    """Return a run. Its id may be shortened to a unique prefix. Its result may be large: `cut` truncates it."""
    hf = service.hf
    handle = hf.get(run, prefix=True)
    status = handle.status
    head = handle.head
    return {
        **run_view(hf.get(handle.id).summary),
        "result": result_value(head.result, cut=query.cut) if status == "completed" else None,
        "failure": as_json(handle.failure) if status == "failed" else None,
        "waits": pending_waits(handle)[0] if status == "suspended" else [],
        "questions": [question_view(prompt) for prompt in handle.questions()],
        "parent": handle.parent,
        "children": handle.children,
        **spending_view(handle),
        **moves_view(handle),
        "timelines": [timeline_view(line) for line in handle.history().timelines()],
    }


@TABLE.add("GET", "/runs/{run}/timelines", Role.VIEWER)
def list_timelines(service: Service, run: str) -> list[TimelineView]:
    """List the timelines of a run, oldest first."""
    return [
        timeline_view(line) for line in service.hf.history(service.hf.get(run, prefix=True).id).timelines()
    ]


@TABLE.add("GET", "/runs/{run}/tags", Role.VIEWER)
def list_tags(service: Service, run: str) -> list[TagView]:
    """List the tags of a run, each with the newest version that has it."""
    log = service.hf.history(service.hf.get(run, prefix=True).id)
    found: list[TagView] = []
    for name in service.hf.get(log.id).summary.tags:
        version = log.at(f":{name}")
        found.append({"tag": name, "version": version.number, "step": version.step})
    return found


@TABLE.add("GET", "/runs/{run}/versions", Role.VIEWER)
def list_versions(service: Service, run: str, query: VersionsQuery) -> VersionPage:
    """List the versions of a run, newest first, without their states."""
    log = service.hf.history(service.hf.get(run, prefix=True).id)
    found = log.versions(
        limit=query.limit + 1,
        before=query.before,
        timeline=query.timeline,
        step=query.step,
        tag=query.tag,
        kind=query.kind,
        where=parse_conditions(query.where),
    )
    page = found[: query.limit]
    return {
        "run": log.id,
        "head": log.head_number,
        "versions": [_listed(version, query.annotations) for version in page],
        "next": page[-1].number if len(found) > query.limit else None,
    }


def _listed(version: Version, annotations: bool) -> VersionRow:
    if not annotations or version.is_damaged:
        return cast(VersionRow, version_view(version))
    try:
        error = as_json(version.error) if has_failed(version) else None
        return {**version_view(version), "annotations": as_json(version.annotations), "error": error}
    except CorruptVersion:
        # Its row can be read, its pack cannot: the others are listed all the same.
        return cast(VersionRow, {**version_view(version), "damaged": True})
