"""How an execution ends: what is written of it.

Invariant: with the last write of an execution nobody owns the run, and its status says why.
"""

from __future__ import annotations

from functools import partial
from inspect import iscoroutine
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, ReplayDiverged
from holdfast.history.commit import RESULT, event
from holdfast.history.commit import Facts as VersionFacts
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.failure import pack
from holdfast.runtime.raising import remove_run_note
from holdfast.runtime.record import Record
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.waits import facts_of, has_come
from holdfast.tree.frozen import thaw

#: The symptom of a run whose code does not fit its record; characters of an error that its question shows.
DIVERGED = "diverged"
_WHY = 1000
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
    remove_run_note(error, session.id)
    facts.error = pack(error, session.services.context.redact)
    facts.failed_step = session.failures.step_of(error)
    session.keep()
    failures = list(session.failures.pending)
    session.let_go(error)
    for failure in failures:
        session.note(
            "step.failed", step=failure.name, address=failure.address, attempt=failure.attempts,
            error=f"{type(failure.error).__name__}: {failure.error}"[:1000],
        )  # fmt: skip
    session.note("run.failed", error=f"{type(error).__name__}: {error}"[:1000])
    yield from session.save(status="failed", owner=None, until=0, due=None)


def diverged(session: Session, before: RunRecord, error: ReplayDiverged) -> Flow[None]:
    """Write that the workflow's code does not fit the record. The run is left as it was before; if no caller hears of
    the error, it is stopped, and its question asks an operator."""
    was, facts = facts_of(before), session.facts
    facts.error, facts.code, facts.called, facts.watch = was.error, was.code, was.called, was.watch
    facts.failed_step = was.failed_step
    facts.prompt, facts.restores, facts.spent = was.prompt, was.restores, was.spent
    session.keep()
    session.note(
        "run.diverged", error=str(error)[:2000], address=error.details.get("address"),
        version=error.details.get("version"), called=error.details.get("called"), run=error.details.get("of"),
    )  # fmt: skip
    status, due = before.status, before.due
    if session.contained:
        status, due = "frozen", None
        now = session.services.context.clock()
        for entry in _ask_operator(session, before, error, now):
            session.note_event(entry)
    yield from session.save(status=status, owner=None, until=0, due=due)


def _ask_operator(session: Session, run: RunRecord, error: ReplayDiverged, now: int) -> list[EventRecord]:
    """Open the question of a run whose code does not fit its record; return the entries for its journal."""
    facts = session.facts
    facts.asked += 1
    question = f"{run.id}#{facts.asked}"
    address = error.details.get("address")
    facts.prompt = {
        "id": question, "opened": now, "symptom": DIVERGED, "why": str(error)[:_WHY], "since": now,
        "address": address, "good": good_before(session.record, run, error), "restores": facts.restores,
    }  # fmt: skip
    return [
        event("run.frozen", now, symptom=DIVERGED, reason=str(error)[:_WHY], version=run.head),
        event("prompt.opened", now, prompt=question, question=str(error)[:_WHY], address=address),
    ]


def good_before(record: Record, run: RunRecord, error: ReplayDiverged) -> int:
    """The last version that the code fits; the head if that is not known."""
    if "of" in error.details:
        return run.head
    try:
        return max(1, record.before(error.details["address"]))
    except HoldfastError:
        return run.head


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
        yield from _set_aside(session)
        session.note("run.suspended", waits=[wait.address for wait in facts.waits])
    due = facts.due() if status == "suspended" else None
    yield from session.save(status=status, owner=None, until=0, due=due)
    if status == "suspended" and session.head.run.parent is None:
        session.services.suspended.add(session.id)
    if status == "suspended" and facts.wish in ("cancel", "pause"):
        # Word came in the moment of suspending; nobody else owns the run yet, or the next write is refused.
        session.over = False
        yield from halted(session, "cancelled" if facts.wish == "cancel" else "paused")


def _set_aside(session: Session) -> Flow[None]:
    """Mark the waits that have come but that this execution could not reach: it has recorded nothing, so the next one
    would not reach them either, until something else has come."""
    left = [wait for wait in session.facts.waits if session.replay.is_left(wait.address)]
    if not left or session.has_written:
        return
    services = session.services
    run, now = session.head.run, services.context.clock()
    for wait in left:
        if (yield Do(partial(has_come, services.store, run, session.facts, wait, now))):
            session.facts.put(msgspec.structs.replace(wait, idle=True))
            session.keep()


def result_of(services: Services, run: RunRecord) -> Any:
    """What a completed run returned. Somebody may have changed its state by hand since."""
    final = services.store.versions(run.key, kind="final", before=run.head + 1, limit=1)
    number = final[0].number if final else run.head
    return thaw(services.context.reader(run).part(number, RESULT))
