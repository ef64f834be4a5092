"""Compare a call of `run` with the run that exists under its id.

Invariant: a run is resumed by a second call only if that call is the one that started it.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidCall, RunMismatch
from holdfast.history.context import Context
from holdfast.model.names import short
from holdfast.model.records import RunRecord
from holdfast.runtime.definition import Workflow
from holdfast.runtime.machine import digest_of
from holdfast.runtime.record import Record

IF_EXISTS = ("error", "resume", "return")


def check_if_exists(if_exists: Any) -> None:
    """Raise `InvalidCall` for a value that `if_exists` does not take."""
    if if_exists not in IF_EXISTS:
        raise InvalidCall(f"if_exists is one of {', '.join(IF_EXISTS)}, not {short(if_exists)}")


def refuse_other_workflow(run: RunRecord, workflow: Workflow) -> None:
    """Raise `RunMismatch` if a run is not a run of this workflow."""
    if run.workflow != workflow.name and run.workflow not in workflow.aliases:
        kind = "a history kept by hand" if run.workflow is None else f"a run of workflow {run.workflow!r}"
        raise RunMismatch(
            f"run {run.id!r} exists and is {kind}, not of {workflow.name!r}: use another run_id",
            run=run.id,
            workflow=run.workflow,
        )


def refuse_other_call(
    context: Context,
    run: RunRecord,
    workflow: Workflow,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: Any,
) -> None:
    """Raise `RunMismatch` if a run was started with other arguments, or from another state. Redacted values are not
    stored and not compared; `state` None, and the state of a fork, are not compared either."""
    refuse_other_workflow(run, workflow)
    reader = context.reader(run)
    record = Record(reader)
    given = record.input(1) if run.origin is None else record.load(run.head).given()
    try:
        then = workflow.signature.bind(*given[0], **given[1])
    except TypeError as error:
        raise RunMismatch(
            f"run {run.id!r} exists, and the arguments that it was started with do not fit workflow {workflow.name!r} "
            f"any more ({error}), so they cannot be compared: hf.resume({run.id!r}) resumes it with those, or use "
            "another run_id",
            run=run.id,
        ) from None
    now = workflow.signature.bind(*args, **kwargs)
    then.apply_defaults()
    now.apply_defaults()
    differing = [name for name in now.arguments if _differ(context, name, then.arguments, now.arguments)]
    if state is not None and run.origin is None:
        differing += ["state"] if _differ(context, "", {"": reader.state(1)}, {"": state}) else []
    if differing:
        raise RunMismatch(
            f"run {run.id!r} exists and was started with other values of {', '.join(differing)}: use another run_id "
            f"for this call, or hf.resume({run.id!r}) to resume that run",
            run=run.id,
            arguments=differing,
        )


def _differ(context: Context, name: str, then: dict[str, Any], now: dict[str, Any]) -> bool:
    redact = context.redact
    if redact is not None and redact.hides(name):
        return False
    return digest_of((then[name],), {}, redact) != digest_of((now[name],), {}, redact)
