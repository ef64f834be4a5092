"""What executions share in one open store: the store, the clock, who owns what, who listens."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.errors import AlreadyRunning
from holdfast.event_loop import running_loop
from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.model.records import RunRecord
from holdfast.runtime.committer import Committer
from holdfast.runtime.endings import Endings
from holdfast.runtime.lease import Keeper
from holdfast.runtime.publish import Publisher
from holdfast.runtime.pulse import Pulses
from holdfast.runtime.scope import current
from holdfast.runtime.turn import current_holder, is_lost

if TYPE_CHECKING:
    from holdfast.runtime.session import Session

#: Microseconds for which a run is its owner's without word from it.
LEASE = 15_000_000


def unlimited(queue: str) -> int | None:
    """Any number of runs of a queue may be owned at once."""
    return None


class _Claim:
    """That a thread or task of this engine advances a run; the event loop of the task, and what holds the claim."""

    __slots__ = ("holder", "loop")

    def __init__(self, loop: Any, holder: Any) -> None:
        self.loop = loop
        self.holder = holder


class Services:
    """What executions share."""

    def __init__(
        self,
        context: Context,
        chance: Callable[[], float] = random.random,
        lease: int = LEASE,
        room: Callable[[str], int | None] = unlimited,
    ) -> None:
        self.context = context
        #: Gives how many runs of a queue may be owned at once; None for any number.
        self._room = room
        self.store = context.store
        self.chance = chance
        self.lease = lease
        self.committer = Committer(context.store)
        self.publisher = Publisher(context)
        self.endings = Endings(context)
        self.keeper = Keeper(context, lease, self._claim_expired)
        self.pulses = Pulses(self)
        self.keeper.tell, self.keeper.pace = self.pulses.beat, self.pulses.pace
        #: Told of executions that were given up because their run was taken away.
        self.on_abandoned: list[Callable[[str], object]] = []
        #: Held while runs are claimed from queues. An execution that has to look whose its run is does so before or
        #: after: it never takes a run for its own that this engine has lost and claimed once more.
        self.claiming = threading.Lock()
        #: Functions that take the place of steps, by run and step, as far as this process was given them.
        self.overrides: dict[str, Mapping[str, Callable[..., Any]]] = {}
        #: The executions under way, by run.
        self.sessions: dict[str, Session] = {}
        #: Runs whose execution ended in waiting, until whoever executed them has looked whether something came.
        self.suspended: set[str] = set()
        self._claims: dict[str, _Claim] = {}
        #: What is to be called when a run is free, and the lock under which that is looked at.
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._freeing = threading.Lock()
        _services.add(self)

    @property
    def owner(self) -> str:
        """The name under which this engine owns runs."""
        return self.keeper.owner

    def start_anew(self) -> None:
        """In the child after a fork: what the threads of the parent were doing is not done here."""
        for session in self.sessions.values():
            session.lose()
        self.keeper.start_anew()
        self.claiming = threading.Lock()
        self.committer = Committer(self.store)
        self.sessions, self.suspended, self._claims = {}, set(), {}
        self._waiting, self._freeing = {}, threading.Lock()
        self.publisher.start_anew()
        self.endings.start_anew()
        self.pulses.start_anew()

    def claim(self, run_id: str) -> object:
        """Let no other thread or task of this engine advance a run; `AlreadyRunning` if one does. Gives what releases
        it."""
        own = _Claim(running_loop(), current_holder(2))
        self.claimed(run_id)
        if self._claims.setdefault(run_id, own) is not own:
            raise AlreadyRunning(f"run {run_id!r} is being advanced by this process: wait for it", run=run_id)
        return own

    def release(self, run_id: str, claim: object = None) -> None:
        """The run is free again, unless this claim was given up and the run is another's."""
        if claim is None or self._claims.get(run_id) is claim:
            self._free(run_id)

    def when_free(self, run_id: str, then: Callable[[], object]) -> None:
        """Call something as soon as no thread or task of this engine advances a run: now, if none does."""
        self.claimed(run_id)
        with self._freeing:
            if run_id in self._claims:
                self._waiting.setdefault(run_id, []).append(then)
                return
        then()

    def _free(self, run_id: str) -> None:
        with self._freeing:
            self._claims.pop(run_id, None)
            waiting = self._waiting.pop(run_id, ())
        for then in waiting:
            then()
        self.endings.wake(run_id)

    def abandon(self, run_id: str, session: Session | None) -> None:
        """Give up an execution whose run was taken away: what it still does is not kept, and the run may be advanced
        here anew."""
        if self.sessions.get(run_id) is session:
            self.sessions.pop(run_id, None)
            self._free(run_id)
        if session is not None:
            session.lose()
            session.end_rests()
            self.keeper.let_go(session.hold)
            for frame in [session.root, *session.active.values()]:
                if frame is not None and frame.home is not None:
                    with suppress(RuntimeError):
                        frame.home.get_loop().call_soon_threadsafe(frame.home.cancel)
        for told in list(self.on_abandoned):
            told(run_id)

    def claimed(self, run_id: str) -> bool:
        """Does this engine advance a run? Not any more if the event loop in which it did was closed, or if its thread
        was interrupted."""
        claim = self._claims.get(run_id)
        if claim is not None and (
            (claim.loop is not None and claim.loop.is_closed()) or is_lost(claim.holder)
        ):
            session = self.sessions.pop(run_id, None)
            if session is not None:
                session.lose()
                self.keeper.let_go(session.hold)
            self.release(run_id)
            return False
        return claim is not None

    def claim_again(self, run: RunRecord) -> bool:
        """Claim a run of this engine again whose lease has run out, after the runs that it is a part of; tell whether
        this engine has it. False if it is another's by now, or if its queue is full."""
        store = self.store
        above = None if run.parent is None else store.run_by_key(run.parent)
        late = above is not None and above.owner == self.owner and above.until <= store.now()
        if above is not None and late and not self.claim_again(above):
            return False
        place = store.place(run.key)
        most = None if place is None else self._room(place.queue)
        entry = event("run.claimed", self.context.clock(), owner=self.owner)
        return store.claim_again(run.key, self.owner, self.lease, most, entry) is not None

    def _claim_expired(self, key: int) -> None:
        """Claim a run again whose lease was not renewed in time, while its execution goes on."""
        run = self.store.run_by_key(key)
        if run is None or run.owner != self.owner or not self.claim_again(run):
            return
        session = self.sessions.get(run.id)
        if session is not None:
            session.learn()

    def advances(self, run: RunRecord) -> bool:
        """Is a run, whose record was read from the store, this engine's, and on its way or under way here? Then it is
        not dead, even if its lease has run out: a machine that slept renews late."""
        if run.owner != self.owner:
            return False
        with self.claiming:
            return self.claimed(run.id) or self.keeper.holds(run)

    def close(self) -> None:
        """Stop the threads that listen and renew."""
        self.publisher.close()
        self.keeper.close()
        self.pulses.close()
        self.committer.close()


#: All that are in use.
_services: WeakSet[Services] = WeakSet()


def _in_child() -> None:
    current.set(None)
    for services in list(_services):
        services.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
