"""Recovery of stuck runs: take a run away from its owner, then resume it from the last good version, or ask a
person and carry out the answer.

Each action is one compare-and-set of the run's record as it was checked. The record then holds what a rollback must
still undo, so that any monitor or worker can finish it.

Invariant: of several actions on one finding, or answers to one question, one takes effect; the previous owner's commits
are refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidAnswer, InvalidCall, StaleVersion
from holdfast.execution import compensation, inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.questions import check_choice, settled
from holdfast.fleet.monitor.detectors import Finding
from holdfast.history.builder import build_event, with_questions
from holdfast.model.question import Handling, QuestionPolicy
from holdfast.model.records import EventRecord, RunRecord
from holdfast.model.run_detail import PendingRollback, RunDetail, StalledQuestion, detail_of, encode_detail
from holdfast.model.watchdog import Watchdog
from holdfast.store.protocol import Append, QueuePlace, Store
from holdfast.tree.codec import decode

#: The monitor as an actor in the journal.
MONITOR = "monitor"
#: The due time of an unowned run that monitors resume: no run waits for this time, so a query by it finds only these.
UNOWNED = 1
#: Stored in place of the owner of a run that has none.
_NO_OWNER = "nobody"  # words: the stored word


def place_of(store: Store, run: RunRecord, facts: RunDetail) -> QueuePlace | None:
    """Return the place of a run in its queue; None if it is in no queue. An imported run has the place that it was
    first enqueued at."""
    place = store.queue_place(run.key)
    if place is not None:
        return place
    first = store.versions(run.key, after=0, before=2, limit=1)
    put = decode(first[0].detail).get("queue") if first and first[0].detail else None
    if facts.queue:
        return QueuePlace(facts.queue, put[1] if put else 0)
    return QueuePlace(put[0], put[1]) if put else None


def may_recover(facts: RunDetail, watchdog: Watchdog, finding: Finding) -> bool:
    """Return whether the monitor may resume a run without asking. A rollback does not refund a budget."""
    return (
        watchdog.autoresume and finding.symptom != "over budget" and facts.restores < watchdog.max_recoveries
    )


def recover(engine: EngineContext, run: RunRecord, finding: Finding, working: int = 0) -> RunRecord | None:
    """Take a run away to be rolled back to its last good version and resumed; None if it has changed since the check.
    A run whose owner died is resumed from its head."""
    facts = detail_of(run)
    place = place_of(engine.store, run, facts)
    facts.restores += 1
    facts.worked += working
    now = engine.context.clock()
    due = _due(run, place)
    events = [_alert(finding, now, "recover")]
    if facts.rollback is not None:
        # A rollback was already in progress: continue it.
        facts.rollback = msgspec.structs.replace(facts.rollback, then="queued", due=due)
    elif finding.symptom != "dead":
        facts.rollback = PendingRollback(
            to=finding.good, reason=finding.why, actor=MONITOR, then="queued", due=due, symptom=finding.symptom,
            restores=facts.restores,
        )  # fmt: skip
    else:
        events.append(
            build_event("run.recovered", now, to=run.head, symptom=finding.symptom, restores=facts.restores)
        )
    return _take_away(engine, run, facts, events, status="queued", due=due, place=place)


def hand_over(engine: EngineContext, run: RunRecord, finding: Finding) -> RunRecord | None:
    """Let another process resume a run from its head: its owner is dead, or a child run is stuck."""
    facts = detail_of(run)
    place = place_of(engine.store, run, facts)
    events = [_alert(finding, engine.context.clock(), "hand over")]
    return _take_away(engine, run, facts, events, status="queued", due=_due(run, place), place=place)


def stall(
    engine: EngineContext,
    run: RunRecord,
    finding: Finding,
    working: int = 0,
    policy: QuestionPolicy | None = None,
) -> RunRecord | None:
    """Take a run away and ask a person, by the policy of the run's watchdog or else the given one; None if it has
    changed since the check."""
    facts = detail_of(run)
    if facts.watchdog_policy is not None and facts.watchdog_policy.question is not None:
        policy = facts.watchdog_policy.question
    now = engine.context.clock()
    facts.worked += working
    facts.asked += 1
    question_id = f"{run.id}#{facts.asked}"
    facts.question = StalledQuestion(
        id=question_id, opened=now, symptom=finding.symptom, why=finding.why, since=finding.since,
        address=finding.address, attempt=finding.attempt, stack=finding.stack, good=finding.good,
        restores=facts.restores, handling=None if policy is None else Handling.of(policy, now),
    )  # fmt: skip
    events = [
        _alert(finding, now, "stall"),
        build_event("run.stalled", now, symptom=finding.symptom, reason=finding.why, version=run.head),
        build_event(
            "question.opened",
            now,
            question_id=question_id,
            question=finding.why,
            address=finding.address,
            assignee=None if policy is None else policy.assignee,
            priority=None if policy is None else policy.priority or None,
        ),
    ]
    return _take_away(engine, run, facts, events, status="stalled", due=None)


def was_reported(run: RunRecord, facts: RunDetail) -> bool:
    """Return whether the journal has recorded that the owner of a run is dead."""
    return facts.dead == (run.owner or _NO_OWNER)


def report(engine: EngineContext, run: RunRecord, finding: Finding) -> RunRecord | None:
    """Record in the journal that the owner of a run is dead."""
    facts = detail_of(run)
    facts.dead = run.owner or _NO_OWNER
    now = engine.context.clock()
    after = msgspec.structs.replace(run, revision=run.revision + 1, detail=encode_detail(facts))
    try:
        return engine.store.append(Append(expect=run, run=after, events=[_alert(finding, now, "report")]))
    except StaleVersion:
        return None


def answer(
    engine: EngineContext,
    run: RunRecord,
    question_id: str,
    choice: Any,
    *,
    version: Any,
    keep: Any,
    actor: str | None,
) -> RunRecord:
    """Carry out, or start, what a person chose; `StaleVersion` if the run has changed since it was read."""
    facts = detail_of(run)
    context = engine.context
    question = facts.question
    if question is None or question.id != question_id or run.status != "stalled":
        raise inbox.no_question(engine.store, run, question_id)
    wanted = check_choice(context, run, facts, choice, version, keep)
    more: dict[str, Any] = {}
    place = place_of(engine.store, run, facts)
    due = _due(run, place)
    if wanted is not None:
        try:
            compensation.refuse_target(engine, run, wanted.to)
        except InvalidCall as error:
            raise InvalidAnswer(str(error), question_id=question_id) from error
        more = {"version": wanted.to, "keep": wanted.keep}
        facts.rollback = msgspec.structs.replace(
            wanted, due=due, reason=f"{choice}: {question.why}", actor=actor
        )
    events = settled(context.store, run, facts, context.clock(), choice=choice, actor=actor, **more)
    after = _changed(engine, run, facts, status="queued", due=due)
    return engine.store.append(with_questions(Append(expect=run, run=after, events=events, queue=place)))


def _take_away(
    engine: EngineContext,
    run: RunRecord,
    facts: RunDetail,
    events: list[EventRecord],
    *,
    status: str,
    due: int | None,
    place: QueuePlace | None = None,
) -> RunRecord | None:
    """Remove the owner of a run that is unchanged since the check, and abandon its execution if it is in this
    process."""
    facts.fence += 1
    facts.stop_request = facts.stop_request if facts.stop_request == "cancel" else ""
    after = _changed(engine, run, facts, status=status, due=due)
    try:
        taken = engine.store.append(with_questions(Append(expect=run, run=after, events=events, queue=place)))
    except StaleVersion:
        return None
    execution = engine.executions.get(run.id)
    if execution is not None and execution.is_fenced(taken, facts):
        engine.abandon(run.id, execution)
    engine.publisher.wake()
    return taken


def _changed(
    engine: EngineContext, run: RunRecord, facts: RunDetail, *, status: str, due: int | None
) -> RunRecord:
    return msgspec.structs.replace(
        run,
        status=status,
        owner=None,
        until=0,
        due=due,
        updated=engine.context.clock(),
        revision=run.revision + 1,
        detail=encode_detail(facts),
    )


def _due(run: RunRecord, place: QueuePlace | None) -> int | None:
    """Return the due time: monitors resume a run that is in no queue and has no parent."""
    return UNOWNED if place is None and run.parent is None else None


def _alert(finding: Finding, now: int, action: str) -> EventRecord:
    return build_event(
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
