"""Questions that the monitor asks about a stalled run, with the meaning of each choice; and the list of answered
questions, read from the journal. `inbox` answers questions.

Invariant: nothing is written here: the commit that carries out an answer settles its question. The journal is read from
its end, and only as far back as needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidAnswer, NotFound
from holdfast.execution.limits import spent_by
from holdfast.execution.loops import is_control_run
from holdfast.history.builder import build_event
from holdfast.history.context import StoreContext
from holdfast.history.journal import event_data
from holdfast.history.version import segments_of
from holdfast.model.names import MAX_NOTE
from holdfast.model.public import Question, when
from holdfast.model.question import Handling
from holdfast.model.records import EventRecord, RunRecord
from holdfast.model.run_detail import PendingRollback, RunDetail, SpentBefore, StalledQuestion, Wait
from holdfast.store.protocol import Store
from holdfast.tree import path as paths
from holdfast.tree.codec import encode
from holdfast.tree.diff import Change, changes
from holdfast.tree.draft import draft

_PAGE = 1000
#: Bytes of an answer that its entry in the journal has room for; the version of its step has any.
_SHORT = 512


def asked(question: Wait | StalledQuestion) -> dict[str, Any]:
    """Return the fields of a question for the event of its answer; for a wait, with the answer if it is short."""
    if isinstance(question, Wait):
        fields = {"question": question.question, "address": question.address, "opened": question.opened}
        is_short = question.filled and len(encode(question.value)) <= _SHORT
        return {**fields, "answer": question.value} if is_short else fields
    return {"question": question.why, "address": question.address, "opened": question.opened}


def answered(store: Store, run: RunRecord | None, after: str | None, limit: int) -> list[Question]:
    """Return the questions that have been answered, of one run or of all, the newest answer first; only those that
    follow the question `after`, if it is given."""
    found: list[Question] = []
    names: dict[int, str] = {}
    for entry in reversed(list(iter_events(store, run=run.key))) if run is not None else _backwards(store):
        if entry.kind != "question.answered":
            continue
        data = event_data(entry)
        if after is not None:
            after = None if data.get("question_id") == after else after
            continue
        if entry.run not in names:
            record = store.run_by_key(entry.run)
            names[entry.run] = "" if record is None else record.id
        found.append(_answered_question(store, entry, data, names[entry.run]))
        if len(found) >= limit:
            break
    return found


def _answered_question(store: Store, entry: EventRecord, data: dict[str, Any], run_id: str) -> Question:
    if "opened" not in data:
        # Older entries do not repeat the question.
        data = {**_opening(store, entry, data.get("question_id")), **data}
    return Question(
        data.get("question_id", ""),
        run_id,
        data.get("address") or "",
        data.get("question", ""),
        when(data.get("opened", entry.at)),
        details={name: data[name] for name in ("choice", "version", "keep") if name in data},
        answered=when(entry.at),
        actor=data.get("actor"),
        answer=data.get("answer"),
        kind="question" if "choice" not in data else "loop" if is_control_run(run_id) else "stalled",
        project=data.get("project"),
    )


def _opening(store: Store, answer: EventRecord, question_id: Any) -> dict[str, Any]:
    for entry in iter_events(store, run=answer.run, until=answer.seq):
        if entry.kind == "question.opened":
            data = event_data(entry)
            if data.get("question_id") == question_id:
                return {**data, "opened": entry.at}
    return {}


def _backwards(store: Store) -> Iterator[EventRecord]:
    """Yield the events of all runs, newest first."""
    end = store.journal_end()
    while end > 0:
        start = max(0, end - _PAGE)
        yield from reversed(list(iter_events(store, run=None, after=start, until=end)))
        end = start


def iter_events(
    store: Store, *, run: int | None, after: int = 0, until: int | None = None
) -> Iterator[EventRecord]:
    """Yield the events after a position, oldest first."""
    while page := store.journal(run=run, after=after, limit=_PAGE):
        for entry in page:
            after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
            if until is not None and after > until:
                return
            if isinstance(entry, EventRecord):
                yield entry
        if after == until:
            return


CHOICES = ("resume", "rollback", "reinitialize", "cancel")
#: The version from which a run starts over.
FIRST = 1
#: Lines of a difference that a question shows.
_LINES = 200


def shown(context: StoreContext, run: RunRecord, asked: StalledQuestion) -> Question:
    """Return the open question of a stalled run."""
    good = asked.good
    details = {
        "symptom": asked.symptom,
        "why": asked.why,
        "since": when(asked.since),
        "address": asked.address,
        "attempt": asked.attempt,
        "stack": asked.stack or None,
        "restores": asked.restores,
        "version": good,
        "diff": summaries(_changes(context, run, good)),
        "initial": parts_of(_changes(context, run, FIRST)),
        "choices": list(CHOICES),
    }
    found = Question(
        id=asked.id,
        run=run.id,
        address=asked.address or "",
        text=f"{asked.why}: resume, roll back (to version {good}), reinitialize or cancel?",
        opened=when(asked.opened),
        schema={"enum": list(CHOICES)},
        details=details,
        kind="stalled",
        workflow=run.workflow,
    )
    return handled(found, asked.handling)


def handled(question: Question, handling: Handling | None) -> Question:
    """Return a question with who is to answer it, and by when."""
    if handling is None:
        return question
    return msgspec.structs.replace(
        question,
        assignee=handling.assignee,
        priority=handling.priority,
        due=None if handling.due is None else when(handling.due),
        escalated=handling.escalated,
        reminders=handling.reminders,
    )


#: Former spellings of choices, accepted with a warning.
_FORMER_CHOICES = {"reinitialise": "reinitialize"}


def current_choice(choice: Any) -> Any:
    """Return a choice in its current spelling, with a `DeprecationWarning` for a former one."""
    current = _FORMER_CHOICES.get(choice) if isinstance(choice, str) else None
    if current is None:
        return choice
    warnings.warn(
        f"the answer {choice!r} is spelled {current!r}: a later release will refuse the old spelling",
        DeprecationWarning,
        stacklevel=4,
    )
    return current


def settled(
    store: Store,
    run: RunRecord,
    facts: RunDetail,
    now: int,
    *,
    choice: str = "resume",
    actor: str | None = None,
    **more: Any,
) -> list[EventRecord]:
    """Close the question of a run because a person has decided; budgets are counted from here. Return the entry for the
    journal, if there was a question."""
    if facts.question is None:
        return []
    question_id, question = facts.question.id, asked(facts.question)
    facts.question, facts.restores = None, 0
    facts.spent_before = SpentBefore(last=run.last, **msgspec.structs.asdict(spent_by(store, run)))
    return [
        build_event(
            "question.answered", now, question_id=question_id, choice=choice, actor=actor, **question, **more
        )
    ]


def check_choice(
    context: StoreContext, run: RunRecord, facts: RunDetail, choice: Any, version: Any, keep: Any
) -> PendingRollback | None:
    """Return the rollback that an answer asks for; None if it asks for none. Raise `InvalidAnswer` if the answer does
    not fit."""
    assert facts.question is not None
    question_id = facts.question.id
    if choice not in CHOICES:
        raise InvalidAnswer(
            f"the answer to {question_id!r} is one of {', '.join(CHOICES)}, not {choice!r:.60}",
            question_id=question_id,
        )
    if version is not None and choice != "rollback":
        raise InvalidAnswer(
            f"a version goes with the choice rollback, not with {choice}", question_id=question_id
        )
    if keep and choice != "reinitialize":
        raise InvalidAnswer(
            f"keep goes with the choice reinitialize, not with {choice}", question_id=question_id
        )
    if choice == "rollback":
        return PendingRollback(to=_target(context, run, facts, version), then="queued")
    if choice == "reinitialize":
        wanted = [keep] if isinstance(keep, str) else list(keep or ())
        restarted_state(context, run, run.head, wanted, question_id)
        return PendingRollback(to=FIRST, then="queued", keep=wanted, of=run.head)
    return None


def restarted_state(
    context: StoreContext, run: RunRecord, of: int, keep: Sequence[str | Sequence[Any]], question_id: str = ""
) -> Any:
    """Return the state of the first version with parts of a later one in it; raise `InvalidAnswer` if there is no such
    part."""
    reader = context.reader(run)
    try:
        first, current = reader.state(FIRST), reader.state(of)
    except NotFound as error:
        raise InvalidAnswer(f"run {run.id!r} cannot start over: {error}", question_id=question_id) from error
    state = draft(first)
    for path in keep:
        segments = segments_of(path)
        if not segments:
            return current
        there, value = _find(current, segments)
        before, _ = _find(first, segments)
        place = state
        try:
            if not there and not before:
                raise KeyError(path)
            for segment in segments[:-1]:
                place = place[segment]
            if there:
                place[segments[-1]] = value
            else:
                del place[segments[-1]]
        except (LookupError, TypeError):
            possible = [part["path"] for part in parts_of(changes(first, current))]
            raise InvalidAnswer(
                f"{path!r} cannot be kept: the state of run {run.id!r} has no such part, or its beginning has no place "
                f"for it; what differs from the beginning is: {', '.join(possible[:30]) or 'nothing'}",
                question_id=question_id,
                path=path,
            ) from None
    return state


def _target(context: StoreContext, run: RunRecord, facts: RunDetail, version: Any) -> int:
    assert facts.question is not None
    number = facts.question.good if version is None else getattr(version, "number", version)
    fine = isinstance(number, int) and not isinstance(number, bool)
    if fine:
        try:
            context.reader(run).record(number)
        except HoldfastError:
            fine = False
    if not fine:
        raise InvalidAnswer(
            f"run {run.id!r} has no version {number!r:.40} to roll back to: give one from 1 to {run.last} that was not "
            f"pruned; the last good one is {facts.question.good}",
            question_id=facts.question.id,
        )
    return int(number)


def _find(root: Any, segments: Sequence[Any]) -> tuple[bool, Any]:
    try:
        return True, paths.get(root, segments)
    except NotFound:
        return False, None


def _changes(context: StoreContext, run: RunRecord, number: int) -> list[Change]:
    """Return the changes between a version and the head; an empty list if one of them can no longer be read."""
    reader = context.reader(run)
    try:
        return changes(reader.state(number), reader.state(run.head))
    except HoldfastError:
        return []


def summaries(found: Sequence[Change]) -> list[str]:
    """Return the changes, one line each, as far as a question shows them."""
    lines = [change.summary[:MAX_NOTE] for change in found[:_LINES]]
    return lines if len(found) <= _LINES else [*lines, f"… and {len(found) - _LINES} more"]


def parts_of(found: Sequence[Change]) -> list[dict[str, Any]]:
    """Return the changes, grouped by the part of the state that an operator can keep as a whole."""
    parts: dict[str, list[Change]] = {}
    for change in found:
        parts.setdefault(paths.show(change.path[:1]), []).append(change)
    return [{"path": path, "changes": summaries(within)} for path, within in parts.items()]
