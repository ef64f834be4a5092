"""How an execution ends: what is written of it.

Invariant: with the last write of an execution nobody owns the run, and its status says why.
"""

from __future__ import annotations

from inspect import iscoroutine
from typing import Any

from holdfast.errors import InvalidCall, ReplayDiverged
from holdfast.history.commit import RESULT
from holdfast.history.commit import Facts as VersionFacts
from holdfast.model.records import RunRecord
from holdfast.runtime.drive import Flow
from holdfast.runtime.failure import pack
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.tree.frozen import thaw

#: Microseconds after which a run is tried again of which the store was away.
AGAIN = 5_000_000


def completed(session: Session, value: Any) -> Flow[None]:
    """The workflow's function has returned."""
    yield from session.go_live("")
    if iscoroutine(value):
        value.close()
        raise InvalidCall(
            f"workflow {session.workflow.name!r} gave a coroutine: a step in it is async def, so the workflow must "
            "be, too, and await it"
        )
    facts = VersionFacts(result=value, kind="final", status="completed")
    session.facts.waits = []
    session.keep_if(bool(session.head.run.detail))
    yield from session.commit(facts, owner=None, until=0, due=None)


def failed(session: Session, error: BaseException) -> Flow[None]:
    """Write that a run has failed."""
    facts = session.facts
    facts.error = pack(error, session.services.context.redact)
    session.keep()
    failures = list(session.failures.pending)
    session.let_go(error)
    for failure in failures:
        session.note(
            "step.failed", step=failure.name, address=failure.address, attempt=failure.attempts,
            error=f"{type(failure.error).__name__}: {failure.error}"[:1000],
        )  # fmt: skip
    diverged = error.details.get("address") if isinstance(error, ReplayDiverged) else None
    session.note("run.failed", error=f"{type(error).__name__}: {error}"[:1000], address=diverged)
    yield from session.save(status="failed", owner=None, until=0, due=None)


def handed_back(session: Session, error: BaseException) -> Flow[None]:
    """The store was away for a while, which is no fault of the run."""
    session.note("run.handed_back", error=f"{type(error).__name__}: {error}"[:1000])
    due = session.services.context.clock() + AGAIN
    yield from session.save(status="queued", owner=None, until=0, due=due)


def halted(session: Session, status: str) -> Flow[None]:
    """It was ended at a boundary between steps."""
    facts = session.facts
    if status == "suspended" and facts.wish == "hand back":
        # One branch waits, but others have steps to do: whoever takes it next finds out.
        status = "queued"
    if status == "cancelled":
        facts.wish, facts.waits = "", []
        session.keep()
        ending = VersionFacts(kind="final", status="cancelled", note=facts.reason, actor=facts.actor)
        yield from session.commit(ending, owner=None, until=0, due=None)
        return
    if status == "queued":
        facts.wish = ""
        session.keep()
        session.note("run.handed_back")
    elif status == "paused":
        facts.wish = ""
        session.keep()
        session.note("run.paused", reason=facts.reason, actor=facts.actor)
    else:
        session.note("run.suspended", waits=[wait.address for wait in facts.waits])
    due = facts.due() if status == "suspended" else None
    yield from session.save(status=status, owner=None, until=0, due=due)
    if status == "suspended" and session.head.run.parent is None:
        session.services.suspended.add(session.id)
    if status == "suspended" and facts.wish in ("cancel", "pause"):
        # Word came in the moment of suspending; nobody else owns the run yet, or the next write is refused.
        session.over = False
        yield from halted(session, "cancelled" if facts.wish == "cancel" else "paused")


def result_of(services: Services, run: RunRecord) -> Any:
    """What a completed run returned. Somebody may have changed its state by hand since."""
    final = services.store.versions(run.key, kind="final", before=run.head + 1, limit=1)
    number = final[0].number if final else run.head
    return thaw(services.context.reader(run).part(number, RESULT))
