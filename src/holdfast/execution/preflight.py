"""Checks before a run is executed again: may this process run it with its code and its overrides?

Invariant: nothing is written. A run that fails the check is left as it is.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.errors import CodeChanged
from holdfast.execution.engine_context import EngineContext, GivenOverrides, Overrides, require_overrides
from holdfast.history.reader import Reader
from holdfast.log import warn
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.model.run_detail import RunDetail, detail_of
from holdfast.tree.codec import decode
from holdfast.workflow.definition import ACCEPT, CHANGED, Workflow, is_bytecode


class Preflight(NamedTuple):
    """A run that may be executed here, and what the check has read."""

    run: RunRecord
    detail: RunDetail
    workflow: Workflow
    overrides: Overrides
    #: How the code has changed since the last execution; None if it has not.
    changed: str | None

    def warn_if_changed(self) -> None:
        """Log a warning if the code has changed."""
        if self.changed is not None:
            warn(
                "%s: recorded steps are replayed as long as their addresses and arguments match", self.changed
            )


def check_resume(
    engine: EngineContext,
    run: RunRecord,
    workflow: Workflow,
    *,
    changed: str | None = None,
    overrides: GivenOverrides | None = None,
    exact: bool = False,
    head: VersionRecord | None = None,
) -> Preflight:
    """Check that a run may be executed with a workflow's code, and with the recorded overrides and those given, or with
    `exact`ly those. Raise `CodeChanged` or `OverridesMissing`. `head` is the run's head, if it was read already."""
    detail = detail_of(run)
    message = check_code(engine, run, workflow, detail, changed, head=head)
    recorded = {} if exact else detail.overrides
    functions = require_overrides(run.id, recorded, overrides, engine.overrides.get(run.id, {}))
    return Preflight(run, detail, workflow, functions, message)


def check_code(
    engine: EngineContext,
    run: RunRecord,
    workflow: Workflow,
    detail: RunDetail,
    changed: str | None = None,
    *,
    head: VersionRecord | None = None,
    advice: str | None = None,
) -> str | None:
    """Return how the code of a workflow has changed since a run was last executed; None if it has not, or if that is
    allowed. Raise `CodeChanged`, with `advice` on what to do, if it is refused. `changed` replaces the workflow's
    policy."""
    policy = changed or workflow.changed
    if policy in ("allow", ACCEPT):
        return None
    known = detail.code
    if not known and head is not None and head.kind == "initial":
        known = _recorded_code(head)
    elif not known:
        known = _first_code(run, engine.context.reader(run))
    if not known or known == workflow.code:
        return None
    message = (
        f"the code of workflow {workflow.name!r} has changed since run {run.id!r} was last executed ({known} then, "
        f"{workflow.code} now)"
    )
    if is_bytecode(known) and is_bytecode(workflow.code):
        message += (
            "; its source is not available, so another version of Python looks like changed code, too: "
            "@workflow(version=…) names the code instead"
        )
    if policy == "refuse":
        raise CodeChanged(
            f"{message}: bring the old code back, or {advice or f'say changed={CHANGED[0]!r}'}",
            run=run.id,
            recorded=known,
            now=workflow.code,
        )
    return message


def _first_code(run: RunRecord, reader: Reader) -> str:
    """Return the fingerprint in a run's first version; for a fork, the one its origin was last executed with."""
    while run.origin is not None:
        reader = reader.origin
        run = reader.run
        if last := detail_of(run).code:
            return last
    found = reader.store.versions(run.key, after=0, before=2, limit=1)
    return _recorded_code(found[0]) if found else ""


def _recorded_code(version: VersionRecord) -> str:
    detail = decode(version.detail) if version.detail else {}
    code: str = detail.get("code", "")
    return code
