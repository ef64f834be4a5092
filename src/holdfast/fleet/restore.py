"""Taking a stuck run away from whoever advances it, and what follows: going on from the last good version, or asking a
person, and doing what the person says.

Each is one compare-and-set of the run's record as it was judged. What a rollback must still undo stands in the record
from then on, so that whoever comes next (this monitor, another one, a worker) finishes it.

Invariant: of many who act on one finding, or answer one prompt, one does; whoever advanced the run before is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidAnswer, InvalidCall, StaleVersion
from holdfast.fleet.symptoms import Finding
from holdfast.history.commit import event
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime import mail, undo
from holdfast.runtime.restoring import check_choice, settled
from holdfast.runtime.services import Services
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.runtime.watch import Watch
from holdfast.store.base import Append, Place, Store
from holdfast.tree.codec import decode

#: Who the monitor is in a journal.
MONITOR = "monitor"
#: When a run that is in no queue, and is to go on, is due: no run waits for this time, so monitors find such runs.
ORPHAN = 1
#: Stands for the owner of a run that has none.
_NOBODY = "nobody"


def place_of(store: Store, run: RunRecord, facts: Facts) -> Place | None:
    """Where a run waits for workers; None if it is in no queue. One that came with an import waits where it was put at
    first."""
    stands = store.place(run.key)
    if stands is not None:
        return stands
    first = store.versions(run.key, after=0, before=2, limit=1)
    put = decode(first[0].detail).get("queue") if first and first[0].detail else None
    if facts.queue:
        return Place(facts.queue, put[1] if put else 0)
    return Place(put[0], put[1]) if put else None


def may_restore(facts: Facts, watch: Watch, finding: Finding) -> bool:
    """Is a run to go on by itself? Going back does not give back what was spent."""
    return watch.autoresume and finding.symptom != "over budget" and facts.restores < watch.max_restores


def restore(services: Services, run: RunRecord, finding: Finding, working: int = 0) -> RunRecord | None:
    """Take a run away, to be rolled back to its last good version and gone on with; None if it has moved on since it
    was judged. What is dead goes on from its head."""
    facts = facts_of(run)
    place = place_of(services.store, run, facts)
    facts.restores += 1
    facts.worked += working
    now = services.context.clock()
    due = _due(run, place)
    events = [_alert(finding, now, "restore")]
    if facts.undoing is not None:
        # It was being rolled back already; that is gone on with.
        facts.undoing = {**facts.undoing, "then": "queued", "due": due}
    elif finding.symptom != "dead":
        facts.undoing = {
            "to": finding.good, "reason": finding.why, "actor": MONITOR, "then": "queued", "due": due,
            "symptom": finding.symptom, "restores": facts.restores,
        }  # fmt: skip
    else:
        events.append(
            event("run.restored", now, to=run.head, symptom=finding.symptom, restores=facts.restores)
        )
    return _take_away(services, run, facts, events, status="queued", due=due, place=place)


def hand_over(services: Services, run: RunRecord, finding: Finding) -> RunRecord | None:
    """Let others go on with a run from its head: its owner is dead, or a run that is part of it is stuck."""
    facts = facts_of(run)
    place = place_of(services.store, run, facts)
    events = [_alert(finding, services.context.clock(), "hand over")]
    return _take_away(services, run, facts, events, status="queued", due=_due(run, place), place=place)


def freeze(services: Services, run: RunRecord, finding: Finding, working: int = 0) -> RunRecord | None:
    """Take a run away, and ask a person; None if it has moved on since it was judged."""
    facts = facts_of(run)
    now = services.context.clock()
    facts.worked += working
    facts.asked += 1
    prompt = f"{run.id}#{facts.asked}"
    asked = {
        "id": prompt, "opened": now, "symptom": finding.symptom, "why": finding.why, "since": finding.since,
        "address": finding.address, "attempt": finding.attempt, "stack": finding.stack, "good": finding.good,
        "restores": facts.restores,
    }  # fmt: skip
    facts.prompt = {name: value for name, value in asked.items() if value not in (None, "")}
    events = [
        _alert(finding, now, "freeze"),
        event("run.frozen", now, symptom=finding.symptom, reason=finding.why, version=run.head),
        event("prompt.opened", now, prompt=prompt, question=finding.why, address=finding.address),
    ]
    return _take_away(services, run, facts, events, status="frozen", due=None)


def was_reported(run: RunRecord, facts: Facts) -> bool:
    """Has it been said that the owner of a run is dead?"""
    return facts.dead == (run.owner or _NOBODY)


def report(services: Services, run: RunRecord, finding: Finding) -> RunRecord | None:
    """Only say that an owner is dead."""
    facts = facts_of(run)
    facts.dead = run.owner or _NOBODY
    now = services.context.clock()
    after = msgspec.structs.replace(run, revision=run.revision + 1, detail=encoded(facts))
    try:
        return services.store.append(Append(expect=run, run=after, events=[_alert(finding, now, "report")]))
    except StaleVersion:
        return None


def answer(
    services: Services,
    run: RunRecord,
    prompt_id: str,
    choice: Any,
    *,
    version: Any,
    keep: Any,
    actor: str | None,
) -> RunRecord:
    """Carry out, or begin, what a person chose; `StaleVersion` if the run has changed since it was read."""
    facts = facts_of(run)
    context = services.context
    if facts.prompt.get("id") != prompt_id or run.status != "frozen":
        raise mail.no_prompt(services.store, run, prompt_id)
    wanted = check_choice(context, run, facts, choice, version, keep)
    told: dict[str, Any] = {}
    place = place_of(services.store, run, facts)
    due = _due(run, place)
    if wanted is not None:
        try:
            undo.refuse(services, run, wanted["to"])
        except InvalidCall as error:
            raise InvalidAnswer(str(error), prompt=prompt_id) from error
        told = {"version": wanted["to"], "keep": wanted.get("keep")}
        facts.undoing = {**wanted, "due": due, "reason": f"{choice}: {facts.prompt['why']}", "actor": actor}
    events = settled(context.store, run, facts, context.clock(), choice=choice, actor=actor, **told)
    after = _changed(services, run, facts, status="queued", due=due)
    return services.store.append(Append(expect=run, run=after, events=events, queue=place))


def _take_away(
    services: Services,
    run: RunRecord,
    facts: Facts,
    events: list[EventRecord],
    *,
    status: str,
    due: int | None,
    place: Place | None = None,
) -> RunRecord | None:
    """Write that nobody advances a run, if it is still as it was judged, and give its execution up if it is ours."""
    facts.fence += 1
    facts.wish = facts.wish if facts.wish == "cancel" else ""
    after = _changed(services, run, facts, status=status, due=due)
    try:
        taken = services.store.append(Append(expect=run, run=after, events=events, queue=place))
    except StaleVersion:
        return None
    session = services.sessions.get(run.id)
    if session is not None and session.is_fenced(taken, facts):
        services.abandon(run.id, session)
    services.publisher.wake()
    return taken


def _changed(services: Services, run: RunRecord, facts: Facts, *, status: str, due: int | None) -> RunRecord:
    return msgspec.structs.replace(
        run,
        status=status,
        owner=None,
        until=0,
        due=due,
        updated=services.context.clock(),
        revision=run.revision + 1,
        detail=encoded(facts),
    )


def _due(run: RunRecord, place: Place | None) -> int | None:
    """A run that is in no queue, and no part of another, is for monitors to go on with."""
    return ORPHAN if place is None and run.parent is None else None


def _alert(finding: Finding, now: int, action: str) -> EventRecord:
    return event(
        "run.alert",
        now,
        symptom=finding.symptom,
        why=finding.why,
        since=finding.since,
        step=finding.address,
        attempt=finding.attempt,
        stack=finding.stack or None,
        version=finding.good,
        action=action,
    )
