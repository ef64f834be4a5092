"""Describe actions on runs before they are done, find and answer questions, and report the outcome of a run.

Invariant: nothing here changes a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NotRequired, TypedDict

from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, CodeChanged, InvalidCall, InvalidReference, NotFound, Suspended
from holdfast.execution.preview import Preview
from holdfast.execution.run import Run
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.public import Question
from holdfast.operator_view.lookup import ancestor_numbers
from holdfast.operator_view.records import reference_to, status_of
from holdfast.operator_view.text import as_json, brief, count, cut, dumps, parse_json, plain


class RunOutcome(TypedDict):
    """The status of a run after an action, with its result, its failure, or what it waits for."""

    run: str
    status: str
    version: int
    timeline: int
    result: NotRequired[Any]
    error: NotRequired[Any]
    questions: NotRequired[list[str]]
    waits: NotRequired[list[str]]
    until: NotRequired[datetime | None]


def run_outcome(hf: Holdfast, run: Run) -> RunOutcome:
    """Return the outcome of a run."""
    status = run.status
    head = run.head
    found: RunOutcome = {
        "run": run.id,
        "status": status_of(run),
        "version": head.number,
        "timeline": _timeline(run, head),
    }
    if status == "completed":
        found["result"] = as_json(run.result) if run.workflow is not None else as_json(head.result)
    elif status == "failed":
        found["error"] = as_json(run.failure or {})
    elif status == "suspended":
        found["questions"] = [question.id for question in open_questions(hf, run)]
        found["waits"], found["until"] = pending_waits(run)
    elif status == "stalled":
        found["questions"] = [question.id for question in run.questions()]
    return found


def _timeline(run: Run, head: Version) -> int:
    """Return the timeline of the next version: after a rollback, one without versions yet."""
    log = run.history()
    newest = log.timelines()[-1]
    is_empty = newest.parent == head.number and not log.versions(timeline=newest.number, limit=1)
    return newest.number if is_empty else head.timeline


def open_questions(hf: Holdfast, run: Run) -> list[Question]:
    """Return the open questions of a run and its children."""
    own = hf.inbox(run_id=run.id)
    return [*own, *(each for child in run.children for each in open_questions(hf, hf.get(child)))]


def pending_waits(run: Run) -> tuple[list[str], datetime | None]:
    """Return what a suspended run waits for, and until when; nothing if it has been resumed since."""
    with suppress(Exception):
        try:
            _ = run.result
        except Suspended as error:
            return error.details["waits"], error.details["until"]
    return [], None


#: Open questions among which a mistyped id is looked for.
_NEAR = 200
#: Answers to a yes-or-no question.
_BOOLEANS = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


def find_question(hf: Holdfast, question_id: str) -> Question:
    """Return an open question by its id, or by its run if that has only one. `InvalidAnswer` if it was answered."""
    # A full id may be that of an answered question, which raises an error that says so.
    if "#" in question_id:
        try:
            return hf.question(question_id)
        except NotFound:
            pass
    run = None
    try:
        run = hf.get(question_id, prefix=True)
        own = open_questions(hf, run)
    except NotFound:
        own = []
    except InvalidReference:
        own = [question for question in hf.inbox(limit=_NEAR) if question.run.startswith(question_id)]
    if len(own) == 1:
        return own[0]
    if len(own) > 1:
        several = ", ".join(question.id for question in own[:5])
        raise InvalidReference(f"{question_id!r} could be any of {several}: name one", question=question_id)
    if run is not None:
        raise NotFound(
            f"run {run.id!r} has no open question: `holdfast inbox` lists the open questions of all runs",
            question=question_id,
        )
    from difflib import get_close_matches

    near = get_close_matches(question_id, [question.id for question in hf.inbox(limit=_NEAR)], 1)
    hint = f"did you mean {near[0]!r}?" if near else "`holdfast inbox` lists the open questions"
    raise NotFound(f"there is no open question {question_id!r:.80}: {hint}", question=question_id)


def parse_answer(question: Question, text: str) -> Any:
    """Parse an answer: JSON, or plain text if the question expects a text."""
    schema = _definition(question.schema, question.schema)
    kind = schema.get("type") if isinstance(schema, dict) else None
    options = schema.get("enum", ()) if isinstance(schema, dict) else ()
    if kind == "string" or text in options:
        try:
            found = json.loads(text)
        except ValueError:
            return text
        return found if isinstance(found, str) else text
    if kind is None:
        try:
            return json.loads(text)
        except ValueError:
            return text
    if kind not in ("boolean", "integer", "number", "object", "array"):
        return parse_json(text, question.id)
    if kind == "boolean" and text.strip().lower() in _BOOLEANS:
        return _BOOLEANS[text.strip().lower()]
    try:
        found = json.loads(text)
        if kind != "boolean":
            # The engine checks it against the schema.
            return parse_json(text, question.id) if kind in ("object", "array") else found
    except (ValueError, RecursionError):
        pass
    raise InvalidCall(
        f"{text!r:.80} is not an answer to {question.id}: expected {expected_answer(question)}",
        question=question.id,
    )


def expected_answer(question: Question) -> str:
    """Return a short description of the expected answer."""
    return cut(_expected(question.schema, question.schema, _LEVELS), 80)


#: Levels of objects and lists in the description of an answer.
_LEVELS = 3
#: What a schema may say without changing which answers fit.
_REMARKS = {"type", "title", "description", "default", "$defs"}


def _expected(schema: Any, whole: Any, levels: int) -> str:
    schema = _definition(schema, whole)
    if not isinstance(schema, dict):
        return "anything"
    if "enum" in schema:
        return " | ".join(brief(option, 30) for option in schema["enum"])
    kind, rest = schema.get("type"), schema.keys() - _REMARKS
    if kind == "boolean":
        return "true | false"
    if kind == "object" and levels and "properties" in rest <= {"properties", "required"}:
        needed = schema.get("required", ())
        fields = (
            f"{plain(name) if name.isidentifier() else dumps(name)}{'' if name in needed else '?'}: "
            f"{_expected(inner, whole, levels - 1)}"
            for name, inner in schema["properties"].items()
        )
        return f"{{{', '.join(fields)}}}"
    if kind == "array" and levels and rest == {"items"}:
        return f"[{_expected(schema['items'], whole, levels - 1)}, …]"
    return dumps(schema) if rest or not kind else plain(str(kind))


def _definition(schema: Any, whole: Any) -> Any:
    """Return the schema to which a schema refers, if it is one of the definitions of the whole schema."""
    if isinstance(schema, dict) and str(schema.get("$ref", "")).startswith("#/$defs/"):
        definitions = whole.get("$defs", {})
        return definitions.get(schema["$ref"].removeprefix("#/$defs/"), schema)
    return schema


#: Names that are listed; the rest is counted.
_MAX_NAMES = 8


def describe_preview(preview: Preview, *, resume: bool = True, back: bool = False) -> list[str]:
    """Describe the effects of resuming a run or rolling it back."""
    lines = []
    if preview.left:
        lines.append(f"{preview.run} will be rolled back to version {preview.version}, on a new timeline.")
        lines.append(f"{count(len(preview.left), 'later version')} will stay readable.")
    elif back:
        lines.append(f"{preview.run} will stay at version {preview.version}, on a new timeline.")
    if preview.undo:
        lines.append(f"Compensations will run first, in this order: {join_names(preview.undo)}.")
    if preview.rewound:
        lines.append(f"Children will be rolled back, too: {join_names(preview.rewound)}.")
    if preview.cancelled:
        lines.append(f"Children will be cancelled: {join_names(preview.cancelled)}.")
    if resume and preview.workflow is not None:
        lines.append(f"{count(len(preview.replayed), 'completed step')} will be replayed from history.")
        if preview.again:
            lines.append(f"These steps will run again: {join_names(preview.again)}.")
        if preview.waits:
            lines.append(f"The run waits for: {join_names(preview.waits)}.")
    return [plain(line) for line in lines]


def describe_fork(
    source: Version, new: str | None, changes: Mapping[str, Any], *, written: bool = False, resume: bool
) -> list[str]:
    """Describe the effects of a fork: changed values, or a state `written` as a whole."""
    lines = [f"A new run{f' {new}' if new else ''} will start with the state of {reference_to(source)}."]
    lines += ["Its state will be the one that you edited."] if written else []
    lines += [f"{path} will be {brief(value)}." for path, value in changes.items()]
    lines += ["It will be resumed at once."] if resume else []
    return lines


#: Resolvers of a conflict, by the side that they keep: functions of the path and the common, our and their value.
MERGE_SIDES: dict[str, Callable[[tuple[Any, ...], Any, Any, Any], Any]] = {
    "head": lambda path, base, ours, theirs: theirs,
    "other": lambda path, base, ours, theirs: ours,
}


def find_merge(history: History, head: Version, other: Version | None, timeline: int | None) -> Version:
    """Return the version to merge into the head: `other`, or the last one of a timeline. Raise an error if there is
    none, or nothing to merge."""
    found = [other] if other is not None else history.versions(timeline=timeline, limit=1)
    if not found:
        raise NotFound(
            f"run {history.id!r} has no timeline {timeline} with a version of its own",
            run=history.id,
            timeline=timeline,
        )
    if found[0].number in ancestor_numbers(history, head):
        raise InvalidCall(
            f"nothing to merge: {reference_to(head)} already contains {reference_to(found[0])}",
            run=history.id,
            version=found[0].number,
        )
    return found[0]


def require_code(preview: Preview, action: str, advice: str) -> None:
    """Raise `InvalidCall` if the code of a run's workflow is not loaded."""
    if preview.workflow is not None and not preview.known:
        raise InvalidCall(
            f"{action} needs the code of workflow {preview.workflow!r}{advice}", workflow=preview.workflow
        )


def refuse_changed_code(preview: Preview, changed: str | None, advice: str) -> None:
    """Raise `CodeChanged`, before anything is done, if resuming would be refused."""
    if preview.changed and changed in (None, "refuse"):
        raise CodeChanged(changed_code_text(preview.run, advice), run=preview.run)


def changed_code_text(run: str, advice: str) -> str:
    """Return the message of `CodeChanged`, with advice."""
    return f"the workflow's code has changed since run {run!r} was last executed: {advice}"


def enqueue_parameters() -> set[str]:
    """Return the parameters of `Holdfast.enqueue`, which a workflow's arguments cannot have as their names."""
    from inspect import Parameter, signature

    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    found = signature(Holdfast.enqueue).parameters.values()
    return {each.name for each in found if each.kind not in variadic}


def require_workflow(run: Run | Preview, problem: str) -> None:
    """Raise `InvalidCall` if a run is manual."""
    if run.workflow is None:
        name = run.id if isinstance(run, Run) else run.run
        raise InvalidCall(f"run {name!r} is a manual run: {problem}", run=name)


def check_run_id_is_free(hf: Holdfast, new: str) -> None:
    """Raise an error if an id is invalid or belongs to a run."""
    with suppress(NotFound):
        hf.get(new)
        raise AlreadyExists(f"run {new!r} exists: choose another id", run=new)


def join_names(found: Sequence[str]) -> str:
    """Return names as a list, shortened if it is long."""
    more = len(found) - _MAX_NAMES
    return ", ".join(found[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
