"""The prompt of a run that is frozen: what it tells, which answers fit, what they mean for the run.

Invariant: nothing is written here. A prompt is settled in the commit that does, or begins, what was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidAnswer, NotFound
from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.history.version import segments_of
from holdfast.model.names import MAX_NOTE
from holdfast.model.public import Prompt, when
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.answered import asked
from holdfast.runtime.limits import spent_by
from holdfast.runtime.waits import Facts
from holdfast.store.base import Store
from holdfast.tree import path as paths
from holdfast.tree.diff import Change, changes
from holdfast.tree.draft import draft

CHOICES = ("resume", "rollback", "reinitialise", "cancel")
#: The version from which a run is begun afresh.
FIRST = 1
#: Lines of a difference that a prompt shows.
_LINES = 200


def shown(context: Context, run: RunRecord, facts: Facts) -> Prompt:
    """The open prompt of a run that is frozen."""
    asked = facts.prompt
    good = asked["good"]
    details = {
        "symptom": asked["symptom"],
        "why": asked["why"],
        "since": when(asked["since"]),
        "address": asked.get("address"),
        "attempt": asked.get("attempt"),
        "stack": asked.get("stack"),
        "restores": asked.get("restores", 0),
        "version": good,
        "diff": _lines(_changes(context, run, good)),
        "initial": _parts(_changes(context, run, FIRST)),
        "choices": list(CHOICES),
    }
    return Prompt(
        id=asked["id"],
        run=run.id,
        address=asked.get("address") or "",
        question=f"{asked['why']}: resume, roll back (to version {good}), reinitialise or cancel?",
        opened=when(asked["opened"]),
        schema={"enum": list(CHOICES)},
        details=details,
    )


def settled(
    store: Store,
    run: RunRecord,
    facts: Facts,
    now: int,
    *,
    choice: str = "resume",
    actor: str | None = None,
    **more: Any,
) -> list[EventRecord]:
    """A person decided what becomes of a run: its prompt is closed, and what is allowed is counted from here."""
    if not facts.prompt:
        return []
    prompt, question = facts.prompt["id"], asked(facts)
    facts.prompt, facts.restores = {}, 0
    spent = msgspec.to_builtins(spent_by(store, run))
    facts.spent = {"last": run.last, **spent}
    return [event("prompt.answered", now, prompt=prompt, choice=choice, actor=actor, **question, **more)]


def check_choice(
    context: Context, run: RunRecord, facts: Facts, choice: Any, version: Any, keep: Any
) -> dict[str, Any] | None:
    """The rollback that an answer asks for, as a run's record keeps it; None if it asks for none. `InvalidAnswer` if it
    does not fit."""
    prompt = facts.prompt["id"]
    if choice not in CHOICES:
        raise InvalidAnswer(
            f"the answer to {prompt!r} is one of {', '.join(CHOICES)}, not {choice!r:.60}", prompt=prompt
        )
    if version is not None and choice != "rollback":
        raise InvalidAnswer(f"a version goes with the choice rollback, not with {choice}", prompt=prompt)
    if keep and choice != "reinitialise":
        raise InvalidAnswer(f"keep goes with the choice reinitialise, not with {choice}", prompt=prompt)
    if choice == "rollback":
        return {"to": _target(context, run, facts, version), "then": "queued"}
    if choice == "reinitialise":
        wanted = [keep] if isinstance(keep, str) else list(keep or ())
        begun_afresh(context, run, run.head, wanted, prompt)
        return {"to": FIRST, "then": "queued", "keep": wanted, "of": run.head}
    return None


def begun_afresh(context: Context, run: RunRecord, of: int, keep: Sequence[str], prompt: str = "") -> Any:
    """The state of the first version with parts of a later one in it; `InvalidAnswer` if there is no such part."""
    reader = context.reader(run)
    try:
        first, current = reader.state(FIRST), reader.state(of)
    except NotFound as error:
        raise InvalidAnswer(f"run {run.id!r} cannot begin afresh: {error}", prompt=prompt) from error
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
            possible = [part["path"] for part in _parts(changes(first, current))]
            raise InvalidAnswer(
                f"{path!r} cannot be kept: the state of run {run.id!r} has no such part, or its beginning has no place "
                f"for it; what differs from the beginning is: {', '.join(possible[:30]) or 'nothing'}",
                prompt=prompt,
                path=path,
            ) from None
    return state


def _target(context: Context, run: RunRecord, facts: Facts, version: Any) -> int:
    number = facts.prompt["good"] if version is None else getattr(version, "number", version)
    fine = isinstance(number, int) and not isinstance(number, bool)
    if fine:
        try:
            context.reader(run).record(number)
        except HoldfastError:
            fine = False
    if not fine:
        raise InvalidAnswer(
            f"run {run.id!r} has no version {number!r:.40} to roll back to: give one from 1 to {run.last} that was not "
            f"pruned; the last good one is {facts.prompt['good']}",
            prompt=facts.prompt["id"],
        )
    return int(number)


def _find(root: Any, segments: Sequence[Any]) -> tuple[bool, Any]:
    try:
        return True, paths.get(root, segments)
    except NotFound:
        return False, None


def _changes(context: Context, run: RunRecord, number: int) -> list[Change]:
    """What differs between a version and the head; nothing where one cannot be read any more."""
    reader = context.reader(run)
    try:
        return changes(reader.state(number), reader.state(run.head))
    except HoldfastError:
        return []


def _lines(found: Sequence[Change]) -> list[str]:
    lines = [change.summary[:MAX_NOTE] for change in found[:_LINES]]
    return lines if len(found) <= _LINES else [*lines, f"… and {len(found) - _LINES} more"]


def _parts(found: Sequence[Change]) -> list[dict[str, Any]]:
    """What differs, by the part of the state that an operator can keep as a whole."""
    parts: dict[str, list[Change]] = {}
    for change in found:
        parts.setdefault(paths.show(change.path[:1]), []).append(change)
    return [{"path": path, "changes": _lines(within)} for path, within in parts.items()]
