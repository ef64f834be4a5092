"""Questions to the operator, and the execution of decisions.

A decision, by configuration or by an answer, is first recorded as a task, in the change that makes the
decision, and then executed. A task that a dead process left is executed by the next process that finds it.

Invariant: a task is executed once. Its number marks the timeline that it starts, and the timeline starts only
if the head is still the version that was read (`expected=`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.compat.loop_engine.control import (
    BOOKKEEPING,
    MAX_NAME,
    MAX_REASON,
    Control,
    Entry,
    LoopAnswer,
    LoopQuestion,
    RecoveryTask,
    project_names,
)
from holdfast.compat.loop_engine.project import Project, loop_in
from holdfast.compat.loop_engine.replies import Reply, stamp
from holdfast.engine import Holdfast
from holdfast.errors import InvalidAnswer, InvalidCall, InvalidReference, NotFound
from holdfast.model.checks import check_text
from holdfast.model.names import short

CHOICES = ("resume", "restore", "reinitialize", "ignore")

#: Microseconds after which an unfinished task counts as abandoned.
_LEASE = 60_000_000
#: Maximum number of reasons in a question.
_MAX_REASONS = 20


class Questions:
    """Decisions about loops that stopped: restored by configuration, or asked and answered."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf

    def restore_or_ask(self, project: Project, reason: str, actor: str | None) -> Reply:
        """Decide about a loop that stopped, and execute the decision."""
        check_text("reason", reason, MAX_REASON)
        check_text("actor", actor, MAX_NAME)

        def change(control: Control) -> tuple[Entry, RecoveryTask | LoopQuestion]:
            decided = self.decide(project, control, reason or "timeout", actor)
            action, facts = decision_entry(project, decided)
            return Entry(action, reason, actor, facts), decided

        return self.follow(project, project.control.change(change))

    def decide(
        self, project: Project, control: Control, reason: str, actor: str | None
    ) -> RecoveryTask | LoopQuestion:
        """Decide how to react to a stopped loop, and add the decision to the record."""
        if control.config.loop_autoresume:
            task = RecoveryTask(control.next_number(), "restore", reason, project.now(), actor)
            control.tasks.append(task)
            return task
        question = control.open_question
        if question is None:
            question = LoopQuestion(control.next_number(), [reason], project.now())
            control.questions.append(question)
        elif reason not in question.reasons and len(question.reasons) < _MAX_REASONS:
            question.reasons.append(reason)
        return question

    def follow(self, project: Project, decided: RecoveryTask | LoopQuestion) -> Reply:
        """Execute a decision."""
        if isinstance(decided, RecoveryTask):
            return self.execute(project, decided) | {"reason": decided.reason}
        return _question_reply(project, decided)

    def open_questions(self, project_id: str | None) -> list[Reply]:
        """Return the open questions of one project or of all, oldest first."""
        if project_id is not None:
            projects = [Project(self._hf, project_id)]
        else:
            projects = [Project.named(self._hf, name) for name in project_names(self._hf)]
        found = []
        for project in projects:
            question = project.control.read().open_question
            if question is not None:
                found.append(_question_reply(project, question))
        return sorted(found, key=lambda question: str(question["opened"]))

    def answer(self, question_id: Any, choice: Any, keys: Any, actor: Any) -> Reply:
        """Answer a question and execute the answer."""
        check_text("actor", actor, MAX_NAME)
        if choice not in CHOICES:
            raise InvalidAnswer(f"answer with one of {', '.join(CHOICES)}, not {short(choice)}")
        name, number = _parsed_id(question_id)
        project = Project.named(self._hf, name)
        if project.name != name:
            raise _no_question(question_id)
        kept = _check_keys(project, choice, keys)
        answered = {"question_id": question_id, "choice": choice}

        def change(control: Control) -> tuple[Entry | None, LoopAnswer | RecoveryTask | None]:
            question = next((each for each in control.questions if each.number == number), None)
            if question is None:
                raise _no_question(question_id)
            if question.answer is not None:
                return None, question.answer
            now = project.now()
            question.answer = LoopAnswer(choice, now, actor)
            reason = question.reasons[0]
            task = None
            if choice in ("restore", "reinitialize"):
                task = RecoveryTask(control.next_number(), choice, f"{choice}: {reason}", now, actor, kept)
                control.tasks.append(task)
            return Entry("question.answered", reason, actor, answered), task

        done = project.control.change(change)
        if isinstance(done, LoopAnswer):
            return _answered_before(question_id, done)
        if done is not None:
            return {**self.execute(project, done), **answered}
        head = project.head()
        return {
            "status": "resumed" if choice == "resume" else "ignored",
            "project_id": project.id,
            **answered,
            "version": None if head is None else head.number,
            "loop": 0 if head is None else loop_in(head),
        }

    def execute(self, project: Project, task: RecoveryTask) -> Reply:
        """Execute a task, unless it is done, and remove it from the record."""
        if task.what == "restore":
            reply = project.restore(None, task.reason, task.actor, keep_unknown=True, task=task.number)
        else:
            reply = project.reinitialize(task.keys, task.reason, task.actor, task=task.number)

        def remove(control: Control) -> tuple[Entry | None, None]:
            left = [each for each in control.tasks if each.number != task.number]
            entry = Entry(BOOKKEEPING) if len(left) < len(control.tasks) else None
            control.tasks = left
            return entry, None

        project.control.change(remove)
        return reply

    def execute_abandoned(self, project: Project) -> list[Reply]:
        """Execute the tasks that dead processes left."""

        def take_over(control: Control) -> tuple[Entry | None, list[RecoveryTask]]:
            now = project.now()
            left = [task for task in control.tasks if task.at + _LEASE < now]
            for task in left:
                task.at = now
            return Entry(BOOKKEEPING) if left else None, left

        return [self.execute(project, task) for task in project.control.change(take_over)]


def decision_entry(project: Project, decided: RecoveryTask | LoopQuestion) -> tuple[str, Reply]:
    """Return the action and the facts of the audit entry for a decision."""
    if isinstance(decided, RecoveryTask):
        return "restore.decided", {"task": decided.number}
    return "question.opened", {"question_id": f"{project.name}:{decided.number}"}


def _question_reply(project: Project, question: LoopQuestion) -> Reply:
    head = project.head()
    last = project.last_good(head, [])
    reason = question.reasons[0]
    found: Reply = {"diff": [], "diff_count": 0}
    good = "no snapshot of it was saved"
    if head is not None and last is not None:
        found = project.difference(last, head)
        good = f"version {last.number} is the last good one"
    return {
        "status": "question",
        "project_id": project.id,
        "question_id": f"{project.name}:{question.number}",
        "reason": reason,
        "reasons": list(question.reasons),
        "opened": stamp(question.opened),
        "version": None if last is None else last.number,
        "loop": 0 if last is None else loop_in(last),
        "choices": list(CHOICES),
        "message": f"project {project.id!r} has stopped ({reason}); {good}: how shall it continue?",
        **found,
    }


def _parsed_id(question_id: Any) -> tuple[str, int]:
    """Return the name of the project and the number in the id of a question."""
    if not isinstance(question_id, str):
        raise InvalidReference(f"the id of a question is a string, not {type(question_id).__name__}")
    name, _, number = str.__str__(question_id).rpartition(":")
    if not name or "/" in name or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise _no_question(question_id)
    return name, int(number)


def _no_question(question_id: str) -> NotFound:
    return NotFound(f"there is no question {short(question_id)}")


def _check_keys(project: Project, choice: str, keys: Any) -> list[str]:
    """Return the keys to carry over, which must be in the state."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidCall(f"keys is a list of strings: write keys=[{short(keys)}]")
    found = list(keys)
    for key in found:
        if not isinstance(key, str):
            raise InvalidCall(f"keys are strings, not {short(key)}")
        check_text("a key", key, MAX_REASON)
    if found and choice != "reinitialize":
        raise InvalidAnswer(f"keys are carried over by reinitialize, not by {choice}")
    head = project.head() if found else None
    state = {} if head is None else head.state
    for key in found:
        if not isinstance(state, dict) or key not in state:
            raise InvalidAnswer(f"the state of project {project.id!r} has no {short(key)} to carry over")
    return found


def _answered_before(question_id: str, answer: LoopAnswer) -> Reply:
    by = answer.actor or "an operator who gave no name"
    return {
        "status": "error",
        "code": InvalidAnswer.code,
        "message": f"question {question_id} was answered with {answer.choice} by {by} at {stamp(answer.at)}",
        "question_id": question_id,
        "answered": {"choice": answer.choice, "actor": answer.actor, "at": stamp(answer.at)},
    }
