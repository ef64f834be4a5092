"""Who is to answer a question, by when, and what happens until then: the policy, and its state in a record.

Invariant: a reminder is due once: the state after it says when the next one is, which is later than now. An escalation
happens once. The clock of the store decides both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidCall
from holdfast.model.checks import check_integer, check_seconds, check_text
from holdfast.model.names import CONTROL, MAX_ID, short

#: Priorities go from its negative to it. A list of questions before a time reads a range for each priority.
MAX_PRIORITY = 100
#: Seconds between two reminders at least: each writes an event.
MIN_REMINDER = 1.0


class QuestionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to answer a question, by when, and who is reminded. Times are seconds from the question."""

    #: Who is to answer: a person or a group, by any name.
    assignee: str | None = None
    #: From -100 to 100; questions of higher priority are listed first.
    priority: int = 0
    #: When an answer is wanted. The question stays open after that.
    due: float | None = None
    #: How often `question.reminded` is written into the journal while the question is open.
    remind_every: float | None = None
    #: When `question.escalated` is written, and the question is assigned to `escalate_to`.
    escalate_after: float | None = None
    escalate_to: str | None = None

    def __post_init__(self) -> None:
        check_assignee("assignee", self.assignee)
        check_assignee("escalate_to", self.escalate_to)
        check_priority(self.priority)
        for name in ("due", "escalate_after"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name), above_zero=True)
        if self.remind_every is not None:
            check_seconds("remind_every", self.remind_every, least=MIN_REMINDER)
        if self.escalate_to is not None and self.escalate_after is None:
            raise InvalidCall(
                "escalate_to says to whom a question is escalated: say when, with escalate_after=seconds"
            )


def check_question_policy(policy: Any) -> QuestionPolicy | None:
    """Return a policy, or raise `InvalidCall`."""
    if policy is not None and not isinstance(policy, QuestionPolicy):
        raise InvalidCall(
            f"question is QuestionPolicy(…), such as QuestionPolicy(assignee='ana'), not {short(policy)}"
        )
    return policy


def check_assignee(name: str, value: Any) -> str | None:
    """Return the name of a person or group, or None; raise `InvalidCall` if it cannot be one."""
    check_text(name, value, MAX_ID)
    if value is not None and (not value.strip() or CONTROL.search(value)):
        raise InvalidCall(
            f"{name} is a name of 1 to {MAX_ID} characters without control characters, not {short(value)}",
            field=name,
        )
    return None if value is None else str.__str__(value)


def check_priority(value: Any) -> int:
    """Return the priority of a question, or raise `InvalidCall`."""
    return check_integer("priority", value, -MAX_PRIORITY, MAX_PRIORITY)


class Handling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a question in this respect. Times are microseconds."""

    assignee: str | None = None
    priority: int = 0
    due: int | None = None
    remind_every: int | None = None
    #: When the next reminder is due; how many were sent.
    remind_at: int | None = None
    reminders: int = 0
    #: When the question is escalated, and to whom; None after that.
    escalate_at: int | None = None
    escalate_to: str | None = None
    escalated: bool = False

    @staticmethod
    def of(policy: QuestionPolicy | None, opened: int, expires: int | None = None) -> Handling:
        """Return the handling of a question that was opened at a time."""
        policy = QuestionPolicy() if policy is None else policy
        every = _microseconds(policy.remind_every)
        return Handling(
            assignee=policy.assignee,
            priority=policy.priority,
            due=expires if policy.due is None else _after(opened, policy.due),
            remind_every=every,
            remind_at=None if every is None else opened + every,
            escalate_at=_after(opened, policy.escalate_after),
            escalate_to=policy.escalate_to,
        )

    @property
    def wake(self) -> int | None:
        """When the next reminder or the escalation is due; None for never."""
        return min((at for at in (self.remind_at, self.escalate_at) if at is not None), default=None)

    def woken(self, now: int) -> tuple[Handling, dict[str, dict[str, Any]]]:
        """Return the handling after what is due by now, and the events to write, by kind, with their data. However many
        reminders were due, there is one."""
        after = self
        events: dict[str, dict[str, Any]] = {}
        if after.escalate_at is not None and after.escalate_at <= now:
            after = msgspec.structs.replace(
                after, assignee=after.escalate_to or after.assignee, escalate_at=None, escalated=True
            )
            events["question.escalated"] = {"assignee": after.assignee, "previous": self.assignee}
        if after.remind_at is not None and after.remind_at <= now:
            every = after.remind_every or int(MIN_REMINDER * 1e6)
            missed = (now - after.remind_at) // every
            after = msgspec.structs.replace(
                after, remind_at=after.remind_at + (missed + 1) * every, reminders=after.reminders + 1
            )
            events["question.reminded"] = {"assignee": after.assignee, "reminders": after.reminders}
        return after, events


def _microseconds(seconds: float | None) -> int | None:
    # A `float64` of numpy is a float, but not a built-in one.
    return None if seconds is None else int(float(seconds) * 1_000_000)


def _after(start: int, seconds: float | None) -> int | None:
    span = _microseconds(seconds)
    return None if span is None else start + span
