"""Noticing that a workflow's code is not the code that a run was executed with before."""

from __future__ import annotations

from holdfast.errors import CodeChanged
from holdfast.history.reader import Reader
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.runtime.definition import ACCEPT, CHANGED, Workflow, is_bytecode
from holdfast.runtime.log import warn
from holdfast.runtime.waits import Facts, facts_of
from holdfast.tree.codec import decode


def compare(
    run: RunRecord,
    workflow: Workflow,
    reader: Reader,
    facts: Facts,
    changed: str,
    *,
    warns: bool = True,
    head: VersionRecord | None = None,
    otherwise: str | None = None,
) -> None:
    """Warn of changed code, or refuse it; without `warns`, only the latter. `head` is the run's head, if it is at
    hand; `otherwise` is what a caller can do who wants to go on."""
    known = facts.code
    if not known:
        known = _told(head) if head is not None and head.kind == "initial" else _first(run, reader)
    if not known or known == workflow.code or changed in ("allow", ACCEPT):
        return
    message = (
        f"the code of workflow {workflow.name!r} has changed since run {run.id!r} was last executed ({known} then, "
        f"{workflow.code} now)"
    )
    if is_bytecode(known) and is_bytecode(workflow.code):
        message += (
            "; its source is not available, so that another version of Python looks like changed code, too: "
            "@workflow(version=…) names the code instead"
        )
    if changed == "refuse":
        raise CodeChanged(
            f"{message}: bring the old code back, or {otherwise or f'say changed={CHANGED[0]!r}'}",
            run=run.id,
            recorded=known,
            now=workflow.code,
        )
    if warns:
        warn("%s: recorded steps are passed as long as their addresses and arguments fit", message)


def _first(run: RunRecord, reader: Reader) -> str:
    """The fingerprint that the run's first version tells; of a fork, what its origin was last executed with."""
    while run.origin is not None:
        reader = reader.origin
        run = reader.run
        if last := facts_of(run).code:
            return last
    found = reader.store.versions(run.key, after=0, before=2, limit=1)
    return _told(found[0]) if found else ""


def _told(version: VersionRecord) -> str:
    detail = decode(version.detail) if version.detail else {}
    code: str = detail.get("code", "")
    return code
