"""Questions to the operator, and the execution of answers.

A decision, by configuration or by an answer, is first recorded as a task, in the change that makes the
decision, and then executed. A task that a dead process left is executed by the next process that finds it.

Invariant: a task is executed once. Its number marks the timeline that it starts, and the timeline starts only
if the head is still the version that was read (`expected=`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from holdfast.compat.loop_engine import project as names
from holdfast.compat.loop_engine.control import (
    ACTOR,
    REASON,
    TIDIED,
    Answer,
    Book,
    Control,
    Entry,
    LoopQuestion,
    Task,
    projects,
)
from holdfast.compat.loop_engine.project import REINITIALIZED, RESTORED, SNAPSHOT, Facts, Project, loop_in
from holdfast.compat.loop_engine.replies import Reply, reported, stamp
from holdfast.compat.loop_engine.snapshots import Keeper
from holdfast.errors import InvalidAnswer, InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.model.checks import check_text
from holdfast.model.names import short
from holdfast.model.public import Timeline

CHOICES = ("resume", "restore", "reinitialize", "ignore")

#: Seconds after which an unfinished task counts as abandoned.
_LEASE = 60.0
#: Maximum number of reasons in a question.
_REASONS = 20


class Prompts(Keeper):
    """Calls that restore or ask, as configured, and that take answers."""

    @reported
    def auto_restore_if_configured(
        self, project_id: str, reason: str = "timeout", *, actor: str | None = None
    ) -> Reply:
        """Restore the last snapshot if `loop_autoresume` is on; otherwise ask the operator, or add the
        reason to the open question."""
        check_text("reason", reason, REASON)
        check_text("actor", actor, ACTOR)
        project, book = self._open(project_id)

        def decide(control: Control) -> tuple[Entry, Task | LoopQuestion]:
            decided = self._decide(control, reason or "timeout", actor)
            facts = decision(project, decided)
            return Entry(facts.pop("action"), reason, actor, facts), decided

        return self._follow(project, book, book.change(decide))

    @reported
    def get_prompts(self, project_id: str | None = None) -> Reply:
        """Return the open questions of one project or of all."""
        if project_id is not None:
            opened = [self._open(project_id)]
        else:
            known = (names.unquoted(self._control(name).project) for name in projects(self._hf))
            opened = [self._open(each) for each in known]
        found = []
        for project, book in opened:
            prompt = book.read().open_prompt
            if prompt is not None:
                found.append(self._asked(project, prompt))
        found.sort(key=lambda prompt: str(prompt["opened"]))
        return {"status": "ok", "prompts": found}

    @reported
    def answer_prompt(
        self, question_id: str, choice: str, *, keys: Iterable[str] = (), actor: str | None = None
    ) -> Reply:
        """Answer a question. Only the first answer counts; a later call gets its actor, time and choice.

        `resume`: continue with the current state. `restore`: go back to the last good snapshot.
        `reinitialize`: start with a new state that has only the named `keys` of the current one. `ignore`:
        close the question and do nothing.
        """
        check_text("actor", actor, ACTOR)
        if choice not in CHOICES:
            raise InvalidAnswer(f"answer with one of {', '.join(CHOICES)}, not {short(choice)}")
        name, number = _parsed(question_id)
        control = self._control(name)
        project, book = self._open(names.unquoted(control.project))
        if project.name != name:
            raise NotFound(f"there is no prompt {short(question_id)}")
        kept = _keys(choice, keys)
        self._check_keys(project, kept)

        def decide(control: Control) -> tuple[Entry | None, Answer | Task | None]:
            prompt = next((each for each in control.prompts if each.number == number), None)
            if prompt is None:
                raise NotFound(f"there is no prompt {short(question_id)}")
            if prompt.answer is not None:
                return None, prompt.answer
            now = self._now()
            prompt.answer = Answer(choice, now, actor)
            task = None
            if choice in ("restore", "reinitialize"):
                task = Task(control.next(), choice, f"{choice}: {prompt.reasons[0]}", now, actor, kept)
                control.tasks.append(task)
            facts: Reply = {"prompt_id": question_id, "choice": choice}
            return Entry("question.answered", prompt.reasons[0], actor, facts), task

        done = book.change(decide)
        if isinstance(done, Answer):
            return _too_late(question_id, done)
        if done is not None:
            return {**self._carry_out(project, book, done), "prompt_id": question_id, "choice": choice}
        head = project.head()
        return {
            "status": "resumed" if choice == "resume" else "ignored",
            "project_id": project.id,
            "prompt_id": question_id,
            "choice": choice,
            "version": None if head is None else head.number,
            "loop": 0 if head is None else loop_in(head),
        }

    # Internals

    def _now(self) -> int:
        return self._hf._context.clock()

    def _decide(self, control: Control, reason: str, actor: str | None) -> Task | LoopQuestion:
        """Decide how to react to a stopped loop, and add the decision to the record."""
        now = self._now()
        if control.config.loop_autoresume:
            task = Task(control.next(), "restore", reason, now, actor)
            control.tasks.append(task)
            return task
        prompt = control.open_prompt
        if prompt is None:
            prompt = LoopQuestion(control.next(), [reason], now)
            control.prompts.append(prompt)
        elif reason not in prompt.reasons and len(prompt.reasons) < _REASONS:
            prompt.reasons.append(reason)
        return prompt

    def _follow(self, project: Project, book: Book, decided: Task | LoopQuestion) -> Reply:
        """Execute a decision."""
        if isinstance(decided, Task):
            return self._carry_out(project, book, decided) | {"reason": decided.reason}
        return self._asked(project, decided)

    def _carry_out(self, project: Project, book: Book, task: Task) -> Reply:
        """Execute a task, unless it is done, and remove it from the record."""
        if task.what == "restore":
            done = project.restore(None, task.reason, task.actor, keep_unknown=True, number=task.number)
            reply = (
                _by_another(project, done)
                if isinstance(done, Timeline)
                else self._restored(project, done)
            )  # fmt: skip
        else:
            reply = self._reinitialize(project, task)

        def cross_off(control: Control) -> tuple[Entry | None, None]:
            left = [each for each in control.tasks if each.number != task.number]
            entry = Entry(TIDIED) if len(left) < len(control.tasks) else None
            control.tasks = left
            return entry, None

        book.change(cross_off)
        return reply

    def _take_over(self, project: Project, book: Book) -> list[Reply]:
        """Execute the abandoned tasks."""

        def decide(control: Control) -> tuple[Entry | None, list[Task]]:
            now = self._now()
            left = [task for task in control.tasks if task.at + int(_LEASE * 1_000_000) < now]
            for task in left:
                task.at = now
            return Entry(TIDIED) if left else None, left

        return [self._carry_out(project, book, task) for task in book.change(decide)]

    def _reinitialize(self, project: Project, task: Task) -> Reply:
        while True:
            head = project.head()
            if head is None:
                made = project.write(lambda _: {}, Facts(True, task.reason, task.actor), expected=0)
                break
            if (line := project.marked(task.number)) is not None:
                return _by_another(project, line) | {"status": REINITIALIZED}
            state = {key: head.state[key] for key in task.keys if key in head.state}
            try:
                made = project.begin_anew(
                    head, state, SNAPSHOT, task.reason, task.actor, number=task.number, head=head
                )
            except StaleVersion:
                continue
            break
        return {
            "status": REINITIALIZED,
            "project_id": project.id,
            "version": made.number,
            "loop": loop_in(made),
            "timestamp": stamp(made.at),
            "carried": list(made.state),
            **({} if head is None else project.difference(head, made)),
        }

    def _check_keys(self, project: Project, keys: list[str]) -> None:
        head = project.head()
        state = {} if head is None or not keys else head.state
        missing = [key for key in keys if not isinstance(state, dict) or key not in state]
        if missing:
            raise InvalidAnswer(
                f"the state of project {project.id!r} has no {short(missing[0])} to carry over"
            )

    def _asked(self, project: Project, prompt: LoopQuestion) -> Reply:
        head = project.head()
        last = None if head is None else project.last_good(head, [])
        found: Reply = {"diff": [], "diff_count": 0}
        if head is not None and last is not None:
            found = project.difference(last, head)
        good = (
            "no snapshot of it was saved" if last is None else f"version {last.number} is the last good one"
        )
        return {
            "status": "prompt",
            "project_id": project.id,
            "prompt_id": _prompt_id(project, prompt.number),
            "reason": prompt.reasons[0],
            "reasons": list(prompt.reasons),
            "opened": stamp(prompt.opened),
            "version": None if last is None else last.number,
            "loop": 0 if last is None else loop_in(last),
            "choices": list(CHOICES),
            "message": f"project {project.id!r} has stopped ({prompt.reasons[0]}); {good}: how shall it go on?",
            **found,
        }


def decision(project: Project, decided: Task | LoopQuestion) -> Reply:
    """Return a decision in the form of an audit entry."""
    if isinstance(decided, Task):
        return {"action": "restore.decided", "task": decided.number}
    return {"action": "question.opened", "prompt_id": _prompt_id(project, decided.number)}


def _prompt_id(project: Project, number: int) -> str:
    return f"{project.name}:{number}"


def _parsed(question_id: Any) -> tuple[str, int]:
    if not isinstance(question_id, str):
        raise InvalidReference(f"a prompt is named by a string, not {type(question_id).__name__}")
    name, _, number = str.__str__(question_id).rpartition(":")
    if not name or "/" in name or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise NotFound(f"there is no prompt {short(question_id)}")
    return name, int(number)


def _keys(choice: str, keys: Any) -> list[str]:
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise InvalidCall(f"keys is a list of strings: write keys=[{short(keys)}]")
    found = list(keys)
    for key in found:
        if not isinstance(key, str):
            raise InvalidCall(f"keys are strings, not {short(key)}")
        check_text("a key", key, REASON)
    if found and choice != "reinitialize":
        raise InvalidAnswer(f"keys are carried over by reinitialize, not by {choice}")
    return found


def _too_late(question_id: str, answer: Answer) -> Reply:
    by = answer.actor or "somebody who gave no name"
    return {
        "status": "error",
        "code": InvalidAnswer.code,
        "message": f"prompt {question_id} was answered with {answer.choice} by {by} at {stamp(answer.at)}",
        "prompt_id": question_id,
        "answered": {"choice": answer.choice, "actor": answer.actor, "at": stamp(answer.at)},
    }


def _by_another(project: Project, line: Timeline) -> Reply:
    """Return the reply for a task that another process has already executed."""
    loop = 0
    with suppress(NotFound):
        loop = loop_in(project.log.at(line.parent or 1))
    return {
        "status": RESTORED,
        "project_id": project.id,
        "loop": loop,
        "version": line.parent,
        "timestamp": stamp(line.at),
        "by_another": True,
        "kept": [],
        "skipped": [],
        "diff": [],
        "diff_count": 0,
    }
