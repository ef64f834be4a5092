"""Questions to the operator, and the execution of decisions.

A decision, by configuration or by an answer, is first recorded as a task, in the change that makes the decision, and
then executed. A task that a dead process left is executed by the next process that finds it.

Invariant: a task is executed once. Its number marks the timeline that it starts, and the timeline starts only if the
head is still the version that was read (`expected=`). While a question is open, nothing is restored by configuration.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from secrets import randbits
from typing import Any, NamedTuple, NoReturn

from holdfast.agent_loops.config import MAX_NAME, MAX_REASON
from holdfast.agent_loops.control import (
    BOOKKEEPING,
    Control,
    EndedAgent,
    Entry,
    LoopAnswer,
    LoopQuestion,
    RecoveryTask,
)
from holdfast.agent_loops.names import control_run, name_in
from holdfast.agent_loops.project import Project, known_loop, part_of
from holdfast.agent_loops.replies import Reply, difference, stamp
from holdfast.errors import BadData, InvalidAnswer, InvalidCall, InvalidReference, NotFound
from holdfast.execution import inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_owner_alive
from holdfast.execution.loops import HandlingChange
from holdfast.execution.questions import CHOICES, handled, parts_of, summaries
from holdfast.history.version import Version
from holdfast.model.checks import check_text
from holdfast.model.names import short
from holdfast.model.public import Question, when
from holdfast.model.question import Handling
from holdfast.tree.diff import Change

#: Former names of choices of `LoopEngine.answer_question`.
_FORMER_CHOICES = {"restore": "rollback", "ignore": "resume", "reinitialise": "reinitialize"}

#: Microseconds after which an unfinished task counts as abandoned, if its process is not known to have died.
_LEASE = 60_000_000
#: Microseconds in which `max_restores` are counted.
_HOUR = 3_600_000_000
#: Maximum number of reasons in a question.
_MAX_REASONS = 20
#: Projects whose changes are remembered: somewhat more than a page of the inbox.
_MAX_REMEMBERED = 150


def current_choice(choice: Any) -> Any:
    """Return a choice under its current name, with a `DeprecationWarning` for a former one."""
    current = _FORMER_CHOICES.get(choice) if isinstance(choice, str) else None
    if current is None:
        return choice
    warnings.warn(
        f"the answer {choice!r} is now called {current!r}: a later release will refuse the old name",
        DeprecationWarning,
        stacklevel=4,
    )
    return current


class _Changes(NamedTuple):
    """The part of a question that is read from states: the last good version, the changes since, what can be kept."""

    since: int | None
    diff: Sequence[str]
    initial: Sequence[dict[str, Any]]


class Questions:
    """Decisions about loops that stopped: restored by configuration, or asked and answered."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        #: What was shown last, by the versions that it was made from.
        self._remembered: Mapping[tuple[str, str, str] | None, _Changes] = {}

    def restore_or_ask(self, project: Project, reason: str, actor: str | None) -> Reply:
        """Decide about a loop that stopped, and execute the decision."""
        check_text("reason", reason, MAX_REASON)
        check_text("actor", actor, MAX_NAME)
        project.check_exists()

        def change(control: Control) -> tuple[Entry | None, RecoveryTask | LoopQuestion]:
            entry, decided = self.decide(project, control, reason or "timeout", actor)
            return entry, decided

        return self.follow(project, project.control.change(change))

    def decide(
        self, project: Project, control: Control, reason: str, actor: str | None, agents: Sequence[str] = ()
    ) -> tuple[Entry, RecoveryTask | LoopQuestion]:
        """Decide how to react to a stopped loop, and add the decision to the record; return the audit entry with it."""
        now = project.now()
        question = control.open_question
        if question is None and control.config.loop_autoresume:
            control.restores = [at for at in control.restores if at > now - _HOUR]
            _, last, damage = _read_heads(project)
            if len(control.restores) >= control.config.restores:
                times = f"{len(control.restores)} time{'' if len(control.restores) == 1 else 's'}"
                reason += f"; it was restored {times} within an hour, as often as max_restores allows"
            elif last is None:
                reason += f"; {damage or 'no snapshot of it was saved'}"
            else:
                replaces = control.config.keep_unknown is not True
                task = RecoveryTask(
                    _task_number(),
                    "restore",
                    reason,
                    now,
                    actor,
                    keep_unknown=not replaces,
                    owner=self._engine.owner,
                )
                control.restores.append(now)
                control.tasks.append(task)
                return Entry("restore.decided", reason, actor, {"task": task.number}), task
        if question is not None:
            _add_reason(question, reason)
            question.agents = list(dict.fromkeys([*question.agents, *agents]))
            facts = {"question_id": self._id(project, question)}
            return Entry("question.opened", reason, actor, facts), question
        question = self._open(project, control, reason, now, agents)
        event = project.control.event("question.opened", question, now)
        facts = {"question_id": self._id(project, question)}
        return Entry("question.opened", reason, actor, facts, [event]), question

    def follow(self, project: Project, decided: RecoveryTask | LoopQuestion) -> Reply:
        """Execute a decision."""
        if isinstance(decided, RecoveryTask):
            reply = self.execute(project, decided)
            return {**reply, "reason": decided.reason, "auto_restored": reply["status"] == "restored"}
        return self.reply(project, decided)

    def asked(self, question_id: Any) -> Reply:
        """Return an open question in the form of a reply; raise an error that says why if it is not open."""
        project, number = self._parsed(question_id)
        return self.reply(project, self._find(project.control.read(), number, question_id))

    def open_question_of(self, project: Project) -> Reply | None:
        """Return the open question of a project; None if it has none."""
        question = project.control.read().open_question
        return None if question is None else self.reply(project, question)

    def question(self, question_id: Any) -> Question:
        """Return an open question as the inbox shows it."""
        project, number = self._parsed(question_id)
        return self.shown(project, self._find(project.control.read(), number, question_id))

    def answer(self, question_id: Any, choice: Any, *, version: Any, keep: Any, actor: Any) -> Reply:
        """Answer a question and execute the answer."""
        check_text("actor", actor, MAX_NAME)
        if choice not in CHOICES:
            raise InvalidAnswer(
                f"the answer to {short(question_id)} is one of {', '.join(CHOICES)}, not {short(choice)}",
                question_id=question_id,
            )
        project, number = self._parsed(question_id)
        self._find(project.control.read(), number, question_id)
        target = _target(project, choice, version, question_id)
        kept = _check_keep(project, choice, keep, question_id)

        def change(control: Control) -> tuple[Entry, RecoveryTask | None]:
            question = self._find(control, number, question_id)
            now = project.now()
            reason = question.reasons[0]
            entry = self._close(project, control, question, choice, actor, version=target, keep=kept)
            if choice in ("rollback", "reinitialize"):
                what = "restore" if choice == "rollback" else choice
                keeps = control.config.keep_unknown is True
                task = RecoveryTask(
                    _task_number(),
                    what,
                    f"{choice}: {reason}",
                    now,
                    actor,
                    target,
                    keeps,
                    kept,
                    self._engine.owner,
                )
                control.tasks.append(task)
                return entry, task
            if choice == "cancel":
                for name, agent in control.agents.items():
                    control.ended[name] = EndedAgent(agent.token, "cancelled", now, actor)
                control.agents = {}
            return entry, None

        task = project.control.change(change)
        self._engine.publisher.wake()
        answered = {"question_id": question_id, "choice": choice}
        if task is not None:
            return {**self.execute(project, task), **answered}
        head = project.head()
        return {
            "status": "resumed" if choice == "resume" else "cancelled",
            "project_id": project.id,
            **answered,
            "version": None if head is None else head.number,
            "loop": known_loop(head),
        }

    def close_after_restore(self, project: Project, version: int, actor: str | None) -> str | None:
        """Close the open question of a project that a person has restored to a version, and drop the tasks that are
        still pending; return the id of the question, if there was one."""
        control = project.control.read()
        if control.open_question is None and not control.tasks:
            return None

        def change(control: Control) -> tuple[Entry | None, str | None]:
            question = control.open_question
            if question is not None:
                entry = self._close(project, control, question, "rollback", actor, version=version)
                return entry, self._id(project, question)
            dropped, control.tasks = control.tasks, []
            return Entry(BOOKKEEPING) if dropped else None, None

        return project.control.change(change)

    def handle(self, question_id: str, change: HandlingChange, actor: str | None) -> bool:
        """Change who is to answer an open question, and by when; return whether that changed."""
        project, number = self._parsed(question_id)

        def amended(control: Control) -> tuple[Entry | None, bool]:
            question = self._find(control, number, question_id)
            found = change(question.handling or Handling())
            if found is None or found[0] == (question.handling or Handling()):
                return None, False
            question.handling, events = found
            now = project.now()
            entries = [
                project.control.event(kind, question, now, **data, actor=actor)
                for kind, data in events.items()
            ]
            action = next((kind for kind in events if kind != "question.reminded"), BOOKKEEPING)
            assignee = {"question_id": question_id, "assignee": question.handling.assignee}
            return Entry(action, question.reasons[0], actor, assignee, entries), True

        return project.control.change(amended)

    def execute(self, project: Project, task: RecoveryTask) -> Reply:
        """Execute a task, unless it is done, and remove it from the record. If its target can no longer be read, ask
        what to do instead."""
        try:
            if task.what == "restore":
                reply = project.restore(
                    task.version, task.reason, task.actor, keep_unknown=task.keep_unknown, task=task.number
                )
            else:
                reply = project.reinitialize(task.keys, task.reason, task.actor, task=task.number)
        except (NotFound, BadData) as error:
            return self._ask_instead(project, task, error)

        def remove(control: Control) -> tuple[Entry | None, None]:
            left = [each for each in control.tasks if each.number != task.number]
            entry = Entry(BOOKKEEPING) if len(left) < len(control.tasks) else None
            control.tasks = left
            return entry, None

        project.control.change(remove)
        return reply

    def execute_abandoned(self, project: Project) -> list[Reply]:
        """Execute the tasks that dead processes left, unless a question is open: its answer drops them."""

        def take_over(control: Control) -> tuple[Entry | None, list[RecoveryTask]]:
            now = project.now()
            is_asked = control.open_question is not None
            left = [
                task
                for task in control.tasks
                if not is_asked and not is_owner_alive(task.owner, task.at + _LEASE, now)
            ]
            for task in left:
                task.at, task.owner = now, self._engine.owner
            return Entry(BOOKKEEPING) if left else None, left

        return [self.execute(project, task) for task in project.control.change(take_over)]

    def shown(self, project: Project, question: LoopQuestion) -> Question:
        """Return a question as the inbox shows it."""
        changes = self._changes(project)
        reason = question.reasons[0]
        good = "" if changes.since is None else f" (to version {changes.since})"
        details = {
            "symptom": "silent" if question.agents else "reported",
            "why": reason,
            "since": when(question.opened),
            "reasons": list(question.reasons),
            "agents": list(question.agents),
            "version": changes.since,
            "diff": list(changes.diff),
            "initial": [{**part, "changes": list(part["changes"])} for part in changes.initial],
            "choices": list(CHOICES),
        }
        found = Question(
            id=self._id(project, question),
            run=project.control.id,
            address="",
            text=f"loop {project.id} has stopped: {reason}: resume, roll back{good}, reinitialize or cancel?",
            opened=when(question.opened),
            schema={"enum": list(CHOICES)},
            details=details,
            kind="loop",
            project=project.id,
        )
        return handled(found, question.handling)

    def _changes(self, project: Project) -> _Changes:
        """Return what has changed since the last good snapshot. It is remembered with the versions that it is of, so
        that a list of questions that is read again and again reads their states once."""
        last: Version | None = None
        initial: list[dict[str, Any]] = []
        diff: list[str] = []
        try:
            head = project.head()
            versions = (
                None if head is None else (project.name, head.hash, _hash_of(project.last_snapshot(head)))
            )
            if (known := self._remembered.get(versions)) is not None:
                return known
            last = project.last_good(head, [])
            state = None if head is None else head.state
            if isinstance(state, Mapping):
                initial = parts_of([Change("added", (key,), new=value) for key, value in state.items()])
            if head is not None and last is not None:
                diff = summaries(project.log.diff(last, head).changes)
        except BadData as error:
            versions, diff = None, [f"the difference cannot be read: {error}"]
        found = _Changes(None if last is None else last.number, diff, initial)
        if versions is not None:
            newest = list(self._remembered.items())[1 - _MAX_REMEMBERED :]
            self._remembered = {**dict(newest), versions: found}
        return found

    def reply(self, project: Project, question: LoopQuestion) -> Reply:
        """Return a question in the form of a reply."""
        head, last, damage = _read_heads(project)
        reason = question.reasons[0]
        found = difference([]) | ({} if damage is None else {"diff_error": damage})
        good = damage or "no snapshot of it was saved"
        if head is not None and last is not None:
            found = project.difference(last, head)
            good = f"version {last.number} is the last good one"
        handling = question.handling or Handling()
        return {
            "status": "question",
            "project_id": project.id,
            "question_id": self._id(project, question),
            "reason": reason,
            "reasons": list(question.reasons),
            "agents": list(question.agents),
            "opened": stamp(question.opened),
            "assignee": handling.assignee,
            "priority": handling.priority,
            "due": None if handling.due is None else stamp(handling.due),
            "version": None if last is None else last.number,
            "loop": known_loop(last),
            "current_loop": known_loop(head),
            "auto_restored": False,
            "choices": list(CHOICES),
            "message": f"project {project.id!r} has stopped ({reason}); {good}: how shall it continue?",
            **found,
        }

    def _open(
        self, project: Project, control: Control, reason: str, now: int, agents: Sequence[str] = ()
    ) -> LoopQuestion:
        handling = Handling.of(control.config.question, now)
        question = LoopQuestion(control.next_number(), [reason], now, None, list(agents), handling)
        control.questions.append(question)
        return question

    def _close(
        self,
        project: Project,
        control: Control,
        question: LoopQuestion,
        choice: str,
        actor: str | None,
        **more: Any,
    ) -> Entry:
        """Close a question, because a person has decided; return the audit entry."""
        now = project.now()
        question.answer = LoopAnswer(choice, now, actor)
        control.restores, control.tasks = [], []
        given = {name: value for name, value in more.items() if value}
        event = project.control.event(
            "question.answered", question, now, choice=choice, opened=question.opened, actor=actor, **given
        )
        facts = {"question_id": self._id(project, question), "choice": choice, **given}
        return Entry("question.answered", question.reasons[0], actor, facts, [event])

    def _ask_instead(self, project: Project, task: RecoveryTask, error: Exception) -> Reply:
        """Replace a task that cannot be executed by a question."""

        def change(control: Control) -> tuple[Entry, LoopQuestion]:
            control.tasks = [each for each in control.tasks if each.number != task.number]
            question = control.open_question
            reason = f"{task.reason}: {error}"[:MAX_REASON]
            events = []
            if question is not None:
                _add_reason(question, reason)
            else:
                question = self._open(project, control, reason, project.now())
                events.append(project.control.event("question.opened", question, question.opened))
            return Entry(
                "question.opened",
                reason,
                task.actor,
                {"question_id": self._id(project, question)},
                events,
            ), question

        return self.reply(project, project.control.change(change))

    def _id(self, project: Project, question: LoopQuestion) -> str:
        return f"{project.control.id}#{question.number}"

    def _parsed(self, question_id: Any) -> tuple[Project, int]:
        """Return the project and the number in the id of a question."""
        if not isinstance(question_id, str):
            raise InvalidReference(f"the id of a question is a string, not {type(question_id).__name__}")
        run_id, _, number = str.__str__(question_id).rpartition("#")
        name = name_in(run_id)
        if name is None:
            # The form of ids until they were those of the inbox.
            former, _, number = str.__str__(question_id).rpartition(":")
            name = name_in(control_run(former))
        if name is None or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise _no_question(question_id)
        return Project.named(self._engine, name), int(number)

    def _find(self, control: Control, number: int, question_id: str) -> LoopQuestion:
        """Return an open question from the record; raise an error that says why if it is not open."""
        question = next((each for each in control.questions if each.number == number), None)
        if question is None:
            run = self._engine.store.run(inbox.run_of(question_id))
            raise (
                _no_question(question_id)
                if run is None
                else inbox.no_question(self._engine.store, run, question_id)
            )
        if question.answer is not None:
            _refuse_second(question_id, question.answer)
        return question


def _read_heads(project: Project) -> tuple[Version | None, Version | None, str | None]:
    """Return the head and the last good snapshot of a project; if they cannot be read, why."""
    try:
        head = project.head()
        return head, project.last_good(head, []), None
    except BadData as error:
        return None, None, str(error)


def _hash_of(version: Version | None) -> str:
    return "" if version is None else version.hash


def _task_number() -> int:
    return randbits(53)


def _add_reason(question: LoopQuestion, reason: str) -> None:
    if reason not in question.reasons and len(question.reasons) < _MAX_REASONS:
        question.reasons.append(reason)


def _target(project: Project, choice: str, version: Any, question_id: str) -> int | None:
    """Return the number of the version that an answer names; None for the last good one, which must exist then."""
    if choice != "rollback":
        if version is not None:
            raise InvalidAnswer(
                f"a version goes with the choice rollback, not with {choice}", question_id=question_id
            )
        return None
    if version is None:
        if project.last_good(project.head(), []) is None:
            raise InvalidAnswer(
                f"project {project.id!r} has no snapshot to roll back to: name a version, or answer resume, "
                "reinitialize or cancel",
                question_id=question_id,
            )
        return None
    try:
        found = project.log.at(version.number if isinstance(version, Version) else version)
        _ = found.state
    except (NotFound, InvalidReference, InvalidCall, BadData) as error:
        raise InvalidAnswer(
            f"project {project.id!r} has no version {short(version)} to roll back to: {error}",
            question_id=question_id,
        ) from error
    return found.number


def _check_keep(project: Project, choice: str, keep: Any, question_id: str) -> list[str]:
    """Return the parts of the memory to keep, which must be in the state."""
    found = [keep] if isinstance(keep, str) else list(keep) if isinstance(keep, Iterable) else [keep]
    for key in found:
        if not isinstance(key, str):
            raise InvalidCall(f"keep is a list of keys or paths of the memory, not of {short(key)}")
        check_text("keep", key, MAX_REASON)
    if found and choice != "reinitialize":
        raise InvalidAnswer(
            f"keep goes with the choice reinitialize, not with {choice}", question_id=question_id
        )
    head = project.head() if found else None
    state = None if head is None else head.state
    for key in found:
        if part_of(state, key) is None:
            possible = ", ".join(map(repr, list(state or ())[:30])) or "nothing"
            raise InvalidAnswer(
                f"the state of project {project.id!r} has no {short(key)} to keep: it has {possible}",
                question_id=question_id,
                path=key,
            )
    return [str.__str__(key) for key in found]


def _no_question(question_id: str) -> NotFound:
    return NotFound(f"there is no question {short(question_id)}: the inbox lists the open ones")


def _refuse_second(question_id: str, answer: LoopAnswer) -> NoReturn:
    at: datetime = when(answer.at)
    raise InvalidAnswer(
        f"question {question_id!r} has been answered already, by {answer.actor or 'an unnamed actor'} at "
        f"{at:%Y-%m-%d %H:%M:%S} UTC, with {answer.choice}",
        question_id=question_id,
        actor=answer.actor,
        at=at,
        answered={"choice": answer.choice, "actor": answer.actor, "at": stamp(answer.at)},
    )
