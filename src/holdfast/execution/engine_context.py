"""The state that all executions of one open store share, and the overrides of a run's steps.

The run's record holds the names of its overrides, so that a process that lacks the functions does not run the steps'
own code.

Invariant: a run with recorded overrides is executed with a function for each of them, or not at all.
Invariant: at most one thread or task of an engine advances a run.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.errors import AlreadyRunning, InvalidCall, NotFound, OverridesMissing
from holdfast.event_loop import running_loop
from holdfast.execution.calls import current
from holdfast.execution.effects import AsyncCommitter
from holdfast.execution.heartbeat import Heartbeats
from holdfast.execution.lease import LeaseKeeper, is_alive
from holdfast.execution.run_endings import Endings
from holdfast.execution.write_lock import current_holder, has_holder_ended
from holdfast.history.builder import build_event
from holdfast.history.context import StoreContext
from holdfast.history.history import History
from holdfast.model.meta import MetaValue
from holdfast.model.names import check_run_id, short, suggest
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import RunDetail, detail_of, encode_detail
from holdfast.tree.merge import Declared
from holdfast.workflow.definition import implementation, step_named
from holdfast.workflow.subscriptions import Publisher

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution


Overrides = Mapping[str, Callable[..., Any]]
#: As a caller gives them: None is for the step's own function.
GivenOverrides = Mapping[str, Callable[..., Any] | None]


def check_overrides(given: GivenOverrides | None) -> GivenOverrides | None:
    """Return the override functions that a caller passes, undecorated, or raise `InvalidCall`."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(each is None or callable(each) for each in given.values()):
        raise InvalidCall("overrides maps names of steps to functions, or to None for the step's own")
    for name in given:
        if step_named(name) is None:
            raise InvalidCall(f"overrides names {name!r:.60}, which is not a step that this process knows")
    return {name: getattr(getattr(each, "holdfast", None), "function", each) for name, each in given.items()}


def merge_overrides(
    recorded: Mapping[str, Any], given: GivenOverrides | None, known: Overrides
) -> tuple[Overrides, list[str]]:
    """Return the overrides of a run: those recorded, of which this process knows functions, with those given; and the
    names of those whose functions are missing. An empty mapping clears all."""
    if given is not None and not given:
        return {}, []
    functions = {name: known[name] for name in recorded if name in known}
    given = given or {}
    functions.update({name: each for name, each in given.items() if each is not None})
    for name, each in given.items():
        if each is None:
            functions.pop(name, None)
    return functions, [name for name in recorded if name not in functions and name not in given]


def require_overrides(
    run_id: str, recorded: Mapping[str, Any], given: GivenOverrides | None, known: Overrides
) -> Overrides:
    """Return the functions with which a run is to be executed, or raise `OverridesMissing`."""
    functions, missing = merge_overrides(recorded, given, known)
    if missing:
        shown = ", ".join(f"{name} ({recorded[name]})" for name in missing)
        raise OverridesMissing(
            f"run {run_id!r} runs other functions in the place of steps, which this process does not know: {shown}; "
            "resume it with overrides={name: function, …}, or with overrides={} (--clear-overrides) to run the steps' "
            "own code",
            run=run_id,
            steps=missing,
        )
    return functions


def describe_overrides(functions: GivenOverrides) -> dict[str, str]:
    """Return overrides as the run's record keeps them."""
    return {name: " ".join(implementation(each)) for name, each in functions.items() if each is not None}


#: Microseconds for which a lease is valid unless it is renewed.
LEASE = 15_000_000
#: Ids among which a similar one is searched for.
_PAGE = 256


def unlimited(queue: str) -> int | None:
    """Return None: any number of runs of a queue may be owned at once."""
    return None


class _Claim:
    """The claim of a thread or task of this engine to advance a run: its holder, and the event loop of a task."""

    __slots__ = ("holder", "loop")

    def __init__(self, loop: Any, holder: Any) -> None:
        self.loop = loop
        self.holder = holder


class EngineContext:
    """The parts that all executions of an engine share."""

    def __init__(
        self,
        context: StoreContext,
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
        self.committer = AsyncCommitter(context.store)
        self.publisher = Publisher(context)
        self.endings = Endings(context)
        self.heartbeats = Heartbeats(self)
        self.keeper = LeaseKeeper(context, lease, self._claim_expired, self.heartbeats)
        #: Called with the run id of each execution that was abandoned because its run was taken away.
        self.on_abandoned: list[Callable[[str], object]] = []
        #: Held while runs are claimed from queues. An execution that has to look whose its run is does so before or
        #: after: it never takes a run for its own that this engine has lost and claimed once more.
        self.claiming = threading.Lock()
        #: Functions that take the place of steps, by run and step, as far as this process was given them.
        self.overrides: dict[str, Mapping[str, Callable[..., Any]]] = {}
        #: The executions under way, by run.
        self.executions: dict[str, Execution] = {}
        #: Runs whose execution ended suspended, until its caller has checked whether an answer or signal has arrived.
        self.suspended: set[str] = set()
        self._claims: dict[str, _Claim] = {}
        #: Callbacks for when a run is free, and the lock that guards them and the claims.
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._freeing = threading.Lock()
        _engines.add(self)

    @property
    def owner(self) -> str:
        """The name under which this engine owns runs."""
        return self.keeper.owner

    def record(self, run_id: str) -> RunRecord:
        """Return the record of a run; raise `NotFound`."""
        run = self.store.run(check_run_id(run_id))
        if run is None:
            raise self.no_run(run_id)
        return run

    def no_run(self, text: str) -> NotFound:
        """Return the error for a run that does not exist, with a similar id if there is one."""
        hint = suggest(text, (run.id for run in self.store.runs(limit=_PAGE)))
        return NotFound(f"there is no run {short(text)}{hint}", run=text)

    def history(
        self, run_id: str, merge: Declared | None = None, meta: Mapping[str, MetaValue] | None = None,
        check: Callable[[Any], object] | None = None,
    ) -> History:  # fmt: skip
        """Return the history of a run; `check` is called with each state that it commits."""
        return History(self.context, run_id, merge, meta, check)

    def overrides_of_fork(
        self, origin: str, given: GivenOverrides | None
    ) -> tuple[Overrides, dict[str, str]]:
        """Return the functions that replace steps of a fork, and all its overrides for its record: those of its origin,
        and those given."""
        recorded = detail_of(self.record(origin)).overrides
        functions, missing = merge_overrides(recorded, check_overrides(given), self.overrides.get(origin, {}))
        return functions, {**{name: recorded[name] for name in missing}, **describe_overrides(functions)}

    def detail_of_fork(self, origin: str, overrides: dict[str, str]) -> bytes:
        """Return the detail of a fork's record: overrides, and the metadata of its origin."""
        return encode_detail(RunDetail(overrides=overrides, meta=detail_of(self.record(origin)).meta))

    def remember_overrides(self, run_id: str, functions: Overrides) -> None:
        """Keep the functions of a run's overrides: it has them when it is resumed in this process."""
        self.overrides.pop(run_id, None)
        if functions:
            self.overrides[run_id] = functions

    def reset_after_fork(self) -> None:
        """Reset in the child after a fork: the threads of the parent do not exist here."""
        for execution in self.executions.values():
            execution.lose()
        self.keeper.reset_after_fork()
        self.claiming = threading.Lock()
        self.committer = AsyncCommitter(self.store)
        self.executions, self.suspended, self._claims = {}, set(), {}
        self._waiting, self._freeing = {}, threading.Lock()
        self.publisher.reset_after_fork()
        self.endings.reset_after_fork()
        self.heartbeats.reset_after_fork()

    def claim(self, run_id: str) -> object:
        """Let no other thread or task of this engine advance a run; `AlreadyRunning` if one does. Return the claim, for
        `release`."""
        own = _Claim(running_loop(), current_holder(2))
        self.claimed(run_id)
        if self._claims.setdefault(run_id, own) is not own:
            raise AlreadyRunning(f"run {run_id!r} is being advanced by this process: wait for it", run=run_id)
        return own

    def release(self, run_id: str, claim: object = None) -> None:
        """Free the run, unless this claim was abandoned and another execution has the run."""
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

    def abandon(self, run_id: str, execution: Execution | None) -> None:
        """Abandon an execution whose run was taken away: its further commits are refused, and the run may be executed
        here again."""
        if self.executions.get(run_id) is execution:
            self.executions.pop(run_id, None)
            self._free(run_id)
        if execution is not None:
            execution.lose()
            execution.stop.end_pauses()
            self.keeper.release(execution.lease_handle)
            for frame in [execution.root, *execution.active.values()]:
                if frame is not None and frame.home is not None:
                    with suppress(RuntimeError):
                        frame.home.get_loop().call_soon_threadsafe(frame.home.cancel)
        for callback in list(self.on_abandoned):
            callback(run_id)

    def claimed(self, run_id: str) -> bool:
        """Return whether this engine advances a run. It does not any more if the event loop in which it did was closed,
        or if its thread was interrupted."""
        claim = self._claims.get(run_id)
        if claim is not None and (
            (claim.loop is not None and claim.loop.is_closed()) or has_holder_ended(claim.holder)
        ):
            execution = self.executions.pop(run_id, None)
            if execution is not None:
                execution.lose()
                self.keeper.release(execution.lease_handle)
            self.release(run_id)
            return False
        return claim is not None

    def refuse_if_running(self, run: RunRecord) -> None:
        """Raise `AlreadyRunning` if a process advances a run."""
        if self.claimed(run.id):
            raise _running(run, "by this process")
        self.refuse_if_elsewhere(run)

    def refuse_if_elsewhere(self, run: RunRecord) -> None:
        """Raise `AlreadyRunning` if another engine advances a run."""
        if run.owner != self.owner and is_alive(run, self.context.clock()):
            raise _running(run, "elsewhere")

    def claim_again(self, run: RunRecord) -> bool:
        """Claim a run of this engine again after its lease expired, its parents first; return whether this engine owns
        it. False if another process owns it, or if its queue is full."""
        store = self.store
        above = None if run.parent is None else store.run_by_key(run.parent)
        late = above is not None and above.owner == self.owner and above.until <= store.now()
        if above is not None and late and not self.claim_again(above):
            return False
        place = store.queue_place(run.key)
        most = None if place is None else self._room(place.queue)
        entry = build_event("run.claimed", self.context.clock(), owner=self.owner)
        return store.claim_again(run.key, self.owner, self.lease, most, entry) is not None

    def _claim_expired(self, key: int) -> None:
        """Claim a run again whose lease was not renewed in time, while its execution continues."""
        run = self.store.run_by_key(key)
        if run is None or run.owner != self.owner or not self.claim_again(run):
            return
        execution = self.executions.get(run.id)
        if execution is not None:
            execution.writer.learn_of_claim()

    def advances(self, run: RunRecord) -> bool:
        """Return whether this engine owns a run, whose record was read from the store, and executes it or is about to.
        Such a run is not dead, even if its lease has expired: a machine that slept renews late."""
        if run.owner != self.owner:
            return False
        with self.claiming:
            return self.claimed(run.id) or self.keeper.holds(run)

    def close(self) -> None:
        """Stop the threads that listen and renew."""
        self.publisher.close()
        self.keeper.close()
        self.heartbeats.close()
        self.committer.close()


#: All engines of this process.
_engines: WeakSet[EngineContext] = WeakSet()


def _in_child() -> None:
    current.set(None)
    for engine in list(_engines):
        engine.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _running(run: RunRecord, where: str) -> AlreadyRunning:
    return AlreadyRunning(
        f"run {run.id!r} is being advanced {where}: wait for it, or cancel it", run=run.id, owner=run.owner
    )
