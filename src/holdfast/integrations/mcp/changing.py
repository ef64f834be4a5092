"""The tools that change something: fork, rollback, answer.

Invariant: without `confirm=true` nothing is written and no step is run: what would be done is described, and the call
that does exactly that is given, with references that mean the same when the run has moved on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import msgspec

from holdfast.desk.lookup import run_of, within
from holdfast.desk.plan import check_free, names, told, told_fork
from holdfast.desk.questions import answer_of, find_prompt
from holdfast.desk.records import name_of, preview_record, prompt_record
from holdfast.desk.standing import standing
from holdfast.desk.words import brief, dumps
from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidAnswer, InvalidCall, InvalidSnapshot
from holdfast.history.version import edited
from holdfast.integrations.mcp.arguments import Ref, RunId, Takes, about
from holdfast.integrations.mcp.bounds import ROW, cut, fit, row
from holdfast.integrations.mcp.looking import document
from holdfast.integrations.mcp.server import Answer, Tool
from holdfast.model.public import Prompt
from holdfast.runtime.preview import Preview
from holdfast.runtime.run import Run
from holdfast.runtime.schema import check_answer
from holdfast.tree.portable import from_json

#: Who did it, if nobody says.
_ACTOR = "mcp"
#: JSON signs of what a run returned.
_RESULT = 4000
#: Sentences that tell what would be done.
_TOLD = 40
#: Questions that are told.
_LISTED = 8

_Confirm = Annotated[bool, about("Do it. Without, nothing is changed: what would be done is described.")]
_Actor = Annotated[str, about("Who does it; kept with the run.")]


class Source(Protocol):
    """Where runs, and the code of their workflows, come from."""

    def hf(self) -> Holdfast:
        """The open store."""

    def need_code(self, preview: Preview, what: str) -> None:
        """`InvalidCall` if the code of a run's workflow is not known."""


class Fork(Takes):
    """Of `fork`."""

    ref: Ref
    new: Annotated[str | None, about("The id of the new run; without, one is made up.")] = None
    set: Annotated[
        dict[str, Any], about('Parts of the state to change: {"plan.days": 5, "title": "Kelp"}.')
    ] = msgspec.field(default_factory=dict)
    note: Annotated[str | None, about("Why; kept with its first version.")] = None
    resume: Annotated[bool, about("Go on with the new run at once (needs the workflow's code).")] = False
    actor: _Actor = _ACTOR
    confirm: _Confirm = False


class Rollback(Takes):
    """Of `rollback`."""

    run: RunId
    to: Annotated[str | int, about("The version to go back to: 12, ~2, a tag, RUN@12.")]
    resume: Annotated[
        bool, about("Go on from there (needs the workflow's code), or leave the run paused.")
    ] = True
    reason: Annotated[str | None, about("Why; kept with the new timeline.")] = None
    actor: _Actor = _ACTOR
    confirm: _Confirm = False


class Reply(Takes):
    """Of `answer`."""

    prompt: Annotated[str, about("The id of a question, as prompts lists it, or the run that asks only one.")]
    value: Annotated[
        Any,
        about(
            "The answer, as JSON of the shape that the question wants. For a run that is frozen: resume, rollback, "
            "reinitialise (begin afresh from version 1) or cancel."
        ),
    ]
    version: (
        Annotated[int, about("With rollback of a frozen run: the version; else the last good one.", ge=1)]
        | None
    ) = None
    keep: Annotated[list[str], about("With reinitialise: paths of the parts of the state that are kept.")] = (
        msgspec.field(default_factory=list)
    )
    resume: Annotated[bool, about("Go on with the run at once, where its code is known.")] = True
    actor: _Actor = _ACTOR
    confirm: _Confirm = False


def changing(source: Source) -> list[Tool]:
    """The tools."""

    def tool(
        name: str, does: str, takes: type[Takes], act: Callable[[Source, Any], Answer], *, destroys: bool
    ) -> Tool:
        return Tool(
            name,
            name.capitalize(),
            f"{does} Only describes it unless confirm is true.",
            takes,
            lambda given: act(source, given),
            changes=True,
            destroys=destroys,
            runs_code=True,
        )

    return [
        tool(
            "fork",
            "Starts another run from a version, with parts of its state changed if wanted. Both go their own way.",
            Fork,
            _fork,
            destroys=False,
        ),
        tool(
            "rollback",
            "Moves a run back to a version, on a new timeline, and goes on from there. Steps after it that have a "
            "compensation are undone first. Nothing is deleted.",
            Rollback,
            _rollback,
            destroys=True,
        ),
        tool(
            "answer",
            "Answers a question that a run asks; the run goes on. An answer cannot be taken back.",
            Reply,
            _answer,
            destroys=True,
        ),
    ]


def _fork(source: Source, given: Fork) -> Answer:
    hf = source.hf()
    version = hf.version(given.ref)
    changes = {path: _value(value, path) for path, value in given.set.items()}
    # What cannot be set, and an id that is taken, are told before anybody is asked.
    if changes:
        edited(version.state, changes)
    if given.new is not None:
        check_free(hf, given.new)
    preview = hf.preview(version.run)
    exact = msgspec.structs.replace(given, ref=name_of(version))
    if not given.confirm:
        lines = told_fork(version, given.new, changes, resume=given.resume)
        record = {
            "source": name_of(version),
            "run": given.new,
            "set": cut(given.set, ROW, written=True).value,
        }
        return _described("fork", exact, lines, record, _missing(source, preview, "fork", given.resume))
    if given.resume:
        source.need_code(preview, "fork with resume")
    made = hf.fork(version, given.new, edit=changes or None, note=given.note, actor=given.actor)
    run = _gone_on(hf, made.id, "was made", given.resume)
    return _done(hf, run, "The new run was made.")


def _rollback(source: Source, given: Rollback) -> Answer:
    hf = source.hf()
    run = run_of(hf, given.run, "name the version with to")
    target = within(hf, run, str(given.to))
    preview = hf.preview(run, target)
    needed = given.resume or bool(preview.undo)
    exact = msgspec.structs.replace(given, run=run, to=target.number)
    if not given.confirm:
        lines = told(preview, resume=given.resume, back=True)
        record = {"preview": row(preview_record(preview))}
        return _described("rollback", exact, lines, record, _missing(source, preview, "rollback", needed))
    if needed:
        source.need_code(preview, "rollback")
    hf.rollback(run, target, resume=False, reason=given.reason, actor=given.actor)
    return _done(hf, _gone_on(hf, run, "was rolled back", given.resume), "The run was rolled back.")


def _gone_on(hf: Holdfast, run_id: str, did: str, wanted: bool) -> Run:
    """A run as it stands; if that is wanted and it has a workflow, after going on. What was done before is told if
    that is refused: it stands."""
    run = hf.get(run_id)
    if not wanted or run.workflow is None:
        return run
    try:
        return hf.resume(run_id, raises=False)
    except HoldfastError as error:
        raise type(error)(
            f"run {run_id!r} {did}, but could not go on: {error}", **{**error.details, "run": run_id}
        ) from error


def _answer(source: Source, given: Reply) -> Answer:
    hf = source.hf()
    prompt = find_prompt(hf, given.prompt)
    value = _reply(prompt, given.value)
    check_answer(value, prompt.schema)
    if (given.version is not None or given.keep) and not prompt.details:
        raise InvalidAnswer(
            f"version and keep are for the question of a frozen run, and {prompt.id!r} is none",
            prompt=prompt.id,
        )
    if not given.confirm:
        exact = msgspec.structs.replace(given, prompt=prompt.id)
        record = {"prompt": row(prompt_record(prompt)), "value": cut(value, ROW).value}
        return _described("answer", exact, _told_answer(hf, prompt, value, given), record, None)
    run = hf.answer(
        prompt.id,
        value,
        version=given.version,
        keep=given.keep,
        actor=given.actor,
        resume=given.resume,
        raises=False,
    )
    while run.parent is not None:
        run = hf.get(run.parent)
    return _done(hf, run, "The question was answered.")


def _told_answer(hf: Holdfast, prompt: Prompt, value: Any, given: Reply) -> list[str]:
    lines = [f"{prompt.id} asks: {brief(prompt.question, 300)}", f"the answer is {brief(value, 300)}"]
    run = hf.get(prompt.run)
    if prompt.details:
        lines.append(f"{run.id} is frozen: {brief(prompt.details.get('why'), 300)}")
        back = {"rollback": given.version or prompt.details.get("version"), "reinitialise": 1}.get(value)
        if value == "cancel":
            return [*lines, f"{run.id} is cancelled, for good"]
        if value == "reinitialise":
            lines.append(f"of the state, these parts are kept: {', '.join(given.keep) or 'none'}")
        return [*lines, *told(hf.preview(run.id, back), back=back is not None)]
    while run.parent is not None:
        run = hf.get(run.parent)
    preview = hf.preview(run.id)
    if given.resume and preview.known:
        return [*lines, f"{run.id} goes on at once, unless a worker does or it waits for more"]
    return [*lines, f"{run.id} goes on when it is resumed, where its code is known"]


def _reply(prompt: Prompt, value: Any) -> Any:
    """The answer as a value. A text that does not fit is read as one that a person types: some agents send nothing but
    texts."""
    if not isinstance(value, str):
        return _value(value, prompt.id)
    try:
        check_answer(value, prompt.schema)
    except InvalidAnswer:
        return answer_of(prompt, value)
    return value


def _value(document: Any, what: str) -> Any:
    try:
        return from_json(document)
    except InvalidSnapshot as error:
        raise InvalidCall(f"{what}: {error}") from None


def _missing(source: Source, preview: Preview, what: str, needed: bool) -> str | None:
    """What stands in the way of doing it, if the code is needed and not known."""
    if not needed:
        return None
    try:
        source.need_code(preview, what)
    except InvalidCall as error:
        return str(error) if preview.undo else f"{error}; or leave it paused with resume=false"
    return None


def _described(
    tool: str, call: Takes, lines: list[str], record: dict[str, Any], missing: str | None
) -> Answer:
    arguments = fit({**msgspec.to_builtins(call), "confirm": True}, written=True)
    if len(lines) > _TOLD:
        lines = [*lines[:_TOLD], f"and {len(lines) - _TOLD} more"]
    if missing is not None:
        says = "Nothing was changed. This would be done, but cannot be yet: the last line says why."
        told = [*lines, missing]
    elif arguments.cuts:
        says = "Nothing was changed. This would be done; the same call with confirm=true does it."
        told = lines
    else:
        says = "Nothing was changed. This would be done; the last line is the call that does it."
        told = [*lines, f"{tool} {dumps(arguments.value)}"]
    return Answer(
        says,
        told,
        {
            "changed": False,
            "would": [cut(line, ROW).value for line in lines],
            **record,
            "ready": missing is None,
            "missing": missing,
            # One that had to be cut would be another call.
            "call": None if arguments.cuts else {"tool": tool, "arguments": arguments.value},
        },
    )


def _done(hf: Holdfast, run: Run, says: str) -> Answer:
    stands: dict[str, Any] = {**standing(hf, run)}
    values = {name: stands.pop(name) for name in ("result", "error") if name in stands}
    record = row(stands)
    lines = [f"{run.id}@{stands['version']}  {stands['status']}"]
    for prompt in stands.get("prompts", [])[:_LISTED]:
        lines.append(f"it asks {prompt}: {brief(hf.prompt(prompt).question, 300)}")
    if stands.get("waits"):
        lines.append(f"it waits for {names(stands['waits'])}")
    for name, value in values.items():
        record[name] = fit(value, _RESULT, written=True).value
        lines += [f"{name}:", *document(record[name])]
    return Answer(says, lines, {"changed": True, **record})
