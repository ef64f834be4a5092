"""Runs, versions, changes, prompts … as records for programs: what `--json` prints and what the API answers.

Invariant: a record is what its type says, so that a description of the types describes what is sent.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.desk.shapes import (
    BlameShown,
    ChangeShown,
    EventShown,
    FactsShown,
    ImplementationShown,
    PairShown,
    PreviewShown,
    PromptShown,
    PrunedShown,
    QueueShown,
    ReportShown,
    RunShown,
    SpendingShown,
    TimelineShown,
    VersionShown,
)
from holdfast.desk.words import as_json
from holdfast.history.blame import Blame
from holdfast.history.compare import Diff, StepPair
from holdfast.history.implementation import Implementation
from holdfast.history.version import Version
from holdfast.model.public import Event, Prompt, Pruned, QueueSummary, Report, RunSummary, Timeline
from holdfast.model.records import STATUSES
from holdfast.runtime.preview import Preview
from holdfast.runtime.run import Run
from holdfast.tree import path as paths
from holdfast.tree.diff import Change

#: How a run may stand, as an operator thinks of it.
SEEN = (*STATUSES, "interrupted", "kept")


def status_of(run: RunSummary | Run) -> str:
    """The status as an operator thinks of it: a run whose process is gone was interrupted; a history by hand is kept,
    and whether somebody is at it, only they know."""
    status = run.status
    if status != "running":
        return status
    if run.workflow is None:
        return "kept"
    return status if run.alive else "interrupted"


def run_record(run: RunSummary) -> RunShown:
    """A run as a record."""
    return {
        "id": run.id,
        "status": status_of(run),
        "workflow": run.workflow,
        "step": run.step,
        "head": run.head,
        "versions": run.versions,
        "timeline": run.timeline,
        "created": run.created,
        "updated": run.updated,
        "size": run.size,
        "tags": list(run.tags),
        "origin": run.origin,
        "alive": run.alive,
    }


def version_record(version: Version) -> VersionShown:
    """The summary of a version as a record."""
    return {
        "run": version.run,
        "version": version.number,
        "parent": version.parent,
        "merged": version.detail.get("merged"),
        "timeline": version.timeline,
        "kind": version.kind,
        "status": version.status,
        "step": version.step,
        "address": version.address,
        "attempt": version.attempt,
        "failed": has_failed(version),
        "damaged": version.is_damaged,
        "steps": version.steps,
        "at": version.at,
        "took": version.took,
        "size": version.size,
        "tags": list(version.tags),
        "pinned": version.pinned,
        "note": version.note,
        "actor": version.actor,
        "hash": version.hash,
    }


def has_failed(version: Version) -> bool:
    """Is it the version of a step, or of a run, that failed?"""
    return "failed" in version.detail or version.status == "failed"


def facts_record(version: Version) -> FactsShown:
    """Arguments, result, error and metadata of a version."""
    return {
        "implementation": implementation_record(version.implementation),
        "arguments": as_json(version.arguments),
        "result": as_json(version.result),
        "error": as_json(version.error),
        "meta": as_json(version.meta),
    }


def whole_record(version: Version) -> dict[str, Any]:
    """A version with its arguments, result, error, metadata and state."""
    return {**version_record(version), **facts_record(version), "state": as_json(version.state)}


def spending_record(run: Run) -> SpendingShown:
    """What a run may spend and has spent, as a record."""
    limits = run.limits
    return {
        "totals": as_json(run.totals),
        "limits": None if limits is None else msgspec.to_builtins(limits),
        "spent": msgspec.to_builtins(run.spent),
    }


def spending_lines(run: Run) -> list[str]:
    """What a run may spend and has spent, a line for each limit."""
    limits = run.limits
    if limits is None:
        return []
    spent = msgspec.to_builtins(run.spent)
    return [
        f"{name}: {spent[name]:,.6g} of {most:,.6g}" for name, most in msgspec.to_builtins(limits).items()
    ]


def event_record(event: Event) -> EventShown:
    """An entry of a journal as a record."""
    return {
        "cursor": event.cursor,
        "run": event.run,
        "kind": event.kind,
        "at": event.at,
        "version": event.version,
        "step": event.step,
        "data": as_json(event.data),
    }


def timeline_record(line: Timeline) -> TimelineShown:
    """A timeline as a record."""
    return {
        "number": line.number,
        "parent": line.parent,
        "at": line.at,
        "reason": line.reason,
        "actor": line.actor,
    }


def prompt_record(prompt: Prompt) -> PromptShown:
    """A question as a record."""
    found: PromptShown = {
        "id": prompt.id,
        "run": prompt.run,
        "address": prompt.address,
        "question": prompt.question,
        "opened": prompt.opened,
        "due": prompt.due,
        "schema": prompt.schema,
    }
    if prompt.details:
        found["details"] = prompt.details
    if prompt.answered:
        found["answered"], found["actor"] = prompt.answered, prompt.actor
        found["answer"] = as_json(prompt.answer)
    return found


def change_record(change: Change, of: str = "state") -> ChangeShown:
    """A change as a record; `of` says whether it is of the state or of what is said about the version."""
    return {
        "kind": change.kind,
        "of": of,
        "path": change.where,
        "source": None if change.source is None else paths.show(change.source),
        "old": as_json(change.old),
        "new": as_json(change.new),
        "summary": change.summary,
    }


def pair_record(pair: StepPair) -> PairShown:
    """Two steps beside each other as a record."""
    version = pair.left or pair.right
    assert version is not None
    return {
        "step": pair.step,
        "address": version.address,
        "kind": version.kind,
        "a": None if pair.left is None else pair.left.number,
        "b": None if pair.right is None else pair.right.number,
        "same": pair.same,
        "a_code": implementation_record(pair.left_code),
        "b_code": implementation_record(pair.right_code),
        "same_code": pair.same_code,
    }


def implementation_record(found: Implementation | None) -> ImplementationShown | None:
    """The code that ran as a step, as a record."""
    if found is None:
        return None
    return {"name": found.name, "code": found.code, "overridden": found.overridden}


def blame_record(part: Blame, *, value: bool = True) -> BlameShown:
    """Who changed a part of a state, as a record."""
    found: BlameShown = {
        "path": part.path,
        "version": part.version.number,
        "ref": name_of(part.version),
        "step": part.version.step,
        "address": part.version.address,
        "at": part.version.at,
    }
    if value:
        found["value"] = as_json(part.value)
    return found


def preview_record(preview: Preview) -> PreviewShown:
    """What would be done, as a record."""
    return {
        "run": preview.run,
        "status": preview.status,
        "workflow": preview.workflow,
        "version": preview.version,
        "left": list(preview.left),
        "passed": list(preview.passed),
        "again": list(preview.again),
        "undo": list(preview.undo),
        "cancelled": list(preview.cancelled),
        "rewound": list(preview.rewound),
        "waits": list(preview.waits),
        "known": preview.known,
    }


def report_record(report: Report) -> ReportShown:
    """What `verify` found, as a record."""
    return {
        "ok": report.ok,
        "runs": report.runs,
        "versions": report.versions,
        "artifacts": report.artifacts,
        "problems": [
            {"run": each.run, "version": each.version, "what": each.what} for each in report.problems
        ],
    }


def pruned_record(run: str, plan: Pruned) -> PrunedShown:
    """What a policy does to a run, as a record."""
    return {"run": run, "forget": list(plan.versions), "keep": list(plan.kept), "bytes": plan.bytes}


def queue_record(queue: QueueSummary) -> QueueShown:
    """A queue as a record."""
    return {
        "queue": queue.name,
        "runs": queue.runs,
        "concurrency": queue.concurrency,
        "rate": queue.rate,
        "per": queue.per if queue.rate is not None else None,
    }


def changes_of(found: Diff) -> list[tuple[Change, str]]:
    """All changes of a diff, each with what it is of."""
    return [
        *((change, "state") for change in found.changes),
        *((change, "version") for change in found.facts),
    ]


def name_of(version: Version) -> str:
    """A version as it is written in a reference."""
    return f"{version.run}@{version.number}"
