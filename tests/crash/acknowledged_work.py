"""Work of every kind on a store that records each acknowledged call, and a check that its effects are in the store.

Used by the tests of power failures and of disk errors.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from killed_process import digest

import holdfast
from holdfast import Holdfast, HoldfastError, Retention, step, workflow

KEEP = 4
STEPS = 4


class Fact(NamedTuple):
    """An acknowledged effect of a call, or one that a call is about to have (`about_to_…`)."""

    kind: str
    run: str
    number: int = 0
    #: Digests by number, the name of a file, or a tag.
    value: Any = None


Note = Callable[[Fact], None]

#: Callbacks of the steps of the workflow, set by `noting`.
_noting: list[Note] = []


@step(name="recorded_step")
def recorded_step(number: int) -> bytes:
    """Report the call, which proves that all steps before it are recorded."""
    for note in _noting:
        note(Fact("step", "flow", number))
    return bytes([number]) * 70_000


@workflow(name="recorded_flow")
def recorded_flow() -> int:
    """Run a few steps with large results."""
    return sum(len(recorded_step(number)) for number in range(STEPS))


@contextmanager
def noting(note: Note) -> Iterator[None]:
    """Call a function for each step of the workflow within the block."""
    _noting.append(note)
    try:
        yield
    finally:
        _noting.remove(note)


class Work:
    """All kinds of work on a store, one per method."""

    def __init__(self, hf: Holdfast, folder: Path, note: Note, rng: random.Random) -> None:
        self.hf = hf
        self.folder = folder
        self.note = note
        self.rng = rng

    def commit(self, run: str = "ada", count: int = 1, large: float = 0.3) -> None:
        log = self.hf.history(run)
        for _ in range(count):
            state = {"n": self.rng.random(), "text": "x" * self.rng.randrange(900)}
            if self.rng.random() < large:
                state["large"] = [holdfast.artifact(self.rng.randbytes(600)), self.rng.randbytes(66_000)]
            version = log.commit(state, step="work")
            self.note(Fact("version", run, version.number, digest(state)))

    def rollback(self) -> None:
        log = self.hf.history("ada")
        log.commit({"again": self.rng.random()})
        log.rollback(to=log.head.parent or 1)
        self.note(Fact("timeline", "ada", log.timelines()[-1].number))

    def tag(self) -> None:
        log = self.hf.history("ada")
        tag = f"tag-{self.rng.randrange(1000)}"
        log.tag(log.head.number, tag)
        self.note(Fact("tag", "ada", log.head.number, tag))

    def prune(self) -> None:
        log = self.hf.history("ada")
        plan = log.prune(Retention(last=KEEP), dry_run=True).versions
        self.note(Fact("about_to_prune", "ada", value=tuple(plan)))
        log.prune(Retention(last=KEEP))
        self.note(Fact("pruned", "ada", value=tuple(plan)))

    def gc(self) -> None:
        self.hf.gc(grace=0)

    def compact(self) -> None:
        self.hf.gc(grace=0, compact=True)

    def delete(self) -> None:
        run = f"bob-{self.rng.randrange(1 << 40)}"
        self.commit(run)
        self.note(Fact("about_to_delete", run))
        self.hf.delete(run)
        self.note(Fact("deleted", run))

    def export(self) -> None:
        name = f"export-{self.rng.randrange(1 << 40)}.bundle"
        found = _digests(self.hf, "ada", strict=True)
        self.note(Fact("about_to_export", "ada", value=name))
        self.hf.export_run("ada", self.folder / name)
        self.note(Fact("exported", "ada", value=(name, found)))

    def bring_in(self) -> None:
        name, found = f"copy-{self.rng.randrange(1 << 40)}", _digests(self.hf, "ada", strict=True)
        source = self.folder / f"{name}.bundle"
        self.hf.export_run("ada", source)
        self.note(Fact("about_to_import", name, value=found))
        self.hf.import_run(source, run_id=name)
        self.note(Fact("imported", name, value=found))

    def backup(self) -> None:
        name = f"backup-{self.rng.randrange(1 << 40)}"
        found = {run.id: _digests(self.hf, run.id, strict=True) for run in self.hf.iter_runs()}
        self.note(Fact("about_to_back_up", "", value=(name, found)))
        self.hf.backup(self.folder / f"{name}.db", artifacts=self.folder / name)
        self.note(Fact("backed_up", "", value=(name, found)))

    def flow(self) -> None:
        with noting(self.note):
            self.hf.run(recorded_flow, run_id="flow", if_exists="resume")
        self.note(Fact("flow", "flow", STEPS))


def _digests(hf: Holdfast, run: str, *, strict: bool = False) -> dict[int, str]:
    """Return the hashes of a run's states by number; the error of an unreadable state, or raise it if `strict`."""
    found = {}
    for version in hf.history(run).iter_versions():
        try:
            found[version.number] = digest(version.state)
        except HoldfastError as error:
            if strict:
                raise
            found[version.number] = str(error)
    return found


def reopened(folder: Path) -> Holdfast:
    """Open the store in a folder an hour later, when all leases have expired."""
    return holdfast.open(
        folder / "runs.db",
        durability="fast",
        artifacts=folder / "artifacts",
        clock=lambda: time.time() + 3_600,
        timeout=60.0,
    )


class Check:
    """Finds acknowledged effects that are missing (`lost`) or wrong (`torn`)."""

    def __init__(self, hf: Holdfast, folder: Path, facts: Iterable[Fact]) -> None:
        self.lost: list[str] = []
        self.torn: list[str] = []
        self._hf = hf
        self._folder = folder
        self._facts = list(facts)
        self._runs = {run.id: _digests(hf, run.id) for run in hf.iter_runs()}
        self.torn += [str(problem) for problem in hf.verify().problems]
        self._versions()
        self._the_rest()
        self._backups()
        self._flow()

    def _versions(self) -> None:
        gone: set[tuple[str, int]] = set()
        going: set[tuple[str, int]] = set()
        promised: dict[tuple[str, int], str] = {}
        for fact in self._facts:
            if fact.kind == "version":
                promised[(fact.run, fact.number)] = fact.value
            elif fact.kind in ("about_to_prune", "pruned"):
                (going if fact.kind == "about_to_prune" else gone).update((fact.run, n) for n in fact.value)
            elif fact.kind == "about_to_delete":
                going |= {place for place in promised if place[0] == fact.run}
            elif fact.kind == "deleted":
                gone |= {place for place in promised if place[0] == fact.run}
                promised = {place: found for place, found in promised.items() if place[0] != fact.run}
        for (run, number), expected in promised.items():
            found = self._runs.get(run, {}).get(number)
            if found is None and (run, number) not in going:
                self.lost.append(f"version {run}@{number}")
            elif found not in (None, expected) and (run, number) not in gone:
                self.torn.append(f"version {run}@{number} is another")
        self.lost += [
            f"the end of {run}@{n}" for run, n in gone - promised.keys() if n in self._runs.get(run, {})
        ]
        self.lost += [
            f"the pruning of {run}@{n}" for run, n in gone & promised.keys() if n in self._runs.get(run, {})
        ]

    def _the_rest(self) -> None:
        whole: dict[str, dict[int, str]] = {}
        for fact in self._facts:
            if fact.kind == "about_to_import":
                whole[fact.run] = fact.value
            elif fact.kind == "imported" and fact.run not in self._runs:
                self.lost.append(f"the import {fact.run}")
            elif fact.kind == "exported" and not (self._folder / fact.value[0]).exists():
                self.lost.append(f"the export {fact.value[0]}")
            elif fact.kind == "timeline":
                log = self._hf.history(fact.run)
                if fact.run not in self._runs or fact.number not in {each.number for each in log.timelines()}:
                    self.lost.append(f"timeline {fact.number}")
            elif fact.kind == "tag" and fact.value not in self._tags(fact):
                self.lost.append(f"tag {fact.value}")
        for run, found in whole.items():
            if run in self._runs and self._runs[run] != found:
                self.torn.append(f"the import {run} is not whole")
        exported = {fact.value[0]: fact.value[1] for fact in self._facts if fact.kind == "exported"}
        for bundle in self._folder.glob("*.bundle"):
            with holdfast.open(":memory:") as memory:
                memory.import_run(bundle, run_id=bundle.stem)
                if exported.get(bundle.name, found := _digests(memory, bundle.stem)) != found:
                    self.torn.append(f"the export {bundle.name} is not whole")

    def _backups(self) -> None:
        """Check that each backup is complete or absent."""
        for fact in self._facts:
            if fact.kind not in ("about_to_back_up", "backed_up"):
                continue
            name, expected = fact.value
            file = self._folder / f"{name}.db"
            if not file.exists():
                if fact.kind == "backed_up":
                    self.lost.append(f"the backup {name}")
                continue
            with holdfast.open(file, durability="fast", artifacts=self._folder / name) as copy:
                self.torn += [f"the backup {name}: {problem}" for problem in copy.verify().problems]
                if {run.id: _digests(copy, run.id) for run in copy.iter_runs()} != expected:
                    self.torn.append(f"the backup {name} is not whole")

    def _tags(self, fact: Fact) -> Any:
        """Return the tags of a version; the acknowledged tag if it was pruned since."""
        if fact.number not in self._runs.get(fact.run, {}):
            return (fact.value,)
        return self._hf.history(fact.run).at(fact.number).tags

    def _flow(self) -> None:
        """Check that steps before the last one that was called are not run again."""
        known = max((fact.number for fact in self._facts if fact.kind in ("step", "flow")), default=-1)
        if "flow" not in self._runs:
            if known > 0:
                self.lost.append("the workflow")
            return
        again: list[int] = []
        try:
            with noting(lambda fact: again.append(fact.number)):
                result: Any = self._hf.run(recorded_flow, run_id="flow", if_exists="resume").result
        except HoldfastError as error:
            result = error
        if result != STEPS * 70_000:
            self.torn.append(f"the result of the workflow is {result}")
        self.lost += [f"step {number}" for number in again if number < known]
