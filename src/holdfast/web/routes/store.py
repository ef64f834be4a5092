"""Care for the store: what it holds, whether it is sound, what can go; and tasks."""

from __future__ import annotations

from typing import Annotated, TypedDict

from msgspec import Meta

from holdfast.checkup import checkup
from holdfast.desk.census import census
from holdfast.desk.records import pruned_record, report_record, run_record
from holdfast.desk.shapes import PrunedShown, ReportShown, RunShown
from holdfast.desk.words import length
from holdfast.errors import InvalidCall
from holdfast.model.retention import Retention
from holdfast.web.auth import Caller
from holdfast.web.fields import Body, Name, Wait
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service
from holdfast.web.tasks import Progress, Task, TaskShown

TABLE = Table("store")
#: Runs that are named as the largest.
_LARGEST = 100

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Length = Annotated[
    str, Meta(min_length=1, max_length=20, description="`90s`, `30min`, `12h`, `7d`, `4w`, `1y`.")
]


class Stats(TypedDict):
    """What the store holds: counts, bytes, runs by status, and the largest runs."""

    store: str
    runs: int
    versions: int
    events: int
    artifacts: int
    artifact_bytes: int
    pack_bytes: int
    file_bytes: int | None
    statuses: dict[str, int]
    largest: list[RunShown]


class FindingShown(TypedDict):
    """What a check found, and what to do about it."""

    check: str
    ok: bool
    what: str
    advice: str


class VerifyBody(Body):
    """One run; else the whole store."""

    run: Name | None = None
    wait: Wait = 0.0


class GcBody(Body):
    """What is younger than `grace` is left alone; `compact` gives space back to the system."""

    grace: Length = "1h"
    compact: bool = False
    wait: Wait = 0.0


class Gone(TypedDict):
    """Large values that went, and the size of the file after it."""

    artifacts: int
    bytes: int
    file_bytes: int | None


class ForgetBody(Body):
    """A version stays if any of the rules keeps it. With `dry_run`, which is the default, nothing goes."""

    runs: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    all: bool = False
    last: Count | None = None
    within: Length | None = None
    hourly: Count | None = None
    daily: Count | None = None
    weekly: Count | None = None
    dry_run: bool = True
    wait: Wait = 2.0


class Forgotten(TypedDict):
    """What goes, or would go, run by run."""

    dry_run: bool
    versions: int
    bytes: int
    runs: list[PrunedShown]


@TABLE.add("GET", "/stats", Role.VIEWER)
def get_stats(service: Service) -> Stats:
    """What the store holds, and how large it is."""
    stats = service.hf.stats()
    statuses, largest = census(service.hf, _LARGEST)
    return {
        "store": service.settings.store,
        "runs": stats.runs,
        "versions": stats.versions,
        "events": stats.events,
        "artifacts": stats.artifacts,
        "artifact_bytes": stats.artifact_bytes,
        "pack_bytes": stats.pack_bytes,
        "file_bytes": stats.file_bytes,
        "statuses": statuses,
        "largest": [run_record(run) for run in largest],
    }


@TABLE.add("GET", "/doctor", Role.VIEWER)
def get_checkup(service: Service) -> list[FindingShown]:
    """What could become a problem: interrupted runs, space, questions that wait, the linked SQLite."""
    return [
        {"check": each.check, "ok": each.ok, "what": each.what, "advice": each.advice}
        for each in checkup(service.hf, service.settings.where)
    ]


@TABLE.add("POST", "/verify", Role.VIEWER, long=True, changes=True)
def verify_store(service: Service, body: VerifyBody, caller: Caller) -> Task:
    """Check every version, every hash, every large value, and the database itself; or one run. Changes nothing.

    If one is under way, it is answered instead of another."""
    hf = service.hf
    run = None if body.run is None else hf.find(body.run)

    def work(progress: Progress) -> ReportShown:
        return report_record(hf.verify(progress) if run is None else hf.history(run).verify())

    return service.tasks.begin("verify", work, caller.role, run=run, alone=True)


@TABLE.add("POST", "/gc", Role.ADMIN, long=True)
def collect_garbage(service: Service, body: GcBody, caller: Caller) -> Task:
    """Remove large values that no version holds any more."""
    hf = service.hf
    grace = length(body.grace).total_seconds()

    def work(progress: Progress) -> Gone:
        progress(0, 1)
        found = hf.gc(grace=grace, compact=body.compact)
        progress(1, 1)
        return {"artifacts": found.artifacts, "bytes": found.bytes, "file_bytes": hf.stats().file_bytes}

    return service.tasks.begin("gc", work, caller.role, alone=True)


@TABLE.add("POST", "/forget", Role.ADMIN, long=True)
def forget_versions(service: Service, body: ForgetBody, caller: Caller) -> Task:
    """Remove versions that a policy does not keep, or, unless `dry_run` is false, only tell which."""
    hf = service.hf
    if body.all == bool(body.runs):
        raise InvalidCall("name runs, or say all")
    rules = {name: getattr(body, name) for name in ("last", "hourly", "daily", "weekly")}
    policy = Retention(**rules, within=None if body.within is None else length(body.within))
    wanted = list(dict.fromkeys(hf.find(run) for run in body.runs))

    def work(progress: Progress) -> Forgotten:
        runs = wanted or [run.id for run in hf.iter_runs()]
        plans: list[PrunedShown] = []
        for done, run in enumerate(runs, 1):
            plan = hf.history(run).prune(policy, dry_run=body.dry_run)
            if plan.versions or wanted:
                plans.append(pruned_record(run, plan))
            progress(done, len(runs))
        return {
            "dry_run": body.dry_run,
            "versions": sum(len(plan["forget"]) for plan in plans),
            "bytes": sum(plan["bytes"] for plan in plans),
            "runs": plans,
        }

    return service.tasks.begin("forget", work, caller.role)


@TABLE.add("GET", "/tasks", Role.VIEWER)
def list_tasks(service: Service) -> list[TaskShown]:
    """The tasks that are under way, and the last that ended; newest first."""
    return [task.record() for task in service.tasks.all()]


@TABLE.add("GET", "/tasks/{task}", Role.VIEWER)
def get_task(service: Service, task: str) -> TaskShown:
    """A task: how far it is, what it gave, what it failed with."""
    return service.tasks.get(task).record()
