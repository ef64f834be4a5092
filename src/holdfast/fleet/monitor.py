"""The monitor: looks at all runs now and then, and acts on those that are dead, silent, looping or over their budget.

Any number of monitors may run, in workers or alone; by a lease, kept as a small value of the store, one acts at a time.
If two should act after all, each of their acts is a compare-and-set, and one of them counts.

Invariant: a look that fails, or a monitor that dies half-way, leaves each run either as it was, or so that the next
look, or a worker, goes on with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, StaleVersion
from holdfast.fleet import restore
from holdfast.fleet.lead import Lead
from holdfast.fleet.orphans import Orphans
from holdfast.fleet.symptoms import Finding, looping, over_budget, silent
from holdfast.fleet.told import Told
from holdfast.fleet.trail import Trail
from holdfast.fleet.unclaimed import SYMPTOM, Unclaimed
from holdfast.model.records import RunRecord
from holdfast.runtime.lease import is_alive
from holdfast.runtime.limits import spent_by
from holdfast.runtime.log import warn
from holdfast.runtime.pulse import Pulse, Sign, collected, owner_here, read_pulse, sign_of, tidy
from holdfast.runtime.waits import Facts, facts_of
from holdfast.runtime.watch import Watch, watch_of
from holdfast.store.base import every_run
from holdfast.store.interrupts import Flag

if TYPE_CHECKING:
    from holdfast.fleet.care import Care

_GONE = "whoever advanced it is gone: its process has died, or could not renew its lease"
_NOBODY = "nobody advances it, and it is in no queue"
#: What a monitor says that it has done.
DONE = {
    "restore": "it goes back to its last good version, and on from there",
    "freeze": "it is frozen, and its prompt asks a person",
    "hand over": "others go on with it",
    "report": "that is noted in its journal, as nobody has said what to do",
}
#: Microseconds between two looks for what the dead have left.
_TIDY = 60_000_000
#: A lease lasts so many intervals, and so many seconds at least.
_INTERVALS = 4
_SHORTEST = 10.0
#: Seconds between two looks at a store that cannot be reached, at most.
_PATIENCE = 30.0
#: How often it is tried to take a run away that goes on meanwhile.
_TRIES = 60


class Alert(msgspec.Struct, frozen=True):
    """Something that the monitor found, and what it did."""

    run: str
    #: dead, silent, looping, over budget or unclaimed.
    symptom: str
    why: str
    #: restore, freeze, hand over or report; of a plan, also resume: it was restored or answered for before.
    action: str


class _Watched(msgspec.Struct, frozen=True):
    """A run as one look sees it."""

    run: RunRecord
    facts: Facts
    watch: Watch | None
    #: What its owner said of it, and when.
    sign: Sign | None
    at: int


class _Verdict(NamedTuple):
    """What is wrong with a run, and what is to be done."""

    finding: Finding
    action: str


class Monitor:
    """Looks after runs until it is stopped: `run` blocks, `start` does so in a thread, `look` looks once."""

    def __init__(self, care: Care, interval: float, watch: Watch | None) -> None:
        self._care = care
        self._services = care._services
        self._store = care._store
        self._interval = interval
        self._watch = watch
        self._lead = Lead(self._services, max(_SHORTEST, interval * _INTERVALS))
        self._stop = Flag()
        self._thread: threading.Thread | None = None
        self._orphans = Orphans(care)
        self._unclaimed = Unclaimed(care)
        self._told = Told()
        #: When, and up to which name, it was last looked for what the dead have left.
        self._tidied = 0
        self._tidied_up_to = ""
        #: Where each run was last found not to loop.
        self._seen: dict[int, tuple[int, int]] = {}

    # From outside

    def run(self) -> None:
        """Look after runs until stopped."""
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                for alert in self.look():
                    warn("run %s is %s: %s; %s", alert.run, alert.symptom, alert.why, DONE[alert.action])
                wait = self._interval
            except Exception as error:
                wait = min(_PATIENCE, max(self._interval, wait * 2))
                fault = not isinstance(error, HoldfastError)
                warn("the monitor could not look, and tries again in %.1f s: %s", wait, error, trace=fault)
        self._lead.resign()

    def serve(
        self, told: Callable[[int], None] | None = None, ready: Callable[[], None] | None = None
    ) -> None:
        """Look after runs until a SIGTERM or SIGINT, in the main thread. `told` hears of each; `ready` is called once
        signals are handled."""
        from holdfast.fleet.signals import stopped_by_signals

        # Not in this thread: a handler that sets what it waits for could wait for itself.
        with stopped_by_signals(self.stop, told):
            if ready is not None:
                ready()
            self.start()
            while not self.join(1.0):
                """A signal wakes nobody who waits without end."""

    def start(self) -> Monitor:
        """Look after runs in a thread."""
        if self._thread is not None:
            raise InvalidCall("a monitor is started once: make another")
        thread = threading.Thread(target=self.run, name="holdfast monitor", daemon=True)
        thread.start()
        self._thread = thread
        return self

    def stop(self) -> None:
        """Look no more. Runs that it has resumed go on."""
        self._stop.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; tells whether it has."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def wait(self) -> None:
        """Wait until the runs that it goes on with have ended, or wait themselves."""
        self._orphans.wait()

    @property
    def acting(self) -> bool:
        """Is it this monitor that acts?"""
        return self._lead.held

    def look(self) -> list[Alert]:
        """Look at all runs once, and act; gives what was found. While another monitor acts, only what that one has left
        is gone on with, for want of its code."""
        if not self._lead.take():
            self._orphans.go_on(acts=False)
            return []
        self._services.keeper.beat()
        found = self._examined(act=True)
        found += [Alert(run, "dead", why, "freeze") for run, why in self._orphans.go_on()]
        found += [Alert(run, SYMPTOM, why, "freeze") for run, why in self._unclaimed.stop()]
        self._tidy()
        return found

    def plan(self) -> list[Alert]:
        """What a look would find and do now, whoever acts. Nothing is changed."""
        found = self._examined(act=False)
        found += [Alert(run.id, "dead", _NOBODY, "resume") for run in self._orphans]
        found += [Alert(run, "dead", why, "freeze") for run, why in self._orphans.overdue()]
        return found + [Alert(run, SYMPTOM, why, "freeze") for run, why in self._unclaimed.overdue()]

    # What is found

    def _examined(self, *, act: bool) -> list[Alert]:
        found, present = [], set()
        for run, pulse in self._running():
            present.add(run.id)
            try:
                alert = self._examine(self._watched(run, pulse), act=act)
            except StaleVersion:
                continue
            except Exception as error:
                # What is wrong with one run is no reason to leave the others alone.
                self._told.warn(run.id, "cannot be looked after", error)
                continue
            if alert is not None:
                found.append(alert)
        self._told.forget(present)
        return found

    def _running(self) -> Iterator[tuple[RunRecord, Pulse | None]]:
        pulses: dict[str, Pulse | None] = {}
        seen: set[int] = set()
        for run in every_run(self._store, statuses=["running"], live=True):
            if run.owner is not None and run.owner not in pulses:
                pulses[run.owner] = self._pulse_of(run.owner)
            seen.add(run.key)
            yield run, pulses.get(run.owner or "")
        # Those that run no more are forgotten.
        self._seen = {key: self._seen[key] for key in seen if key in self._seen}

    def _pulse_of(self, owner: str) -> Pulse | None:
        if owner == self._services.owner:
            return collected(self._services)
        try:
            return read_pulse(self._store, owner)
        except Exception as error:
            warn("the monitor cannot read what %s is at: %s", owner, error)
            return None

    def _watched(self, run: RunRecord, pulse: Pulse | None) -> _Watched:
        facts = facts_of(run)
        watch = watch_of(facts.watch) or self._watch
        sign = None if pulse is None else pulse.runs.get(run.key)
        at = 0 if pulse is None else pulse.at
        if sign is not None and (
            sign.fence != facts.fence or sign.timeline != run.timeline or at < run.updated
        ):
            # It speaks of an execution that is over, or of one that has gone on since.
            sign = None
        return _Watched(run, facts, watch, sign, at)

    def _examine(self, watched: _Watched, *, act: bool) -> Alert | None:
        run = watched.run
        dead = not is_alive(run, self._now()) and not self._services.advances(run)
        verdict = self._dead(watched) if dead else self._stuck(watched)
        if verdict is None:
            return None
        if act and not (self._bury(run, verdict) if dead else self._act(watched, verdict)):
            return None
        return Alert(run.id, verdict.finding.symptom, verdict.finding.why, verdict.action)

    def _stuck(self, watched: _Watched) -> _Verdict | None:
        """What is wrong with a run that somebody advances, and what follows."""
        finding = self._find(watched)
        if finding is None:
            return None
        restored = restore.may_restore(watched.facts, watched.watch or Watch(), finding)
        return _Verdict(finding, "restore" if restored else "freeze")

    def _dead(self, watched: _Watched) -> _Verdict | None:
        """An owner is dead: workers claim what is in a queue; for the rest its policy says what to do."""
        run, facts, watch = watched.run, watched.facts, watched.watch
        if run.parent is not None:
            return None
        finding = Finding(
            symptom="dead", why=_GONE, since=min(run.until or run.updated, self._now()), good=run.head
        )
        # A rollback that was begun with word on what follows is finished, whatever the policy says.
        decided = facts.undoing is not None and "then" in facts.undoing
        if decided or restore.place_of(self._store, run, facts) is not None:
            return _Verdict(finding, "hand over")
        if watch is None:
            return None if restore.was_reported(run, facts) else _Verdict(finding, "report")
        restored = restore.may_restore(facts, watch, finding)
        return _Verdict(finding, "restore" if restored else "freeze")

    def _find(self, watched: _Watched) -> Finding | None:
        run, facts, watch, sign = watched.run, watched.facts, watched.watch, watched.sign
        if sign is not None:
            found = silent(sign, watched.at, watch or Watch(), run.head)
            if found is not None:
                return self._with_stack(run, found)
        if watch is None or facts.undoing is not None:
            return None
        working = 0 if sign is None else watched.at - sign.began
        if watch.has_budget:
            spent = spent_by(self._store, run)
            found = over_budget(facts, watch, spent=spent, working=working, now=self._now(), head=run.head)
            if found is not None:
                return found
        if watch.repeats is None and watch.unchanged is None:
            return None
        if self._seen.get(run.key) == (run.head, facts.fence):
            return None
        trail = Trail(self._care._context.reader(run), run.head, facts.spent.get("last", 0))
        found = looping(trail, watch)
        if found is None:
            self._seen[run.key] = (run.head, facts.fence)
        return found

    def _with_stack(self, run: RunRecord, finding: Finding) -> Finding:
        """Where the code stands, if it is this process that executes it and it was not told."""
        session = owner_here(self._services, run)
        if finding.stack or session is None:
            return finding
        sign = sign_of(session, self._now(), stacks=True)
        stacks = {step.address: step.stack for step in sign.steps}
        stack = sign.stack if finding.address is None else stacks.get(finding.address, "")
        return msgspec.structs.replace(finding, stack=stack)

    # What is done

    def _act(self, watched: _Watched, verdict: _Verdict) -> bool:
        """Take a stuck run away from whoever advances it; tells whether that was done."""
        run, finding, watch = watched.run, verdict.finding, watched.watch or Watch()
        working = 0 if watched.sign is None else watched.at - watched.sign.began
        self._free_those_around(run, finding)
        take = restore.restore if verdict.action == "restore" else restore.freeze
        taken = take(self._services, run, finding, working)
        tries = 0
        while taken is None and tries < _TRIES:
            # It has gone on meanwhile. Of a run that loops that is to be expected; one that was silent is not any more.
            tries += 1
            again = self._still(watched, finding, watch, closely=tries < _TRIES // 2)
            if again is None:
                return False
            taken = take(self._services, again, finding, working)
        if taken is not None and verdict.action == "restore":
            self._orphans.finish(taken)
        return taken is not None

    def _bury(self, run: RunRecord, verdict: _Verdict) -> bool:
        """Do what is to be done with a run whose owner is dead; tells whether that was done."""
        does = {
            "hand over": restore.hand_over,
            "report": restore.report,
            "restore": restore.restore,
            "freeze": restore.freeze,
        }
        return does[verdict.action](self._services, run, verdict.finding) is not None

    def _still(self, watched: _Watched, finding: Finding, watch: Watch, *, closely: bool) -> RunRecord | None:
        """The run as it is now, if what was found still holds. One that goes on very quickly is not looked at closely:
        it would have gone on again."""
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
            needed = 2 * max(watch.repeats or 0, watch.unchanged or 0)
            trail = Trail(self._care._context.reader(run), run.head, now.facts.spent.get("last", 0))
            return None if looping(trail, watch, needed) is None else run
        return run

    def _free_those_around(self, run: RunRecord, finding: Finding) -> None:
        """A run is stuck in the thread of those that it is a part of: whoever goes on with them comes to it again."""
        above = None if run.parent is None else self._store.run_by_key(run.parent)
        if above is None or above.status != "running" or above.owner != run.owner:
            return
        self._free_those_around(above, finding)
        why = f"run {run.id}, which is a part of it, is stuck: {finding.why}"
        restore.hand_over(
            self._services, above, msgspec.structs.replace(finding, why=why, good=above.head, stack="")
        )

    def _tidy(self) -> None:
        """Now and then, take away what those left who died."""
        if self._now() - self._tidied >= _TIDY:
            self._tidied = self._now()
            self._tidied_up_to = tidy(self._store, self._now(), self._tidied_up_to)

    def _now(self) -> int:
        return self._care._context.clock()
