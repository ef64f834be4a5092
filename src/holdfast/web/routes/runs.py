"""Runs: the list, one of them, its versions, timelines and tags."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict, cast

from msgspec import Meta

from holdfast.desk.lookup import find_runs
from holdfast.desk.records import (
    has_failed,
    prompt_record,
    run_record,
    spending_record,
    timeline_record,
    version_record,
)
from holdfast.desk.shapes import PromptShown, RunShown, SpendingShown, TimelineShown, VersionShown
from holdfast.desk.standing import waits
from holdfast.desk.words import as_json, moment
from holdfast.history.version import Version
from holdfast.web.cutting import sent
from holdfast.web.fields import Limit, Name, Number, Query, Tags, Text
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service

TABLE = Table("runs")

Status = Literal[
    "queued",
    "running",
    "suspended",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "frozen",
    "interrupted",
    "kept",
]


class RunsQuery(Query):
    """Which runs."""

    status: Annotated[tuple[Status, ...], Meta(max_length=50)] = ()
    workflow: Name | None = None
    tag: Tags = ()
    since: Annotated[Text, Meta(description="`2h`, `3d` (ago), `2026-11-15`.")] | None = None
    search: Annotated[Text, Meta(description="Stands in the id, the workflow, the step or a tag.")] = ""
    asking: Annotated[bool, Meta(description="Only those that wait for somebody's answer.")] = False
    limit: Limit = 100
    after: Annotated[Name, Meta(description="The id of the last run of the page before.")] | None = None


class Runs(TypedDict):
    """Runs, newest first. `next` is what to pass as `after` for the next page; null if there is none."""

    runs: list[RunShown]
    next: str | None


class RunQuery(Query):
    """How much of what the run gave."""

    cut: Annotated[bool, Meta(description="`result` cut into nodes, as a state with `depth`.")] = False


class RunWhole(RunShown, SpendingShown):
    """A run with its result, failure, waits, spending, parent and children. `totals` are tokens and costs, added up."""

    result: Any
    failure: Any
    waits: list[str]
    prompts: list[PromptShown]
    parent: str | None
    children: list[str]
    timelines: list[TimelineShown]


class VersionsQuery(Query):
    """Which versions."""

    limit: Limit = 100
    before: Number | None = None
    timeline: Number | None = None
    step: Name | None = None
    tag: Name | None = None
    kind: Literal["initial", "step", "manual", "timed", "merge", "import", "final", "fork"] | None = None
    meta: Annotated[bool, Meta(description="With metadata (tokens, cost, …) and errors.")] = False


class VersionListed(VersionShown, total=False):
    """A version in a list; with metadata and error if that was asked for."""

    meta: Any
    error: Any


class Versions(TypedDict):
    """Versions, newest first. `next` is what to pass as `before` for the next page; null if there is none."""

    run: str
    head: int
    versions: list[VersionListed]
    next: int | None


class Tagged(TypedDict):
    """A tag and the newest version that has it."""

    tag: str
    version: int
    step: str | None


@TABLE.add("GET", "/runs", Role.VIEWER)
def list_runs(service: Service, query: RunsQuery) -> Runs:
    """List runs, newest first."""
    found = find_runs(
        service.hf,
        status=query.status,
        workflow=query.workflow,
        tags=query.tag,
        since=None if query.since is None else moment(query.since),
        search=query.search,
        asking=query.asking,
        limit=query.limit + 1,
        after=query.after,
    )
    page = found[: query.limit]
    return {
        "runs": [run_record(run) for run in page],
        "next": page[-1].id if len(found) > query.limit else None,
    }


@TABLE.add("GET", "/runs/{run}", Role.VIEWER)
def get_run(service: Service, run: str, query: RunQuery) -> RunWhole:
    """A run. Its id may be shortened to a unique beginning. What it gave may be large: `cut` shortens it."""
    hf = service.hf
    handle = hf.get(hf.find(run))
    status = handle.status
    head = handle.head
    return {
        **run_record(hf.summary(handle.id)),
        "result": sent(head.result, cut=query.cut) if status == "completed" else None,
        "failure": as_json(handle.failure) if status == "failed" else None,
        "waits": waits(handle)[0] if status == "suspended" else [],
        "prompts": [prompt_record(prompt) for prompt in handle.prompts()],
        "parent": handle.parent,
        "children": handle.children,
        **spending_record(handle),
        "timelines": [timeline_record(line) for line in handle.history().timelines()],
    }


@TABLE.add("GET", "/runs/{run}/timelines", Role.VIEWER)
def list_timelines(service: Service, run: str) -> list[TimelineShown]:
    """The timelines of a run, oldest first."""
    return [timeline_record(line) for line in service.hf.history(service.hf.find(run)).timelines()]


@TABLE.add("GET", "/runs/{run}/tags", Role.VIEWER)
def list_tags(service: Service, run: str) -> list[Tagged]:
    """The tags of a run, each with the newest version that has it."""
    log = service.hf.history(service.hf.find(run))
    found: list[Tagged] = []
    for name in service.hf.summary(log.id).tags:
        version = log.at(f":{name}")
        found.append({"tag": name, "version": version.number, "step": version.step})
    return found


@TABLE.add("GET", "/runs/{run}/versions", Role.VIEWER)
def list_versions(service: Service, run: str, query: VersionsQuery) -> Versions:
    """The versions of a run, newest first, without their states."""
    log = service.hf.history(service.hf.find(run))
    found = log.versions(
        limit=query.limit + 1,
        before=query.before,
        timeline=query.timeline,
        step=query.step,
        tag=query.tag,
        kind=query.kind,
    )
    page = found[: query.limit]
    return {
        "run": log.id,
        "head": log.head_number,
        "versions": [_listed(version, query.meta) for version in page],
        "next": page[-1].number if len(found) > query.limit else None,
    }


def _listed(version: Version, meta: bool) -> VersionListed:
    if not meta or version.is_damaged:
        return cast(VersionListed, version_record(version))
    error = as_json(version.error) if has_failed(version) else None
    return {**version_record(version), "meta": as_json(version.meta), "error": error}
