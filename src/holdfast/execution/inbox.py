"""Changes of a run's record from outside: answers, signals, requests to stop. Each is one compare-and-set.

Invariant: a question is answered once; a signal fills one wait; a signal belongs to the current timeline of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import (
    HoldfastError,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.execution import questions
from holdfast.execution.limits import Limits, limits_of, updated_limits
from holdfast.execution.questions import asked, iter_events
from holdfast.execution.replay_log import lineage
from holdfast.history.builder import build_event, with_questions
from holdfast.history.context import StoreContext
from holdfast.history.journal import event_data
from holdfast.model.names import check_run_id, short
from holdfast.model.public import Question, when
from holdfast.model.records import CLOSED, EventRecord, RunRecord
from holdfast.model.run_detail import RunDetail, Signal, StalledQuestion, Wait, detail_of, encode_detail
from holdfast.store.protocol import Append, Store
from holdfast.tree.codec import decode, encode
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import thaw
from holdfast.workflow.schema import check_answer

#: Events in the life of a question.
_QUESTION_EVENTS = ("question.opened", "question.answered", "question.outdated")
#: Bytes of a value that the run's record keeps.
_LIGHT = 512


def run_of(question_id: Any) -> str:
    """Return the id of the run that asks a question; empty if this is not the id of a question."""
    try:
        return check_run_id(question_id.rpartition("#")[0]) if isinstance(question_id, str) else ""
    except InvalidReference:
        return ""


def answer(context: StoreContext, question_id: str, value: Any, actor: str | None) -> RunRecord:
    """Answer a question; raise `InvalidAnswer` if the answer does not fit or is the second one."""
    run_id = run_of(question_id)

    def change(run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        wait = next((wait for wait in facts.waits if wait.is_question and wait.name == question_id), None)
        if wait is None or wait.filled:
            raise no_question(context.store, run, question_id)
        _refuse_if_late(wait, context.clock())
        check_answer(value, wait.schema)
        wait = msgspec.structs.replace(wait, filled=True, value=kept(context, value), actor=actor)
        facts.put(wait)
        return [
            build_event(
                "question.answered", context.clock(), question_id=question_id, actor=actor, **asked(wait)
            )
        ]

    missing = f"there is no question {short(question_id)}: the inbox lists the open ones"
    if not run_id:
        raise NotFound(missing)
    return amend(context, run_id, change, missing=missing)


def check_answers(context: StoreContext, run: RunRecord, answers: Mapping[str, Any]) -> None:
    """Refuse answers, by id or address, that do not fit the open questions of a run, that come a second time or late,
    or that are for another run. A run that waits must wait for one of them; others may be for questions to come."""
    waits = [wait for wait in detail_of(run).waits if wait.is_question]
    is_for_open = False
    for name, value in answers.items():
        wait = next((wait for wait in waits if name in (wait.name, wait.address)), None)
        if wait is not None and not wait.filled:
            _refuse_if_late(wait, context.clock())
            check_answer(value, wait.schema)
            kept(context, value)
            is_for_open = True
        elif wait is not None or (isinstance(name, str) and name.startswith(f"{run.id}#")):
            raise no_question(context.store, run, name if wait is None else wait.name)
        elif (other := context.store.run(run_of(name))) is not None and any(
            wait.name == name for wait in detail_of(other).waits
        ):
            if not _is_part_of(context.store, other, run):
                raise InvalidAnswer(
                    f"{name!r} is a question of run {other.id!r}, not of {run.id!r}", question_id=name
                )
            is_for_open = True
    if run.status == "suspended" and answers and not is_for_open:
        raise InvalidAnswer(
            f"run {run.id!r} does not ask {', '.join(map(repr, answers))}; it waits for "
            f"{', '.join(repr(wait.name) for wait in waits if not wait.filled) or 'no answer'}",
            run=run.id,
        )


def _is_part_of(store: Store, run: RunRecord, whole: RunRecord) -> bool:
    above: RunRecord | None = run
    while above is not None and above.key != whole.key:
        above = None if above.parent is None else store.run_by_key(above.parent)
    return above is not None


def _is_late(wait: Wait, now: int) -> bool:
    """Is the time of a question over?"""
    return wait.due is not None and wait.due <= now


def _refuse_if_late(wait: Wait, now: int) -> None:
    """Refuse an answer to a question whose time is over, whether or not the run has been resumed since."""
    if _is_late(wait, now):
        assert wait.due is not None
        raise InvalidAnswer(
            f"question {wait.name!r} was to be answered by {when(wait.due):%Y-%m-%d %H:%M:%S} UTC: it has timed out",
            question_id=wait.name,
        )


def signal(context: StoreContext, run_id: str, name: str, value: Any, actor: str | None) -> RunRecord:
    """Send a signal to a run: it fills a wait for it, or is kept until the run waits for it."""
    if not isinstance(name, str) or not name:
        raise InvalidCall("a signal needs a name")

    def change(run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        if run.status in CLOSED:
            raise InvalidCall(f"run {run_id!r} is {run.status}: it receives no more signals", run=run_id)
        facts.sent += 1
        stored = kept(context, value)
        wait = next(
            (wait for wait in facts.waits if wait.kind == "event" and wait.name == name and not wait.filled),
            None,
        )
        if wait is not None:
            facts.put(
                msgspec.structs.replace(wait, filled=True, value=stored, actor=actor, number=facts.sent)
            )
        else:
            sent = Signal(
                name=name, value=stored, head=run.head, number=facts.sent, timeline=run.timeline, actor=actor
            )
            facts.signals = [*facts.signals, _light(sent)]
        return [
            build_event(
                "signal.sent",
                context.clock(),
                name=name,
                value=stored,
                head=run.head,
                number=facts.sent,
                timeline=run.timeline,
                actor=actor,
            )
        ]

    return amend(context, run_id, change)


def request_stop(
    context: StoreContext, run_id: str, what: str, reason: str | None, actor: str | None
) -> RunRecord:
    """Request that a run stops before its next step."""

    def change(run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        facts.stop_request, facts.reason, facts.actor = what, reason, actor
        return [build_event(f"run.{what}_requested", context.clock(), reason=reason, actor=actor)]

    return amend(context, run_id, change)


def pause(context: StoreContext, run: RunRecord, reason: str | None, actor: str | None) -> RunRecord:
    """Pause a run that no process advances."""

    def change(now: RunRecord, facts: RunDetail) -> list[EventRecord]:
        if now.revision != run.revision:
            raise StaleVersion(f"run {run.id!r} has moved on: look at it again")
        return [build_event("run.paused", context.clock(), reason=reason, actor=actor)]

    return amend(context, run.id, change, status="paused", owner=None, until=0)


def drop_wait(context: StoreContext, run: RunRecord, address: str) -> bool:
    """Drop the wait at an address, and the answer or signal that filled it; return whether there was such a wait."""
    if detail_of(run).wait_at(address) is None:
        return False

    def change(_run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        wait = facts.wait_at(address)
        facts.drop(address)
        if wait is None or not wait.is_question:
            return []
        return [
            build_event(
                "question.outdated", context.clock(), question_id=wait.name, question=wait.question, address=address,
                answered=wait.filled,
            )
        ]  # fmt: skip

    amend(context, run.id, change)
    return True


def limit(context: StoreContext, run_id: str, given: Limits, workflow: Limits | None) -> RunRecord:
    """Replace limits of a run."""

    def change(_run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        facts.limits = updated_limits(facts.limits, workflow, given)
        return [
            build_event("run.limited", context.clock(), limits=msgspec.to_builtins(limits_of(facts.limits)))
        ]

    return amend(context, run_id, change)


def amend(
    context: StoreContext,
    run_id: str,
    change: Callable[[RunRecord, RunDetail], list[EventRecord] | None],
    *,
    missing: str | None = None,
    fresh: bool = False,
    reindex: bool = False,
    **fields: Any,
) -> RunRecord:
    """Change the detail of a run, retrying on concurrent writes. `change` returns the events to write with it, or None
    for no change. With `fresh`, from an empty detail; `reindex` if the index of open questions may lack some of the
    run."""
    while True:
        run = context.store.run(run_id)
        if run is None:
            raise NotFound(missing or f"there is no run {run_id!r}", run=run_id)
        facts = RunDetail() if fresh else detail_of(run)
        events = change(run, facts)
        if events is None:
            return run
        now = context.clock()
        due = now if run.status == "suspended" and facts.has_come() else run.due
        after = msgspec.structs.replace(
            run,
            **{
                "updated": now,
                "revision": run.revision + 1,
                "detail": encode_detail(facts),
                "due": due,
                **fields,
            },
        )
        try:
            drafted = Append(expect=run, run=after, events=events)
            return context.store.append(with_questions(drafted, reindex=reindex))
        except StaleVersion:
            continue


def call(context: StoreContext, run: RunRecord) -> None:
    """Note in the record of a run that something arrived for a child of it, so that it is resumed."""

    def change(_run: RunRecord, facts: RunDetail) -> list[EventRecord]:
        facts.called = True
        return []

    amend(context, run.id, change)


def open_questions(context: StoreContext, run: RunRecord) -> list[Question]:
    """Return the open questions of a run, without those whose time is over: its next execution closes them."""
    facts = detail_of(run)
    now = context.clock()
    stalled = (
        [questions.shown(context, run, facts.question)] if facts.question and run.status == "stalled" else []
    )
    return stalled + [
        _shown(run, wait)
        for wait in facts.waits
        if wait.is_question and not wait.filled and not _is_late(wait, now)
    ]


def open_question(
    context: StoreContext, run: RunRecord, facts: RunDetail, question_id: str
) -> Question | None:
    """Return an open question of a run with this detail by its id; None if it asks none with this id."""
    found = find_open(run, facts, question_id)
    if isinstance(found, Wait):
        return None if _is_late(found, context.clock()) else _shown(run, found)
    return None if found is None else questions.shown(context, run, found)


def find_open(run: RunRecord, facts: RunDetail, question_id: str) -> Wait | StalledQuestion | None:
    """Return an open question of a run from its detail."""
    if facts.question is not None and facts.question.id == question_id and run.status == "stalled":
        return facts.question
    waits = (wait for wait in facts.waits if wait.is_question and not wait.filled)
    return next((wait for wait in waits if wait.name == question_id), None)


def _shown(run: RunRecord, wait: Wait) -> Question:
    expires = None if wait.due is None else when(wait.due)
    found = Question(
        wait.name, run.id, wait.address, wait.question, when(wait.opened), wait.schema, expires,
        workflow=run.workflow, expires=expires,
    )  # fmt: skip
    return questions.handled(found, wait.handling)


def question(context: StoreContext, question_id: str) -> Question:
    """Return an open question by its id; raise an error that says why if it is not open."""
    run = context.store.run(run_of(question_id))
    if run is None:
        raise NotFound(
            f"there is no question {short(question_id)}: the inbox lists the open ones",
            question_id=question_id,
        )
    facts = detail_of(run)
    found = open_question(context, run, facts, question_id)
    if found is None:
        for wait in facts.waits:
            if wait.name == question_id and not wait.filled:
                _refuse_if_late(wait, context.clock())
        raise no_question(context.store, run, question_id)
    return found


def kept(context: StoreContext, value: Any) -> Any:
    """Return a value as it may be stored, with secrets redacted; raise `UnsupportedValue` if it cannot be."""
    return thaw(Folder(None, context.redact).fold(value))


def adopt(context: StoreContext, run: RunRecord) -> None:
    """Adapt the record of an imported run: drop a detail that cannot be read, and give its questions its own id."""
    if not run.detail:
        return
    try:
        facts = detail_of(run)
    except (msgspec.ValidationError, HoldfastError):
        amend(context, run.id, lambda _, facts: _renamed(run, facts), fresh=True, reindex=True)
    else:
        if facts.question or any(wait.is_question for wait in facts.waits):
            amend(context, run.id, lambda _, facts: _renamed(run, facts), reindex=True)


def _renamed(run: RunRecord, facts: RunDetail) -> list[EventRecord]:
    facts.waits = [
        msgspec.structs.replace(wait, name=f"{run.id}#{wait.name.rpartition('#')[2]}")
        if wait.is_question
        else wait
        for wait in facts.waits
    ]
    if facts.question:
        number = facts.question.id.rpartition("#")[2]
        facts.question = msgspec.structs.replace(facts.question, id=f"{run.id}#{number}")
    return []


def carried(context: StoreContext, run: RunRecord, to: int) -> bytes:
    """Return the detail that stays when the head moves back to a version: totals, counters, and the signals that were
    sent before the version and had not been received by then."""
    before = detail_of(run)
    if before.question:
        # A person has decided.
        questions.settled(context.store, run, before, 0)
    facts = RunDetail(
        code=before.code, totals=before.totals, asked=before.asked, sent=before.sent, failed=before.failed,
        compensated=before.compensated, queue=before.queue, watchdog=before.watchdog, fence=before.fence,
        restores=before.restores, dead=before.dead, worked=before.worked, used=before.used,
        limits=before.limits, spent_before=before.spent_before,
        discarded=before.discarded + _discarded(context, run, to),
        overrides=before.overrides, resumed_from=before.resumed_from, rolled_back_from=run.head,
        meta=before.meta,
    )  # fmt: skip
    if before.sent:
        line = dict(lineage(context.reader(run), to))
        # Those before the first version are of the run that this one was forked from, which counts its own events.
        own = [version for number, version in line.items() if number > 0]
        taken = {decode(version.detail).get("mail") for version in own if version.detail}
        # The timeline on which the line continues after each version: signals sent on another one do not belong to it.
        continued = {version.parent: version.timeline for version in own}
        facts.signals = [
            _light(each)
            for each in _signals(context.store, run)
            if continued.get(each.head) == each.timeline and each.number not in taken
        ]
    return encode_detail(facts)


def _discarded(context: StoreContext, run: RunRecord, to: int) -> int:
    """Return how many steps of a workflow a rollback leaves behind; those of a manual run are not limited."""
    if run.workflow is None:
        return 0
    reader = context.reader(run)
    return reader.record(run.head).steps - reader.record(to).steps


def value_of(store: Store, run: RunRecord, sent: Signal) -> Any:
    """Return the value of a signal."""
    if not sent.apart:
        return sent.value
    return next(each.value for each in _signals(store, run) if each.number == sent.number)


def _light(sent: Signal) -> Signal:
    """Return a signal as the run's record keeps it, which every commit of the run writes again."""
    if len(encode(sent.value)) <= _LIGHT:
        return sent
    return msgspec.structs.replace(sent, value=None, apart=True)


def _signals(store: Store, run: RunRecord) -> Iterator[Signal]:
    for entry in iter_events(store, run=run.key):
        if entry.kind == "signal.sent":
            data = decode(entry.data)
            yield Signal(
                name=data["name"],
                value=data.get("value"),
                head=data["head"],
                number=data["number"],
                timeline=data.get("timeline", 1),
                actor=data.get("actor"),
            )


def no_question(store: Store, run: RunRecord, question_id: str) -> NotFound | InvalidAnswer:
    """Return the error for a question that is not open: who answered it and when, if it was answered."""
    opened = False
    answered: EventRecord | None = None
    for entry in iter_events(store, run=run.key):
        if entry.kind not in _QUESTION_EVENTS or event_data(entry).get("question_id") != question_id:
            continue
        if entry.kind == "question.outdated":
            return InvalidAnswer(
                f"question {question_id!r} is outdated: the workflow of run {run.id!r} asks another question now; "
                "the inbox lists those that are open",
                question_id=question_id,
            )
        opened = True
        if entry.kind == "question.answered":
            answered = entry
    if answered is not None:
        return _answered(question_id, answered)
    if opened:
        return InvalidAnswer(
            f"question {question_id!r} is no longer open: its run was rolled back, cancelled, or continued without it",
            question_id=question_id,
        )
    return NotFound(
        f"there is no question {question_id!r}: the inbox lists the open ones", question_id=question_id
    )


def _answered(question_id: str, entry: EventRecord) -> InvalidAnswer:
    data = decode(entry.data)
    choice = f", with {data['choice']}" if "choice" in data else ""
    return InvalidAnswer(
        f"question {question_id!r} has been answered already, by {data.get('actor') or 'an unnamed actor'} at "
        f"{when(entry.at):%Y-%m-%d %H:%M:%S} UTC{choice}",
        question_id=question_id,
        actor=data.get("actor"),
        at=when(entry.at),
    )
