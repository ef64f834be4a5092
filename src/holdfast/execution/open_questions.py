"""The inbox: lists open questions by the index of the store, assigns them, and sends reminders and escalations.

Invariant: a page reads what is asked from the runs of that page only. A reminder and its event are one write, so that
it is sent once, by whichever process.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.errors import InvalidAnswer, InvalidCall, NotFound
from holdfast.execution import inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.loops import HandlingChange, Loops, is_control_run
from holdfast.execution.questions import asked, iter_events
from holdfast.execution.stopping import check_reason
from holdfast.history.builder import build_event
from holdfast.history.journal import event_data
from holdfast.log import warn
from holdfast.model.checks import check_seconds, check_text
from holdfast.model.names import MAX_STEP, short
from holdfast.model.public import Question
from holdfast.model.question import Handling, check_assignee, check_priority
from holdfast.model.records import QUESTION_KINDS, EventRecord, RunRecord
from holdfast.model.run_detail import RunDetail, Wait, detail_of
from holdfast.store.protocol import OpenQuestion, QuestionFilters, QuestionPlace, place_of

#: An argument that was not given, where None is a value.
UNCHANGED: Any = msgspec.UNSET
#: Questions whose reminders are sent at a time.
_PAGE = 100
_Events = dict[str, dict[str, Any]]


class Inbox:
    """The open questions of all runs and loops of a store."""

    def __init__(self, engine: EngineContext, loops: Callable[[], Loops]) -> None:
        self._engine = engine
        self._context = engine.context
        self._store = engine.store
        self._loops = loops

    @property
    def loops(self) -> Loops:
        """The agent loops of the store."""
        return self._loops()

    def page(
        self,
        *,
        run: RunRecord | None,
        workflow: str | None,
        assignee: str | None,
        waiting_longer_than: float | timedelta | None,
        kind: str | None,
        limit: int,
        after: str | None,
    ) -> list[Question]:
        """Return the open questions that match the filters, by priority, then oldest first, after a question."""
        check_text("workflow", workflow, MAX_STEP)
        check_text("assignee", assignee, MAX_STEP)
        if kind is not None and kind not in QUESTION_KINDS:
            raise InvalidCall(f"kind is one of {', '.join(QUESTION_KINDS)}, not {short(kind)}", field="kind")
        now = self._context.clock()
        filters: QuestionFilters = {"kind": kind, "workflow": workflow, "assignee": assignee}
        if waiting_longer_than is not None:
            filters["opened_before"] = now - _span("waiting_longer_than", waiting_longer_than)
        if run is not None:
            filters["run"] = run.key
        self.loops.index_questions()
        place = None if after is None else self._place(after)
        found: list[Question] = []
        while len(found) < limit:
            wanted = min(limit - len(found), _PAGE)
            rows = self._store.open_questions(now=now, after=place, limit=wanted, **filters)
            found += self._shown(rows)
            if len(rows) < wanted:
                break
            place = place_of(rows[-1].question)
        return found

    def _shown(self, rows: list[OpenQuestion]) -> list[Question]:
        """Return what is asked by rows, in their order."""
        loops = [row for row in rows if row.question.kind == "loop"]
        of_loops = {question.id: question for question in self.loops.shown(loops)} if loops else {}
        #: Decoded once per run: a run may ask many questions.
        facts: dict[int, RunDetail] = {}
        found: list[Question] = []
        for row in rows:
            question_id = f"{row.run.id}#{row.question.number}"
            if row.question.kind == "loop":
                question = of_loops.get(question_id)
            else:
                if row.run.key not in facts:
                    facts[row.run.key] = detail_of(row.run)
                question = inbox.open_question(self._context, row.run, facts[row.run.key], question_id)
            if question is not None:
                found.append(question)
        return found

    def question(self, question_id: str) -> Question:
        """Return an open question by its id; raise an error that says why if it is not open."""
        if is_control_run(inbox.run_of(question_id)):
            return self.loops.question(question_id)
        return inbox.question(self._context, question_id)

    def assign(
        self,
        question_id: str,
        *,
        assignee: str | None,
        due: float | timedelta | datetime | None,
        priority: int,
        remind_every: float | timedelta | None,
        escalate_after: float | timedelta | None,
        escalate_to: str | None,
        actor: str | None,
    ) -> Question:
        """Change who is to answer an open question, and by when."""
        check_reason(None, actor)
        given = {
            "assignee": assignee, "due": due, "priority": priority, "remind_every": remind_every,
            "escalate_after": escalate_after, "escalate_to": escalate_to,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not UNCHANGED}
        if not given:
            raise InvalidCall("assign takes what to change: assignee=, due=, priority=, remind_every=, …")
        # Refused before anything is read.
        _reassigned(Handling(escalate_at=0), given, self._context.clock())

        def change(handling: Handling) -> tuple[Handling, _Events]:
            after = _reassigned(handling, given, self._context.clock())
            data = {name: value for name, value in msgspec.structs.asdict(after).items() if name in _SHOWN}
            return after, {"question.assigned": {**data, "previous": handling.assignee}}

        self._handle(question_id, change, actor)
        return self.question(question_id)

    def send_due(self) -> int:
        """Send the reminders and escalations that are due; return how many questions they were for. A question that
        cannot be changed does not keep others from being sent."""
        sent, failed = 0, 0
        while True:
            now = self._context.clock()
            rows = self._store.waking_questions(now, failed + _PAGE)[failed:]
            for row in rows:
                question_id = f"{row.run.id}#{row.question.number}"
                try:
                    is_changed = self._handle(
                        question_id, lambda handling: handling.woken(self._context.clock()), None
                    )
                    sent, failed = sent + is_changed, failed + (not is_changed)
                except (InvalidAnswer, NotFound):
                    # Answered meanwhile: its row is gone.
                    failed += bool(self._is_listed(row))
                except Exception as error:
                    failed += 1
                    warn("the reminder of question %s could not be sent: %s", question_id, error)
            if not rows:
                return sent

    def _is_listed(self, row: OpenQuestion) -> bool:
        return row.question in self._store.questions_of(row.question.run)

    def _handle(self, question_id: str, change: HandlingChange, actor: str | None) -> bool:
        """Change the handling of an open question, and write the events, in one commit; return whether it changed."""
        run_id = inbox.run_of(question_id)
        if is_control_run(run_id):
            return self.loops.handle(question_id, change, actor)
        is_changed = False

        def amended(run: RunRecord, facts: RunDetail) -> list[EventRecord] | None:
            nonlocal is_changed
            question = inbox.find_open(run, facts, question_id)
            if question is None:
                raise inbox.no_question(self._store, run, question_id)
            expires = question.due if isinstance(question, Wait) else None
            handling = question.handling or Handling(due=expires)
            now = self._context.clock()
            events: _Events = {}
            if expires is not None and expires <= now:
                # The next execution of the run closes it: nothing more is due.
                after = msgspec.structs.replace(handling, remind_at=None, escalate_at=None)
            elif (changed := change(handling)) is not None:
                after, events = changed
            else:
                return None
            is_changed = after != handling
            if not is_changed:
                return None
            if isinstance(question, Wait):
                facts.put(msgspec.structs.replace(question, handling=after))
            else:
                facts.question = msgspec.structs.replace(question, handling=after)
            text = asked(question)["question"]
            return [
                build_event(kind, now, question_id=question_id, question=text, **data, actor=actor)
                for kind, data in events.items()
            ]

        missing = f"there is no question {short(question_id)}: the inbox lists the open ones"
        if not run_id:
            raise NotFound(missing, question_id=question_id)
        inbox.amend(self._context, run_id, amended, missing=missing)
        self._engine.publisher.wake()
        return is_changed

    def _place(self, question_id: str) -> QuestionPlace:
        """Return the place of a question, the last one of a page, in the list; also if it was closed since."""
        run_id, number = inbox.run_of(question_id), str(question_id).rpartition("#")[2]
        run = self._store.run(run_id) if run_id else None
        if run is not None and number.isdecimal() and len(number) < 19:
            for row in self._store.questions_of(run.key):
                if row.number == int(number):
                    return place_of(row)
            opened, priority = None, 0
            for entry in iter_events(self._store, run=run.key):
                if entry.kind not in ("question.opened", "question.assigned"):
                    continue
                data = event_data(entry)
                if data.get("question_id") == question_id:
                    opened = entry.at if entry.kind == "question.opened" else opened
                    priority = data.get("priority", priority)
            if opened is not None:
                return QuestionPlace(priority, opened, run.key, int(number))
        raise InvalidCall(
            f"after is the id of the last question of the page before, and there is no question {short(question_id)}: "
            "read the list from its beginning, without after",
            field="after",
        )


#: The fields of a handling that its event repeats.
_SHOWN = ("assignee", "priority", "due", "escalate_to")


def _reassigned(handling: Handling, given: dict[str, Any], now: int) -> Handling:
    """Return a handling after an assignment; raise `InvalidCall` for values that it cannot have."""
    fields: dict[str, Any] = {}
    if "assignee" in given:
        fields["assignee"] = check_assignee("assignee", given["assignee"])
    if "priority" in given:
        fields["priority"] = check_priority(given["priority"])
    if "due" in given:
        fields["due"] = None if given["due"] is None else _moment("due", given["due"], now)
    if "remind_every" in given:
        every = None if given["remind_every"] is None else _span("remind_every", given["remind_every"], 1.0)
        fields["remind_every"], fields["remind_at"] = every, None if every is None else now + every
    if "escalate_to" in given:
        fields["escalate_to"] = check_assignee("escalate_to", given["escalate_to"])
    if "escalate_after" in given:
        after = given["escalate_after"]
        fields["escalate_at"] = None if after is None else now + _span("escalate_after", after)
        fields["escalated"] = False
    elif given.get("escalate_to") is not None and handling.escalate_at is None:
        raise InvalidCall(
            "escalate_to says to whom a question is escalated: say when, with escalate_after=seconds"
        )
    return msgspec.structs.replace(handling, **fields)


def _span(name: str, value: Any, least: float = 0) -> int:
    """Return a duration in microseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    return int(check_seconds(name, seconds, least=least) * 1_000_000)


def _moment(name: str, value: Any, now: int) -> int:
    """Return a time in the future, given as a duration from now or as an aware datetime."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidCall(
                f"{name} needs a time zone: pass an aware datetime, or seconds from now", field=name
            )
        at = int((value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))
        if at <= now:
            raise InvalidCall(f"{name} is in the past: {value.isoformat()}", field=name)
        return at
    return now + _span(name, value)
