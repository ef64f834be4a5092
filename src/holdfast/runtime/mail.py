"""Word for a run from outside: answers, events, wishes to stop. Each is one compare-and-set of the run's record.

Invariant: a prompt is answered once; an event is taken by one wait; what reaches a run belongs to its present timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.model.names import check_run_id, short
from holdfast.model.public import Prompt, when
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime import restoring
from holdfast.runtime.answered import asked
from holdfast.runtime.limits import Limits, follow_limits, limits_of
from holdfast.runtime.record import lineage
from holdfast.runtime.schema import check_answer
from holdfast.runtime.waits import Facts, Mail, Wait, encoded, facts_of
from holdfast.store.base import Append, Store
from holdfast.tree.codec import decode, encode
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import thaw

_PAGE = 1000
#: Entries of the journal that tell what became of a question.
_OF_PROMPTS = ("prompt.opened", "prompt.answered", "prompt.outdated")
#: Bytes of a value that the run's record keeps.
_LIGHT = 512


def run_of(prompt_id: Any) -> str:
    """The id of the run that a prompt is of; empty if the prompt's id is none."""
    try:
        return check_run_id(prompt_id.rpartition("#")[0]) if isinstance(prompt_id, str) else ""
    except InvalidReference:
        return ""


def answer(context: Context, prompt_id: str, value: Any, actor: str | None) -> RunRecord:
    """Answer a prompt; `InvalidAnswer` if the answer does not fit or comes a second time."""
    run_id = run_of(prompt_id)

    def change(run: RunRecord, facts: Facts) -> list[EventRecord]:
        wait = next((wait for wait in facts.waits if wait.kind == "prompt" and wait.name == prompt_id), None)
        if wait is None or wait.filled:
            raise no_prompt(context.store, run, prompt_id)
        _refuse_if_late(wait, context.clock())
        check_answer(value, wait.schema)
        wait = msgspec.structs.replace(wait, filled=True, value=kept(context, value), actor=actor)
        facts.put(wait)
        return [event("prompt.answered", context.clock(), prompt=prompt_id, actor=actor, **asked(wait))]

    missing = f"there is no prompt {short(prompt_id)}: `prompts` lists those that are open"
    if not run_id:
        raise NotFound(missing)
    return amend(context, run_id, change, missing=missing)


def check_answers(context: Context, run: RunRecord, answers: Mapping[str, Any]) -> None:
    """Refuse answers, by id or address, that do not fit the open questions of a run, that come a second time or late,
    or that are for another run. A run that waits must wait for one of them; others may be for questions to come."""
    waits = [wait for wait in facts_of(run).waits if wait.kind == "prompt"]
    is_for_open = False
    for name, value in answers.items():
        wait = next((wait for wait in waits if name in (wait.name, wait.address)), None)
        if wait is not None and not wait.filled:
            _refuse_if_late(wait, context.clock())
            check_answer(value, wait.schema)
            kept(context, value)
            is_for_open = True
        elif wait is not None or (isinstance(name, str) and name.startswith(f"{run.id}#")):
            raise no_prompt(context.store, run, name if wait is None else wait.name)
        elif (other := context.store.run(run_of(name))) is not None and any(
            wait.name == name for wait in facts_of(other).waits
        ):
            if not _is_part_of(context.store, other, run):
                raise InvalidAnswer(
                    f"prompt {name!r} is a question of run {other.id!r}, not of {run.id!r}", prompt=name
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
            f"prompt {wait.name!r} was to be answered by {when(wait.due):%Y-%m-%d %H:%M:%S} UTC: it has timed out",
            prompt=wait.name,
        )


def send(context: Context, run_id: str, name: str, value: Any, actor: str | None) -> RunRecord:
    """Send an event to a run: it fills a wait for it, or is kept until the run waits for it."""
    if not isinstance(name, str) or not name:
        raise InvalidCall("an event has a name")

    def change(run: RunRecord, facts: Facts) -> list[EventRecord]:
        if run.status in ("completed", "cancelled"):
            raise InvalidCall(
                f"run {run_id!r} is {run.status}: nothing waits for events there any more", run=run_id
            )
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
            letter = Mail(
                name=name, value=stored, head=run.head, number=facts.sent, timeline=run.timeline, actor=actor
            )
            facts.mail = [*facts.mail, _light(letter)]
        return [
            event(
                "event.sent",
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


def wish(context: Context, run_id: str, what: str, reason: str | None, actor: str | None) -> RunRecord:
    """Leave word that a run should stop at the next boundary."""

    def change(run: RunRecord, facts: Facts) -> list[EventRecord]:
        facts.wish, facts.reason, facts.actor = what, reason, actor
        return [event(f"run.{what}_requested", context.clock(), reason=reason, actor=actor)]

    return amend(context, run_id, change)


def pause(context: Context, run: RunRecord, reason: str | None, actor: str | None) -> RunRecord:
    """Pause a run that nobody advances."""

    def change(now: RunRecord, facts: Facts) -> list[EventRecord]:
        if now.revision != run.revision:
            raise StaleVersion(f"run {run.id!r} has moved on: look at it again")
        return [event("run.paused", context.clock(), reason=reason, actor=actor)]

    return amend(context, run.id, change, status="paused", owner=None, until=0)


def drop_wait(context: Context, run: RunRecord, address: str) -> bool:
    """Drop what a run waits for at an address, with what has come for it; return whether there is such a wait."""
    if facts_of(run).wait_at(address) is None:
        return False

    def change(_run: RunRecord, facts: Facts) -> list[EventRecord]:
        wait = facts.wait_at(address)
        facts.drop(address)
        if wait is None or wait.kind != "prompt":
            return []
        return [
            event(
                "prompt.outdated", context.clock(), prompt=wait.name, question=wait.question, address=address,
                answered=wait.filled,
            )
        ]  # fmt: skip

    amend(context, run.id, change)
    return True


def limit(context: Context, run_id: str, given: Limits, workflow: Limits | None) -> RunRecord:
    """Replace limits of a run."""

    def change(_run: RunRecord, facts: Facts) -> list[EventRecord]:
        facts.limits = follow_limits(facts.limits, workflow, given)
        return [event("run.limited", context.clock(), limits=msgspec.to_builtins(limits_of(facts.limits)))]

    return amend(context, run_id, change)


def amend(
    context: Context,
    run_id: str,
    change: Callable[[RunRecord, Facts], list[EventRecord]],
    *,
    missing: str | None = None,
    fresh: bool = False,
    **fields: Any,
) -> RunRecord:
    """Change the further facts of a run, whoever else is writing; with `fresh`, whatever they were."""
    while True:
        run = context.store.run(run_id)
        if run is None:
            raise NotFound(missing or f"there is no run {run_id!r}", run=run_id)
        facts = Facts() if fresh else facts_of(run)
        events = change(run, facts)
        now = context.clock()
        due = now if run.status == "suspended" and facts.has_come() else run.due
        after = msgspec.structs.replace(
            run,
            **{"updated": now, "revision": run.revision + 1, "detail": encoded(facts), "due": due, **fields},
        )
        try:
            return context.store.append(Append(expect=run, run=after, events=events))
        except StaleVersion:
            continue


def call(context: Context, run: RunRecord) -> None:
    """Let a run be looked at, now or when it is suspended: something came for a run that is a part of it."""

    def change(_run: RunRecord, facts: Facts) -> list[EventRecord]:
        facts.called = True
        return []

    amend(context, run.id, change)


def prompts(context: Context, run: RunRecord) -> list[Prompt]:
    """The open questions of a run, without those whose time is over: the run's next execution closes them."""
    facts = facts_of(run)
    now = context.clock()
    frozen = [restoring.shown(context, run, facts)] if facts.prompt and run.status == "frozen" else []
    return frozen + [
        Prompt(
            wait.name,
            run.id,
            wait.address,
            wait.question,
            when(wait.opened),
            wait.schema,
            None if wait.due is None else when(wait.due),
        )
        for wait in facts.waits
        if wait.kind == "prompt" and not wait.filled and not _is_late(wait, now)
    ]


def prompt(context: Context, prompt_id: str) -> Prompt:
    """An open question by its id; says why if there is none."""
    run = context.store.run(run_of(prompt_id))
    if run is None:
        raise NotFound(
            f"there is no prompt {short(prompt_id)}: `prompts` lists those that are open", prompt=prompt_id
        )
    found = next((each for each in prompts(context, run) if each.id == prompt_id), None)
    if found is None:
        for wait in facts_of(run).waits:
            if wait.name == prompt_id and not wait.filled:
                _refuse_if_late(wait, context.clock())
        raise no_prompt(context.store, run, prompt_id)
    return found


def kept(context: Context, value: Any) -> Any:
    """The value as it may be stored: `UnsupportedValue` if it cannot be, secrets replaced."""
    return thaw(Folder(None, context.redact).fold(value))


def adopt(context: Context, run: RunRecord) -> None:
    """A run was imported: what its record says must make sense, and its prompts bear its id."""
    if not run.detail:
        return
    try:
        facts_of(run)
    except (msgspec.ValidationError, HoldfastError):
        amend(context, run.id, lambda _, facts: _renamed(run, facts), fresh=True)
    else:
        amend(context, run.id, lambda _, facts: _renamed(run, facts))


def _renamed(run: RunRecord, facts: Facts) -> list[EventRecord]:
    facts.waits = [
        msgspec.structs.replace(wait, name=f"{run.id}#{wait.name.rpartition('#')[2]}")
        if wait.kind == "prompt"
        else wait
        for wait in facts.waits
    ]
    if facts.prompt:
        facts.prompt = {**facts.prompt, "id": f"{run.id}#{facts.prompt['id'].rpartition('#')[2]}"}
    return []


def carried(context: Context, run: RunRecord, to: int) -> bytes:
    """What stays when the head moves back: sums, numbers that were given, and events that were sent before the version
    and not taken by then."""
    before = facts_of(run)
    if before.prompt:
        # A person has decided.
        restoring.settled(context.store, run, before, 0)
    facts = Facts(
        code=before.code, totals=before.totals, asked=before.asked, sent=before.sent, failed=before.failed,
        undone=before.undone, queue=before.queue, watch=before.watch, fence=before.fence, restores=before.restores,
        dead=before.dead, worked=before.worked, spent=before.spent, used=before.used, limits=before.limits,
        discarded=before.discarded + _discarded(context, run, to),
        overrides=before.overrides,
    )  # fmt: skip
    if before.sent:
        line = dict(lineage(context.reader(run), to))
        # Those before the first version are of the run that this one was forked from, which counts its own events.
        own = [version for number, version in line.items() if number > 0]
        taken = {decode(version.detail).get("mail") for version in own if version.detail}
        # The timeline on which the line went on from each version: what was sent on another is not of this line.
        went_on = {version.parent: version.timeline for version in own}
        facts.mail = [
            _light(letter)
            for letter in _letters(context.store, run)
            if went_on.get(letter.head) == letter.timeline and letter.number not in taken
        ]
    return encoded(facts)


def _discarded(context: Context, run: RunRecord, to: int) -> int:
    """Return how many steps of a workflow a rollback leaves behind; those of a manual run are not limited."""
    if run.workflow is None:
        return 0
    reader = context.reader(run)
    return reader.record(run.head).steps - reader.record(to).steps


def value_of(store: Store, run: RunRecord, letter: Mail) -> Any:
    """What was sent with an event."""
    if not letter.apart:
        return letter.value
    return next(each.value for each in _letters(store, run) if each.number == letter.number)


def _light(letter: Mail) -> Mail:
    """A letter as the run's record keeps it, which every commit of the run writes again."""
    if len(encode(letter.value)) <= _LIGHT:
        return letter
    return msgspec.structs.replace(letter, value=None, apart=True)


def _letters(store: Store, run: RunRecord) -> list[Mail]:
    found: list[Mail] = []
    after = 0
    while page := store.journal(run=run.key, after=after, limit=_PAGE):
        for entry in page:
            after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
            if isinstance(entry, EventRecord) and entry.kind == "event.sent":
                data = decode(entry.data)
                found.append(
                    Mail(
                        name=data["name"],
                        value=data.get("value"),
                        head=data["head"],
                        number=data["number"],
                        timeline=data.get("timeline", 1),
                        actor=data.get("actor"),
                    )
                )
    return found


def no_prompt(store: Store, run: RunRecord, prompt_id: str) -> NotFound | InvalidAnswer:
    """Why there is no such prompt to be answered: who answered it, and when, if somebody did."""
    after = 0
    opened = False
    answered: EventRecord | None = None
    while page := store.journal(run=run.key, after=after, limit=_PAGE):
        for entry in page:
            after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
            if not isinstance(entry, EventRecord) or entry.kind not in _OF_PROMPTS:
                continue
            if decode(entry.data).get("prompt") != prompt_id:
                continue
            if entry.kind == "prompt.outdated":
                return InvalidAnswer(
                    f"prompt {prompt_id!r} is outdated: the workflow of run {run.id!r} asks another question now; "
                    "`prompts` lists those that are open",
                    prompt=prompt_id,
                )
            opened = True
            if entry.kind == "prompt.answered":
                answered = entry
    if answered is not None:
        return _answered(prompt_id, answered)
    if opened:
        return InvalidAnswer(
            f"prompt {prompt_id!r} is not open any more: its run was rolled back, cancelled, or went on without it",
            prompt=prompt_id,
        )
    return NotFound(
        f"there is no prompt {prompt_id!r}: `prompts` lists those that are open", prompt=prompt_id
    )


def _answered(prompt_id: str, entry: EventRecord) -> InvalidAnswer:
    data = decode(entry.data)
    choice = f", with {data['choice']}" if "choice" in data else ""
    return InvalidAnswer(
        f"prompt {prompt_id!r} has been answered already, by {data.get('actor') or 'somebody who gave no name'} at "
        f"{when(entry.at):%Y-%m-%d %H:%M:%S} UTC{choice}",
        prompt=prompt_id,
        actor=data.get("actor"),
        at=when(entry.at),
    )
