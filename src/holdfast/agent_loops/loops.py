"""The agent loops of one store: their parts, and what the inbox and the monitor need of them.

Of all processes that check the loops of a store, one acts: the one that checks most often. It holds a lease, and
another takes over if it dies. That saves work only: a stalled agent is found once, however many processes check.

Invariant: a check that fails for one project does not keep the others from being checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from holdfast.agent_loops.agents import Agents
from holdfast.agent_loops.checker import Checker
from holdfast.agent_loops.control import BOOKKEEPING, PAGE, Control, Entry, LoopQuestion, control_names
from holdfast.agent_loops.names import control_run, name_in, name_in_state_run, state_run
from holdfast.agent_loops.project import Project, StateMetadata
from holdfast.agent_loops.questions import Questions
from holdfast.agent_loops.replies import Reply
from holdfast.agent_loops.states import save_snapshot
from holdfast.errors import BadData, HoldfastError, NotFound, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.leadership import Leadership
from holdfast.execution.loops import PREFIX, HandlingChange, LoopCheck, StalledLoop
from holdfast.history.version import Version
from holdfast.log import warn
from holdfast.model.names import short
from holdfast.model.public import Question
from holdfast.model.records import RunRecord
from holdfast.store.protocol import OpenQuestion, iter_runs

#: The job that processes which check loops lead.
_JOB = "loops"
#: Snapshots that are remembered as readable.
_MAX_READABLE = 10_000
#: A value of the store that says that the open questions of loops are in the index.
_INDEXED = "loops.indexed"


class AgentLoops:
    """All loops of an open store."""

    def __init__(self, engine: EngineContext) -> None:
        self.engine = engine
        self.questions = Questions(engine)
        self.agents = Agents(engine, self.questions)
        #: Identifies the store: a state that was read from another one is not derived from a version of this one.
        self.identity = object()
        self._leadership = Leadership(engine, _JOB)
        #: By process: the threads of a parent do not exist in a forked child.
        self._checkers: dict[int, Checker] = {}
        self._is_indexed = False
        #: Hashes of snapshots that could be read.
        self._readable: set[str] = set()

    def project(self, project_id: Any) -> Project:
        """Return a project by its id."""
        return Project(self.engine, project_id)

    def project_names(self, after: str | None = None, wanted: int | None = None) -> Iterator[str]:
        """Yield the names of all projects after one, newest first: a project is where the run with its state is, or
        that with its control record if it has no state. The caller uses about as
        many as are `wanted`; None for all."""
        store = self.engine.store
        before = None if after is None else self._place(after)
        # A project has up to three runs.
        page = PAGE if wanted is None else min(3 * wanted + 3, PAGE)
        for run in self._runs(before, page, is_short=wanted is not None):
            name = name_in_state_run(run.id)
            if name is None and (control := name_in(run.id)) is not None:
                name = control if store.run(state_run(control)) is None else None
            if name is not None:
                yield name

    def last_good(self, project: Project, head: Version | None) -> int | None:
        """Return the number of the last good snapshot as lists show it: one that could be read once is not read
        again."""
        last = None if head is None else project.last_snapshot(head)
        if last is None or last.hash in self._readable:
            return None if last is None else last.number
        good = project.last_good(head, [])
        if good is not None:
            if len(self._readable) >= _MAX_READABLE:
                self._readable.clear()
            self._readable.add(good.hash)
        return None if good is None else good.number

    def checker(self, every: float) -> Checker:
        """Return the thread of this process that checks all loops, not yet started."""
        checker = self._checkers.setdefault(os.getpid(), Checker(self))
        checker.check_every(every)
        return checker

    def close(self) -> None:
        """Stop the thread of this process."""
        checker = self._checkers.pop(os.getpid(), None)
        if checker is not None:
            checker.stop()

    # What the monitor needs

    def check(self, every: float) -> LoopCheck:
        """Look for stalled agents in all loops, execute what dead processes left, and save scheduled snapshots, unless
        another process does so at least as often; this one does it `every` so many seconds."""
        if not self._leadership.take(every, from_slower=True):
            return LoopCheck()
        self.index_questions()
        stalled: list[StalledLoop] = []

        def check(project: Project) -> None:
            control = project.control.read()
            if control.agents:
                found = self.agents.end_stalled(project, control)
                if found:
                    is_restored = found[0]["result"]["status"] == "restored"
                    action = "recover" if is_restored else "stall"
                    stalled.append(StalledLoop(project.log.id, _silence_of(found), action))
            if control.tasks:
                self.questions.execute_abandoned(project)
            if control.config.every is not None:
                self.save_if_due(project)

        _, errors = self.for_running(check)
        return LoopCheck(stalled, errors)

    def release(self) -> None:
        """Let another process check the loops at once, because this one stops."""
        self._leadership.resign()

    def overdue(self) -> list[StalledLoop]:
        """Return what a check would find now. Nothing is changed."""
        found: list[StalledLoop] = []

        def look(project: Project) -> None:
            stalled = self.agents.overdue(project)
            if stalled is not None:
                found.append(stalled)

        self.for_running(look)
        return found

    def for_running(self, check: Callable[[Project], None]) -> tuple[int, list[tuple[str, BaseException]]]:
        """Check all projects that have agents, tasks or a schedule; return how many, and the errors of those that
        failed, by name."""
        count = 0
        errors: list[tuple[str, BaseException]] = []
        for name in control_names(self.engine, "running"):
            count += 1
            try:
                check(Project.named(self.engine, name))
            except Exception as error:
                errors.append((name, error))
        return count, errors

    def save_if_due(self, project: Project) -> Reply | None:
        """Save the scheduled snapshot of a project, if it is due; return the reply."""
        head = project.due_for_snapshot()
        if head is None:
            return None
        metadata = StateMetadata(True, "scheduled", kind="timed")
        # Another process may have saved it first.
        with suppress(StaleVersion):
            return save_snapshot(project, metadata, expected=head.number)
        return None

    # What the inbox needs

    def index_questions(self) -> None:
        """Put open questions of stores of earlier formats into the index, once per store. A store without loops is not
        written to."""
        if self._is_indexed:
            return
        store = self.engine.store
        if store.value(_INDEXED) is None:
            found = False
            for name in control_names(self.engine, "suspended", "running"):
                found = True
                try:
                    self.adopt(control_run(name))
                except HoldfastError as error:
                    warn("the question of loop %s is not in the inbox: %s", name, error)
            if found:
                # Without the mark, the next process looks again.
                with suppress(HoldfastError):
                    store.set_value(_INDEXED, b"", 0)
        self._is_indexed = True

    def adopt(self, run_id: str) -> None:
        """Put the questions of a control run into the index, if they are not in it."""
        name, run = name_in(run_id), self.engine.store.run(run_id)
        if name is None or run is None or self.engine.store.questions_of(run.key):
            return

        def change(control: Control) -> tuple[Entry | None, None]:
            return (None if control.open_question is None else Entry(BOOKKEEPING)), None

        Project.named(self.engine, name).control.change(change)

    def shown(self, rows: Sequence[OpenQuestion]) -> list[Question]:
        """Return the questions of these rows, in their order, without those that are no longer open."""
        found = []
        for row in rows:
            name = name_in(row.run.id)
            if name is None:
                continue
            project = Project.named(self.engine, name)
            try:
                question = project.control.read().open_question
            except BadData as error:
                # The others are shown, and this one does not disappear.
                question = LoopQuestion(row.question.number, [str(error)], row.question.opened)
            if question is not None and question.number == row.question.number:
                found.append(self.questions.shown(project, question))
        return found

    def question(self, question_id: str) -> Question:
        """Return an open question; raise an error that says why if it is not open."""
        return self.questions.question(question_id)

    def answer(
        self, question_id: str, choice: Any, *, version: Any, keep: Iterable[str], actor: str | None
    ) -> Reply:
        """Answer a question and execute the answer."""
        return self.questions.answer(question_id, choice, version=version, keep=keep, actor=actor)

    def handle(self, question_id: str, change: HandlingChange, actor: str | None) -> bool:
        """Change who is to answer an open question, and by when; return whether that changed."""
        return self.questions.handle(question_id, change, actor)

    def _runs(self, before: int | None, page: int, *, is_short: bool) -> Iterator[RunRecord]:
        """Yield the runs of all loops, newest first."""
        store = self.engine.store
        if is_short:
            # For a list by prefix a store sorts all runs of loops. The newest runs of the store are often enough.
            newest = store.runs(before=before, limit=page)
            yield from (run for run in newest if run.id.startswith(PREFIX))
            if len(newest) < page:
                return
            before = newest[-1].key
        yield from iter_runs(store, before=before, page=page, prefix=PREFIX)

    def _place(self, project_id: str) -> int:
        """Return the key of the run by which a project is listed."""
        name = self.project(project_id).name
        for run_id in (state_run(name), control_run(name)):
            run = self.engine.store.run(run_id)
            if run is not None:
                return run.key
        raise NotFound(f"there is no project {short(project_id)} to continue after: list from the beginning")


def _silence_of(stalled: Sequence[Reply]) -> str:
    """Return why a project is said to be silent, from the entries of its stalled agents."""
    first, others = stalled[0], len(stalled) - 1
    more = f", and so did {others} more" if others else ""
    return f"agent {first['agent']!r} sent no heartbeat for {first['timeout']:g} s{more}"
