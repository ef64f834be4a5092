"""What executions share in one open store: the store, the clock, who owns what, who listens."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.errors import AlreadyRunning
from holdfast.history.context import Context
from holdfast.runtime.committer import Committer
from holdfast.runtime.lease import Keeper
from holdfast.runtime.publish import Publisher
from holdfast.runtime.scope import current, running_loop

if TYPE_CHECKING:
    from holdfast.runtime.session import Session

#: Microseconds for which a run is its owner's without word from it.
LEASE = 15_000_000


class _Claim:
    """That a thread or task of this engine advances a run; the event loop of the task."""

    __slots__ = ("loop",)

    def __init__(self, loop: Any) -> None:
        self.loop = loop


class Services:
    """What executions share."""

    def __init__(self, context: Context, chance: Callable[[], float] = random.random) -> None:
        self.context = context
        self.store = context.store
        self.chance = chance
        self.lease = LEASE
        self.committer = Committer(context.store)
        self.publisher = Publisher(context)
        self.keeper = Keeper(context, LEASE)
        #: The executions under way, by run.
        self.sessions: dict[str, Session] = {}
        #: Runs whose execution ended in waiting, until whoever executed them has looked whether something came.
        self.suspended: set[str] = set()
        self._claims: dict[str, _Claim] = {}
        _services.add(self)

    @property
    def owner(self) -> str:
        """The name under which this engine owns runs."""
        return self.keeper.owner

    def start_anew(self) -> None:
        """In the child after a fork: what the threads of the parent were doing is not done here."""
        for session in self.sessions.values():
            session.over = True
        self.keeper.start_anew()
        self.committer = Committer(self.store)
        self.sessions, self.suspended, self._claims = {}, set(), {}
        self.publisher.start_anew()

    def claim(self, run_id: str) -> None:
        """Let no other thread or task of this engine advance a run; `AlreadyRunning` if one does."""
        own = _Claim(running_loop())
        self.claimed(run_id)
        if self._claims.setdefault(run_id, own) is not own:
            raise AlreadyRunning(f"run {run_id!r} is being advanced by this process: wait for it", run=run_id)

    def release(self, run_id: str) -> None:
        """The run is free again."""
        self._claims.pop(run_id, None)

    def claimed(self, run_id: str) -> bool:
        """Does this engine advance a run? Not any more if the event loop in which it did was closed."""
        claim = self._claims.get(run_id)
        if claim is not None and claim.loop is not None and claim.loop.is_closed():
            session = self.sessions.pop(run_id, None)
            if session is not None:
                session.over = True
                self.keeper.let_go(session.head.run)
            self.release(run_id)
            return False
        return claim is not None

    def close(self) -> None:
        """Stop the threads that listen and renew."""
        self.publisher.close()
        self.keeper.close()
        self.committer.close()


#: All that are in use.
_services: WeakSet[Services] = WeakSet()


def _in_child() -> None:
    current.set(None)
    for services in list(_services):
        services.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
