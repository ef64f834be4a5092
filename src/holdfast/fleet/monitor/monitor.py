"""The monitor: checks all runs periodically and acts on those that are dead, silent, looping or over their budget.

Any number of monitors may run, in workers or alone. A lease, kept as a small value in the store, elects the leader,
which alone acts. If two monitors act nevertheless, each action is a compare-and-set, and one of them takes effect.

Invariant: a check that fails, or a monitor that dies half-way, leaves each run either unchanged, or in a state from
which the next check, or a worker, continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.heartbeat import (
    ActiveExecution,
    Heartbeat,
    activity_of,
    collected,
    drop_dead_heartbeats,
    local_execution,
    read_heartbeat,
)
from holdfast.execution.leadership import Leadership
from holdfast.execution.lease import is_alive
from holdfast.execution.limits import spent_by
from holdfast.fleet.monitor import recovery
from holdfast.fleet.monitor.detectors import Finding, looping, over_budget, silent
from holdfast.fleet.monitor.unowned_runs import SYMPTOM, Unclaimed, UnownedRuns, Warnings
from holdfast.fleet.service_thread import ServiceThread
from holdfast.history.builder import ERROR, RESULT
from holdfast.history.reader import Reader
from holdfast.log import warn
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.model.run_detail import RunDetail, detail_of
from holdfast.model.watchdog import Watchdog
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.store.protocol import iter_runs
from holdfast.tree.codec import decode
from holdfast.tree.diff import changes

if TYPE_CHECKING:
    from holdfast.execution.open_questions import Inbox
    from holdfast.execution.runner import Runner

#: The job that monitors lead.
_JOB = "monitor"
_PAGE = 32


class ComparedTree:
    """A frozen tree, compared by content."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparedTree) and not changes(self._root, other._root)

    # Compared by content, so not hashable; mypy expects `object` to have a hash.
    __hash__ = None  # type: ignore[assignment]


class AncestorVersion:
    """An ancestor of the head; its result and state are read on access."""

    def __init__(self, reader: Reader, version: VersionRecord, floor: int) -> None:
        self._reader = reader
        self.number = version.number
        self.at = version.at
        self.step = version.step
        detail = decode(version.detail) if version.detail and version.number > floor else {}
        args = detail.get("args")
        self.call = None if args is None else (version.step, args, "failed" in detail)

    @cached_property
    def result(self) -> tuple[ComparedTree, ...]:
        return tuple(ComparedTree(self._reader.part(self.number, which)) for which in (RESULT, ERROR))

    @cached_property
    def state(self) -> ComparedTree:
        return ComparedTree(self._reader.state(self.number))


class Ancestors:
    """The versions of a run by their distance from the head, read on demand: most runs do not loop, which one or two
    versions show. None is older than the version at which a person last let the run continue."""

    def __init__(self, reader: Reader, head: int, floor: int) -> None:
        self._read_so_far: list[AncestorVersion] = []
        self._rest = self._read(reader, head, floor)

    def __call__(self, distance: int) -> AncestorVersion | None:
        while distance >= len(self._read_so_far):
            version = next(self._rest, None)
            if version is None:
                return None
            self._read_so_far.append(version)
        return self._read_so_far[distance]

    def _read(self, reader: Reader, head: int, floor: int) -> Iterator[AncestorVersion]:
        wanted, before = head, head + 1
        while wanted > 0:
            page = reader.store.versions(reader.run.key, before=before, limit=_PAGE)
            if not page:
                return
            for version in page:
                if version.number == wanted:
                    yield AncestorVersion(reader, version, floor)
                    if version.number <= floor:
                        return
                    wanted = version.parent
                elif version.number < wanted:
                    return
            before = min(page[-1].number, wanted + 1)


_GONE = "its owner is gone: the process has died, or could not renew its lease"
_UNOWNED = "no process advances it, and it is in no queue"
#: The action of an alert, as the log describes it.
DONE = {
    "recover": "it is rolled back to its last good version and resumed",
    "stall": "it is stalled, and a question in the inbox asks a person",
    "hand over": "another process resumes it",
    "report": "recorded in its journal only, because it has no watchdog",
}
#: Microseconds between two clean-ups of what dead processes left.
_TIDY = 60_000_000
#: The longest pause, in seconds, between attempts to reach the store.
_LONGEST_PAUSE = 30.0
#: Attempts to stop a run that commits meanwhile.
_TRIES = 60


class Alert(msgspec.Struct, frozen=True):
    """A problem that the monitor found, and its action."""

    run: str
    #: dead, silent, looping, over budget or unclaimed.
    symptom: str
    why: str
    #: recover, stall, hand over or report; in a plan also resume: the run was recovered or answered before.
    action: str


class _Watched(msgspec.Struct, frozen=True):
    """A run as one check sees it."""

    run: RunRecord
    facts: RunDetail
    watchdog: Watchdog | None
    #: The heartbeat of its execution, and its time.
    sign: ActiveExecution | None
    at: int


class _Verdict(NamedTuple):
    """A problem of a run, and the action to take."""

    finding: Finding
    action: str


class Monitor:
    """Checks runs until it is stopped: `run` blocks, `start` works in a thread, `look` checks once."""

    def __init__(self, runner: Runner, inbox: Inbox, interval: float, watchdog: Watchdog | None) -> None:
        self._runner = runner
        self._inbox = inbox
        self._engine = runner.engine
        self._store = runner.engine.store
        self._interval = interval
        self._watchdog = watchdog
        self._leadership = Leadership(self._engine, _JOB)
        self._stop = InterruptSafeEvent()
        self._thread = ServiceThread("monitor")
        self._unowned = UnownedRuns(runner)
        self._unclaimed = Unclaimed(runner)
        self._warnings = Warnings()
        self._loop_warnings = Warnings()
        #: When the last clean-up was, and up to which name it came.
        self._tidied = 0
        self._tidied_up_to = ""
        #: The head and fence at which each run was last found not to loop.
        self._seen: dict[int, tuple[int, int]] = {}

    def run(self) -> None:
        """Check runs until stopped."""
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                for alert in self.look():
                    warn("run %s is %s: %s; %s", alert.run, alert.symptom, alert.why, DONE[alert.action])
                wait = self._interval
            except Exception as error:
                wait = min(_LONGEST_PAUSE, max(self._interval, wait * 2))
                fault = not isinstance(error, HoldfastError)
                warn("the monitor could not check runs and retries in %.1f s: %s", wait, error, trace=fault)
        self._leadership.resign()
        self._inbox.loops.release()

    def serve(
        self, on_signal: Callable[[int], None] | None = None, ready: Callable[[], None] | None = None
    ) -> None:
        """Check runs until a SIGTERM or SIGINT, in the main thread. `on_signal` gets the number of each; `ready` is
        called once signals are handled."""
        # Not in this thread: a handler that sets the event that it waits for could deadlock.
        self._thread.serve(self.run, self.stop, on_signal, ready)

    def start(self) -> Monitor:
        """Check runs in a thread."""
        self._thread.start(self.run)
        return self

    def stop(self) -> None:
        """Stop checking. Runs that it has resumed continue."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        return self._thread.join(timeout)

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def wait(self) -> None:
        """Wait until the runs that it resumed have ended or are suspended."""
        self._unowned.wait()

    @property
    def acting(self) -> bool:
        """Whether this monitor is the leader."""
        return self._leadership.held

    def look(self) -> list[Alert]:
        """Check all runs and agent loops once and act, and send the reminders of questions that are due; return the
        problems found. If another monitor leads, only resume the runs whose code the leader lacks."""
        if not self._leadership.take(self._interval):
            self._unowned.resume_all(acts=False)
            return []
        self._engine.keeper.beat()
        found = self._examined(act=True)
        found += [Alert(run, "dead", why, "stall") for run, why in self._unowned.resume_all()]
        found += [Alert(run, SYMPTOM, why, "stall") for run, why in self._unclaimed.stop()]
        found += self._checked_loops()
        self._inbox.send_due()
        self._tidy()
        return found

    def plan(self) -> list[Alert]:
        """Return what a check would find and do now. Nothing is changed."""
        found = self._examined(act=False)
        found += [Alert(run.id, "dead", _UNOWNED, "resume") for run in self._unowned]
        found += [Alert(run, "dead", why, "stall") for run, why in self._unowned.overdue()]
        found += [Alert(run, SYMPTOM, why, "stall") for run, why in self._unclaimed.overdue()]
        return found + [Alert(run, "silent", why, action) for run, why, action in self._inbox.loops.overdue()]

    def _checked_loops(self) -> list[Alert]:
        """Check the agent loops, unless another process does; return those that have stalled."""
        check = self._inbox.loops.check(self._interval)
        for name, error in check.errors:
            self._loop_warnings.warn(name, "cannot be checked", error)
        self._loop_warnings.forget({name for name, _ in check.errors})
        return [Alert(run, "silent", why, action) for run, why, action in check.stalled]

    def _examined(self, *, act: bool) -> list[Alert]:
        found, present = [], set()
        for run, heartbeat in self._running():
            present.add(run.id)
            try:
                alert = self._examine(self._watched(run, heartbeat), act=act)
            except StaleVersion:
                continue
            except Exception as error:
                # A fault in one run must not keep the others from being checked.
                self._warnings.warn(run.id, "cannot be checked", error)
                continue
            if alert is not None:
                found.append(alert)
        self._warnings.forget(present)
        return found

    def _running(self) -> Iterator[tuple[RunRecord, Heartbeat | None]]:
        heartbeats: dict[str, Heartbeat | None] = {}
        seen: set[int] = set()
        for run in iter_runs(self._store, statuses=["running"], live=True):
            if run.owner is not None and run.owner not in heartbeats:
                heartbeats[run.owner] = self._heartbeat_of(run.owner)
            seen.add(run.key)
            yield run, heartbeats.get(run.owner or "")
        # Forget runs that have ended.
        self._seen = {key: self._seen[key] for key in seen if key in self._seen}

    def _heartbeat_of(self, owner: str) -> Heartbeat | None:
        if owner == self._engine.owner:
            return collected(self._engine)
        try:
            return read_heartbeat(self._store, owner)
        except Exception as error:
            warn("the monitor cannot read the heartbeat of %s: %s", owner, error)
            return None

    def _watched(self, run: RunRecord, heartbeat: Heartbeat | None) -> _Watched:
        facts = detail_of(run)
        watchdog = facts.watchdog_policy or self._watchdog
        sign = None if heartbeat is None else heartbeat.runs.get(run.key)
        at = 0 if heartbeat is None else heartbeat.at
        if sign is not None and (
            sign.fence != facts.fence or sign.timeline != run.timeline or at < run.updated
        ):
            # The heartbeat is of an execution that has ended, or older than its last commit.
            sign = None
        return _Watched(run, facts, watchdog, sign, at)

    def _examine(self, watched: _Watched, *, act: bool) -> Alert | None:
        run = watched.run
        dead = not is_alive(run, self._now()) and not self._engine.advances(run)
        verdict = self._dead(watched) if dead else self._stuck(watched)
        if verdict is None:
            return None
        if act and not (self._act_on_dead(run, verdict) if dead else self._act(watched, verdict)):
            return None
        return Alert(run.id, verdict.finding.symptom, verdict.finding.why, verdict.action)

    def _stuck(self, watched: _Watched) -> _Verdict | None:
        """Return the problem of a run that has a live owner, and the action."""
        finding = self._find(watched)
        if finding is None:
            return None
        recovers = recovery.may_recover(watched.facts, watched.watchdog or Watchdog(), finding)
        return _Verdict(finding, "recover" if recovers else "stall")

    def _dead(self, watched: _Watched) -> _Verdict | None:
        """Return the action for a run whose owner is dead: workers claim queued runs; for others the watchdog
        decides."""
        run, facts, watchdog = watched.run, watched.facts, watched.watchdog
        if run.parent is not None:
            return None
        finding = Finding(
            symptom="dead", why=_GONE, since=min(run.until or run.updated, self._now()), good=run.head
        )
        # A started rollback that says what follows is finished, whatever the watchdog says.
        decided = facts.rollback is not None and facts.rollback.then is not None
        if decided or recovery.place_of(self._store, run, facts) is not None:
            return _Verdict(finding, "hand over")
        if watchdog is None:
            return None if recovery.was_reported(run, facts) else _Verdict(finding, "report")
        recovers = recovery.may_recover(facts, watchdog, finding)
        return _Verdict(finding, "recover" if recovers else "stall")

    def _find(self, watched: _Watched) -> Finding | None:
        run, facts, watchdog, sign = watched.run, watched.facts, watched.watchdog, watched.sign
        if sign is not None:
            found = silent(sign, watched.at, watchdog or Watchdog(), run.head)
            if found is not None:
                return self._with_stack(run, found)
        if watchdog is None or facts.rollback is not None:
            return None
        working = 0 if sign is None else watched.at - sign.began
        if watchdog.has_budget:
            spent = spent_by(self._store, run)
            found = over_budget(facts, watchdog, spent=spent, working=working, now=self._now(), head=run.head)
            if found is not None:
                return found
        if watchdog.max_repeats is None and watchdog.max_unchanged is None:
            return None
        if self._seen.get(run.key) == (run.head, facts.fence):
            return None
        trail = Ancestors(self._engine.context.reader(run), run.head, facts.resumed_after)
        found = looping(trail, watchdog)
        if found is None:
            self._seen[run.key] = (run.head, facts.fence)
        return found

    def _with_stack(self, run: RunRecord, finding: Finding) -> Finding:
        """Add the stack, if this process executes the run and the heartbeat has none."""
        execution = local_execution(self._engine, run)
        if finding.stack or execution is None:
            return finding
        sign = activity_of(execution, self._now(), stacks=True)
        stacks = {step.address: step.stack for step in sign.steps}
        stack = sign.stack if finding.address is None else stacks.get(finding.address, "")
        return msgspec.structs.replace(finding, stack=stack)

    def _act(self, watched: _Watched, verdict: _Verdict) -> bool:
        """Take a stuck run away from its owner; return whether that was done."""
        run, finding, watchdog = watched.run, verdict.finding, watched.watchdog or Watchdog()
        working = 0 if watched.sign is None else watched.at - watched.sign.began
        self._hand_over_parents(run, finding)
        stall = partial(recovery.stall, policy=watchdog.question)
        take = recovery.recover if verdict.action == "recover" else stall
        taken = take(self._engine, run, finding, working)
        tries = 0
        while taken is None and tries < _TRIES:
            # It has committed meanwhile. A looping run does; a silent one is no longer silent.
            tries += 1
            again = self._still(watched, finding, watchdog, closely=tries < _TRIES // 2)
            if again is None:
                return False
            taken = take(self._engine, again, finding, working)
        if taken is not None and verdict.action == "recover":
            self._unowned.finish(taken)
        return taken is not None

    def _act_on_dead(self, run: RunRecord, verdict: _Verdict) -> bool:
        """Act on a run whose owner is dead; return whether that was done."""
        does: dict[str, Callable[[EngineContext, RunRecord, Finding], RunRecord | None]] = {
            "hand over": recovery.hand_over,
            "report": recovery.report,
            "recover": recovery.recover,
            "stall": partial(
                recovery.stall, policy=None if self._watchdog is None else self._watchdog.question
            ),
        }
        return does[verdict.action](self._engine, run, verdict.finding) is not None

    def _still(
        self, watched: _Watched, finding: Finding, watchdog: Watchdog, *, closely: bool
    ) -> RunRecord | None:
        """Return the run as it is now, if the problem still holds. Without `closely`, do not search for a loop
        again: the run commits faster than that."""
        run = self._store.run(watched.run.id)
        if run is None or finding.symptom == "silent" or run.status != "running":
            return None
        now = self._watched(run, None)
        same = (now.facts.fence, run.timeline, run.owner) == (
            watched.facts.fence,
            watched.run.timeline,
            watched.run.owner,
        )
        if not same:
            return None
        if closely and finding.symptom == "looping":
            needed = 2 * max(watchdog.max_repeats or 0, watchdog.max_unchanged or 0)
            trail = Ancestors(self._engine.context.reader(run), run.head, now.facts.resumed_after)
            return None if looping(trail, watchdog, needed) is None else run
        return run

    def _hand_over_parents(self, run: RunRecord, finding: Finding) -> None:
        """Hand over the parents of a run that is stuck in their thread: resuming them reaches the run again."""
        above = None if run.parent is None else self._store.run_by_key(run.parent)
        if above is None or above.status != "running" or above.owner != run.owner:
            return
        self._hand_over_parents(above, finding)
        why = f"its child run {run.id} is stuck: {finding.why}"
        recovery.hand_over(
            self._engine, above, msgspec.structs.replace(finding, why=why, good=above.head, stack="")
        )

    def _tidy(self) -> None:
        """Remove what dead processes left, once in a while."""
        if self._now() - self._tidied >= _TIDY:
            self._tidied = self._now()
            self._tidied_up_to = drop_dead_heartbeats(self._store, self._now(), self._tidied_up_to)

    def _now(self) -> int:
        return self._engine.context.clock()
