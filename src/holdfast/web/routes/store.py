"""The store: statistics, checks, garbage collection, pruning; and tasks."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

from holdfast.doctor import run_checks
from holdfast.errors import InvalidCall
from holdfast.model.retention import Retention
from holdfast.operator_view.lookup import store_overview
from holdfast.operator_view.records import (
    PrunedView,
    ReportView,
    RunView,
    pruned_view,
    report_view,
    run_view,
    view_of,
)
from holdfast.operator_view.text import parse_duration
from holdfast.web.auth import Caller
from holdfast.web.operation import Body, Name, OperationTable, Role, Wait
from holdfast.web.service import BackgroundTask, Progress, Service, TaskView

TABLE = OperationTable("store")
#: Number of the largest runs in the statistics.
_LARGEST = 100

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Length = Annotated[
    str, Meta(min_length=1, max_length=20, description="`90s`, `30min`, `12h`, `7d`, `4w`, `1y`.")
]


class StatsView(TypedDict):
    """Contents of the store: counts, bytes, runs by status, and the largest runs."""

    store: str
    runs: int
    versions: int
    events: int
    artifacts: int
    artifact_bytes: int
    pack_bytes: int
    file_bytes: int | None
    statuses: dict[str, int]
    largest: list[RunView]


class FindingView(TypedDict):
    """Finding of a check, and what to do about it."""

    check: str
    ok: bool
    what: str
    advice: str


class VerifyBody(Body):
    """One run, or the whole store."""

    run: Name | None = None
    wait: Wait = 0.0


class GcBody(Body):
    """Artifacts younger than `grace` are kept; `compact` returns free space to the operating system."""

    grace: Length = "1h"
    compact: bool = False
    wait: Wait = 0.0


class GarbageCollected(TypedDict):
    """Removed artifacts, and the size of the file afterwards."""

    artifacts: int
    bytes: int
    file_bytes: int | None


class PruneBody(Body):
    """Retention rules: a version is kept if any rule keeps it. With `dry_run`, the default, nothing is removed."""

    runs: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    all: bool = False
    last: Count | None = None
    within: Length | None = None
    hourly: Count | None = None
    daily: Count | None = None
    weekly: Count | None = None
    dry_run: bool = True
    wait: Wait = 2.0


class PruneView(TypedDict):
    """Versions that are, or would be, removed, by run."""

    dry_run: bool
    versions: int
    bytes: int
    runs: list[PrunedView]


@TABLE.add("GET", "/stats", Role.VIEWER)
def get_stats(service: Service) -> StatsView:
    """Return the contents and the size of the store."""
    stats = service.hf.stats()
    statuses, largest = store_overview(service.hf, _LARGEST)
    return view_of(
        StatsView,
        stats,
        store=service.settings.store,
        statuses=statuses,
        largest=[run_view(run) for run in largest],
    )


@TABLE.add("GET", "/doctor", Role.VIEWER)
def get_checkup(service: Service) -> list[FindingView]:
    """Check for likely problems: interrupted runs, space, old questions, the linked SQLite."""
    return [view_of(FindingView, each) for each in run_checks(service.hf, service.settings.where)]


@TABLE.add("POST", "/verify", Role.VIEWER, long=True, changes=True)
def verify_store(service: Service, body: VerifyBody, caller: Caller) -> BackgroundTask:
    """Verify every version, hash and artifact, and the database itself; or one run. Changes nothing.

    If a verification is running, it is returned instead of a new one."""
    hf = service.hf
    run = None if body.run is None else hf.get(body.run, prefix=True).id

    def work(progress: Progress) -> ReportView:
        return report_view(hf.verify(progress) if run is None else hf.history(run).verify())

    return service.tasks.start("verify", work, caller.role, run=run, alone=True)


@TABLE.add("POST", "/gc", Role.ADMIN, long=True)
def collect_garbage(service: Service, body: GcBody, caller: Caller) -> BackgroundTask:
    """Remove artifacts that no version refers to."""
    hf = service.hf
    grace = parse_duration(body.grace).total_seconds()

    def work(progress: Progress) -> GarbageCollected:
        progress(0, 1)
        found = hf.gc(grace=grace, compact=body.compact)
        progress(1, 1)
        return view_of(GarbageCollected, found, file_bytes=hf.stats().file_bytes)

    return service.tasks.start("gc", work, caller.role, alone=True)


@TABLE.add("POST", "/prune", Role.ADMIN, long=True)
def prune_versions(service: Service, body: PruneBody, caller: Caller) -> BackgroundTask:
    """Remove versions that a policy does not keep; unless `dry_run` is false, only list them."""
    hf = service.hf
    if body.all == bool(body.runs):
        raise InvalidCall("give either runs, or all")
    rules = {name: getattr(body, name) for name in ("last", "hourly", "daily", "weekly")}
    policy = Retention(**rules, within=None if body.within is None else parse_duration(body.within))
    wanted = list(dict.fromkeys(hf.get(run, prefix=True).id for run in body.runs))

    def work(progress: Progress) -> PruneView:
        runs = wanted or [run.id for run in hf.iter_runs()]
        plans: list[PrunedView] = []
        for done, run in enumerate(runs, 1):
            plan = hf.history(run).prune(policy, dry_run=body.dry_run)
            if plan.versions or wanted:
                plans.append(pruned_view(run, plan))
            progress(done, len(runs))
        return {
            "dry_run": body.dry_run,
            "versions": sum(len(plan["prune"]) for plan in plans),
            "bytes": sum(plan["bytes"] for plan in plans),
            "runs": plans,
        }

    return service.tasks.start("prune", work, caller.role)


@TABLE.add("GET", "/tasks", Role.VIEWER)
def list_tasks(service: Service) -> list[TaskView]:
    """List the running tasks and the most recent ended ones, newest first."""
    return [task.record() for task in service.tasks.all()]


@TABLE.add("GET", "/tasks/{task}", Role.VIEWER)
def get_task(service: Service, task: str) -> TaskView:
    """Return a task: its progress, and its result or error."""
    return service.tasks.get(task).record()
