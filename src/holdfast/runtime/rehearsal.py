"""Replay that really runs the recorded steps, beside the record, and tells every difference.

Invariant: nothing is written; the workflow goes on with what was recorded, so that one difference does not hide the
next.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from holdfast.history.commit import RESULT
from holdfast.history.reader import Head
from holdfast.runtime import machine
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Step, Workflow
from holdfast.runtime.drive import Call, Do, Flow, error_of
from holdfast.runtime.failure import revive, unpack
from holdfast.runtime.record import Entry
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Session
from holdfast.runtime.view import View, start_of
from holdfast.runtime.waits import facts_of
from holdfast.tree import diff as trees
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict, thaw
from holdfast.tree.merge import merge


class Difference(msgspec.Struct, frozen=True):
    """What a step did otherwise than when it was recorded."""

    #: Of the step; empty for the workflow itself.
    address: str
    #: arguments, result, state or error.
    what: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        return (
            f"{self.address or 'the workflow'}: {self.what} was {self.recorded!r:.200}, is {self.now!r:.200}"
        )


class Rehearsal:
    """Runs recorded steps again and collects the differences."""

    #: Must the calls be those that are recorded?
    strict = False

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.steps = 0
        self.passed: set[str] = set()

    def beside(
        self,
        session: Session,
        entry: Entry,
        definition: Step | Workflow | None,
        digest: bytes,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        view: View,
    ) -> Flow[None]:
        """Run a recorded step again; a wait or a child is taken as recorded. `view` is that of its caller."""
        if definition is not None and machine.is_other(session, entry, digest, args, kwargs):
            error = yield Do(partial(machine.diverged, session, entry, definition, args, kwargs))
            if error is not None:
                self._note(entry.address, "arguments", error.details["recorded"], error.details["now"])
        self.passed.add(entry.address)
        if not isinstance(definition, Step):
            return
        self.steps += 1
        before = entry.number - (entry.version.number - entry.version.parent)
        before = session.record.begun.get(entry.address, before)
        reader = session.services.context.reader(session.head.run)
        root = reader.state(before) if entry.version.parent else FrozenDict()
        frame = Frame(session, entry.address, asynchronous=definition.asynchronous, attempt=1)
        frame.base = (
            Head(session.head.run, entry.version, root) if view.follows else start_of(session, view.now())
        )
        function = session.overrides.get(definition.name, definition.function)
        try:
            value = yield Call(function, args, kwargs, frame, definition.timeout)
        except Halt:
            raise
        except Exception as error:
            recorded = _told(session.record.error(entry)) if entry.failed else None
            if recorded != _told(error_of(error)):
                self._note(entry.address, "error", recorded, _told(error_of(error)))
            return
        finally:
            frame.over = True
        if entry.failed:
            self._note(entry.address, "error", _told(session.record.error(entry)), None)
            return
        self._compare(entry.address, "result", session.record.result(entry)[0], value)
        if frame.held is not None:
            folder = session.folder()
            mine = folder.fold(frame.held, frame.base.root)
            last = reader.state(entry.number - (entry.version.number - entry.version.parent))
            merged = merge(
                frame.base.root,
                mine,
                last,
                resolve=definition.on_conflict,
                reducers=session.reducers,
                fold=folder.fold,
            )
            after = reader.show(merged)
        else:
            after = reader.show(reader.state(entry.number - (entry.version.number - entry.version.parent)))
        self._compare(entry.address, "state", reader.show(reader.state(entry.number)), after)

    def ended(self, session: Session, value: Any, error: BaseException | None) -> None:
        """The workflow's function has ended, within what is recorded."""
        head = session.head
        failed = head.run.status == "failed"
        recorded = _told(revive(unpack(facts_of(head.run).error))) if failed else None
        now = None if error is None else _told(error)
        for address in session.record.steps:
            if address not in self.passed and not any(address.startswith(f"{each}/") for each in self.passed):
                self._note(address, "step", "recorded", "not called")
        if recorded != now:
            self._note("", "error", recorded, now)
        elif error is None and head.version.kind == "final" and head.version.status == "completed":
            reader = session.services.context.reader(head.run)
            self._compare("", "result", thaw(reader.part(head.version.number, RESULT)), value)

    def beyond(self, session: Session, address: str) -> None:
        """A call that the record does not have."""
        if address and session.head.version.kind == "final":
            self._note(address, "step", "not called", "called")

    def _compare(self, address: str, what: str, recorded: Any, now: Any) -> None:
        folder = Folder(None)
        one = folder.fold(recorded)
        other = folder.fold(now, one)
        if one is not other and trees.changes(one, other):
            self._note(address, what, recorded, now)

    def differs(self, address: str, what: str, recorded: Any, now: Any) -> None:
        """Something at an address is otherwise than it was recorded."""
        self._note(address, what, recorded, now)

    def _note(self, address: str, what: str, recorded: Any, now: Any) -> None:
        self.differences.append(Difference(address, what, recorded, now))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
