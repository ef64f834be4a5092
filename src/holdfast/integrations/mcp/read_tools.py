"""The tools that read: runs, log, show, diff, blame, inbox; and the types of their arguments.

The schemas of the tools are made from these types, and calls are checked against them.

Invariant: nothing is changed, no user code runs, and every list is paged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import NotFound
from holdfast.history.version import Version, segments_of
from holdfast.integrations.mcp.server import Tool, ToolResult
from holdfast.model.public import Question, RunSummary
from holdfast.model.records import StatusFilter
from holdfast.operator_view.lookup import changes_below, find_runs, resolve_run, versions_to_compare
from holdfast.operator_view.records import (
    attachment_names,
    blame_view,
    change_view,
    changes_of,
    question_view,
    reference_to,
    run_view,
    timeline_view,
    version_view,
)
from holdfast.operator_view.text import age, brief, count, dumps, parse_time, plain, span
from holdfast.operator_view.truncate import (
    ROW,
    TruncatedPlace,
    TruncatedValue,
    fill_page,
    fit,
    truncate,
    truncate_row,
)
from holdfast.tree import path as paths
from holdfast.tree.diff import Change


def described_as(text: str, **more: Any) -> Any:
    """Return the description and constraints of an argument."""
    return msgspec.Meta(description=text, **more)


_Limit = Annotated[int, described_as("The maximum number of items.", ge=1, le=100)]
_Offset = Annotated[int, described_as("The number of items to skip: for the next page.", ge=0)]
Ref = Annotated[str, described_as("A version: RUN (its head), RUN@12, RUN@head, RUN~2 or RUN:tag.")]
RunId = Annotated[str, described_as("The id of a run, or a unique prefix.")]
_Path = Annotated[str, described_as('A part of the state, such as plan.tasks[3] or ["any key"].')]


class ToolArguments(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arguments of a tool. An unknown argument is refused: it may be a misspelt `confirm`."""


class RunsArguments(ToolArguments):
    """Arguments of `runs`."""

    status: Annotated[list[StatusFilter], described_as("Only runs with one of these statuses.")] = []
    workflow: Annotated[str | None, described_as("Only runs of this workflow.")] = None
    tags: Annotated[list[str], described_as("Only runs with versions of these tags.")] = []
    since: Annotated[str | None, described_as("Only runs changed since: 2h, 3d, 2026-11-15.")] = None
    search: Annotated[str, described_as("Only runs with this text in their id, workflow, step or tags.")] = ""
    limit: _Limit = 20
    after: Annotated[str | None, described_as("The id of a page's last run: for the next page.")] = None


class LogArguments(ToolArguments):
    """Arguments of `log`."""

    run: RunId
    limit: _Limit = 20
    before: (
        Annotated[int, described_as("Only versions before this number: for the next page.", ge=1)] | None
    ) = None
    step: Annotated[str | None, described_as("Only versions of this step.")] = None
    tag: Annotated[str | None, described_as("Only versions with this tag.")] = None
    timeline: Annotated[int, described_as("Only versions of this timeline.", ge=1)] | None = None


class ShowArguments(ToolArguments):
    """Arguments of `show`."""

    ref: Ref
    path: Annotated[
        str, described_as('Only this part, such as plan.tasks[3] or ["any key"]. Empty is all.')
    ] = ""
    part: Annotated[
        Literal["all", "state", "arguments", "result", "annotations", "error", "failure", "attachments"],
        described_as(
            "Which part path and offset refer to: the state; the arguments, result, annotations or error of the step; "
            "the failure of the run, at its head; the names of attachments. all is a summary of everything; with a "
            "path, the state."
        ),
    ] = "all"
    offset: Annotated[
        int, described_as("Start with this item of a list, entry of a dict, character of a text.", ge=0)
    ] = 0


class DiffArguments(ToolArguments):
    """Arguments of `diff`."""

    a: Ref
    b: Annotated[
        str | None,
        described_as(
            "The other version; @4, ~1 and :tag refer to A's run. By default the head; if A is the head, what A "
            "itself changed."
        ),
    ] = None
    path: Annotated[str | None, described_as("Only what changed below this part of the state.")] = None
    limit: _Limit = 50
    offset: _Offset = 0


class BlameArguments(ToolArguments):
    """Arguments of `blame`."""

    ref: Ref
    path: _Path = ""
    depth: Annotated[int, described_as("Levels below the path.", ge=0, le=20)] = 1
    limit: _Limit = 50
    offset: _Offset = 0


class InboxArguments(ToolArguments):
    """Arguments of `inbox`."""

    run: Annotated[str | None, described_as("Only those of this run.")] = None
    answered: Annotated[bool, described_as("List answered questions instead of open ones.")] = False
    workflow: Annotated[str | None, described_as("Only open questions of runs of this workflow.")] = None
    assignee: Annotated[str | None, described_as("Only open questions that are assigned to this name.")] = (
        None
    )
    kind: Annotated[
        Literal["question", "stalled", "loop"] | None, described_as("Only open questions of this kind.")
    ] = None
    limit: _Limit = 20
    after: Annotated[str | None, described_as("The id of the last question of the previous page.")] = None


#: Maximum JSON characters of the arguments, result, annotations or error of a step.
_MAX_FACT = 4000
#: Maximum number of timelines that are listed with a log: the newest.
_MAX_TIMELINES = 12

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "moved": "→"}


def read_tools(store: Callable[[], Holdfast]) -> list[Tool]:
    """Return the tools; the store is opened when one of them is called."""

    def tool(
        name: str,
        description: str,
        arguments: type[ToolArguments],
        act: Callable[[Holdfast, Any], ToolResult],
    ) -> Tool:
        return Tool(name, name.capitalize(), description, arguments, lambda given: act(store(), given))

    return [
        tool("runs", "Lists runs, newest first: id, status, workflow, step, head.", RunsArguments, _runs),
        tool("log", "Lists the versions of a run, newest first, without their state.", LogArguments, _log),
        tool(
            "show",
            "Shows a version: its step, result, error and state, or one part of it. Large values are cut; cuts says "
            "where, and path and offset show the rest.",
            ShowArguments,
            _show,
        ),
        tool(
            "diff",
            "Lists what changed from version A to version B, of one run or of two.",
            DiffArguments,
            _diff,
        ),
        tool("blame", "Shows which version last changed each part of a state.", BlameArguments, _blame),
        tool(
            "inbox",
            "Lists the open questions of runs and loops, the highest priority first, then the oldest.",
            InboxArguments,
            _inbox,
        ),
    ]


def _runs(hf: Holdfast, given: RunsArguments) -> ToolResult:
    found = find_runs(
        hf,
        status=given.status,
        workflow=given.workflow,
        tags=given.tags,
        since=None if given.since is None else parse_time(given.since),
        search=given.search,
        limit=given.limit + 1,
        after=None if given.after is None else hf.get(given.after, prefix=True).id,
    )
    rows, records, more = fill_page(found, lambda run: truncate_row(run_view(run)), given.limit)
    following = {"after": rows[-1].id} if more else None
    return _listed("run", [_run_line(run) for run in rows], {"runs": records}, following)


def _run_line(run: RunSummary) -> str:
    status = run_view(run)["status"]
    parts = [
        run.id, status, run.workflow or "", run.step and f"step {run.step}", f"head {run.head}",
        age(run.updated), run.origin and f"forked from {run.origin}", *(f":{tag}" for tag in run.tags[:12]),
    ]  # fmt: skip
    return _line(parts)


def _log(hf: Holdfast, given: LogArguments) -> ToolResult:
    log = hf.history(resolve_run(hf, given.run, "give a number as before, or use show"))
    found = log.versions(
        limit=given.limit + 1, before=given.before, step=given.step, tag=given.tag, timeline=given.timeline
    )
    rows, records, more = fill_page(found, lambda version: truncate_row(version_view(version)), given.limit)
    head = log.head_number
    lines = log.timelines()
    record = {
        "run": log.id,
        "head": head,
        "versions": records,
        "timelines": [truncate_row(timeline_view(line)) for line in lines[-_MAX_TIMELINES:]],
    }
    shown = [_version_line(version, head) for version in rows]
    shown += [
        _line([f"timeline {line.number} starts after version {line.parent}", line.reason, line.actor])
        for line in lines[-_MAX_TIMELINES:]
        if line.parent is not None
    ]
    return _listed("version", shown, record, {"before": rows[-1].number} if more else None, number=len(rows))


def _version_line(version: Version, head: int) -> str:
    return _line([version.number, *_version_parts(version), version.number == head and "← head"])


def _version_parts(version: Version) -> list[Any]:
    return [
        version.address or f"({version.kind})",
        version.status,
        f"timeline {version.timeline}",
        age(version.at),
        version.took is not None and f"took {span(version.took)}",
        version.attempt > 1 and f"attempt {version.attempt}",
        *(f":{tag}" for tag in version.tags[:12]),
        version.pinned and "pinned",
        version.key and f"key {version.key}",
        version.note and brief(version.note, 100),
    ]


def _show(hf: Holdfast, given: ShowArguments) -> ToolResult:
    version = hf.version(given.ref)
    if given.part == "all" and not given.path and not given.offset:
        return _summary(hf, version)
    part = "state" if given.part == "all" else given.part
    segments = segments_of(given.path)
    value = _part(hf, version, part, segments)
    shown = fit(value, start=given.offset, at=segments)
    record = {"ref": reference_to(version), "part": part, "path": given.path, "value": shown.value}
    summary = f"The {part} of a version" + (", at a path." if given.path else ".")
    name = f"{reference_to(version)} {part} {given.path}".rstrip()
    return ToolResult(
        summary,
        [f"{name}:", *json_lines(shown.value), *_cut_lines(version, part, shown)],
        {**record, "cuts": _cut_records(shown), "more_cuts": shown.more},
    )


def _summary(hf: Holdfast, version: Version) -> ToolResult:
    record: dict[str, Any] = {"ref": reference_to(version), **truncate_row(version_view(version))}
    lines = [_line([reference_to(version), *_version_parts(version)])]
    cuts: list[dict[str, Any]] = []
    more = 0
    for part, value in {**_step_facts(hf, version), "state": version.state}.items():
        if value is None and part != "state":
            record[part] = None
            continue
        shown = fit(value) if part == "state" else fit(value, _MAX_FACT)
        record[part] = shown.value
        lines += [f"{part}:", *json_lines(shown.value), *_cut_lines(version, part, shown)]
        cuts += [{"part": part, **each} for each in _cut_records(shown)]
        more += shown.more
    return ToolResult("A version.", lines, {**record, "cuts": cuts, "more_cuts": more})


def _step_facts(hf: Holdfast, version: Version) -> dict[str, Any]:
    """Return the recorded facts of a version other than its state."""
    run = hf.get(version.run)
    failed = run.status == "failed" and run.head.number == version.number
    return {
        "arguments": version.arguments,
        "result": version.result,
        "annotations": version.annotations,
        "error": version.error,
        # The failed step has no version of its own.
        "failure": run.failure if failed else None,
        "attachments": attachment_names(version) or None,
    }


def _part(hf: Holdfast, version: Version, part: str, segments: list[Any]) -> Any:
    if part == "state":
        return version.get(segments)
    value = _step_facts(hf, version)[part]
    for segment in segments:
        try:
            if not isinstance(value, dict | list):
                raise LookupError
            value = value[segment]
        except (LookupError, TypeError):
            where = paths.show(segments)
            raise NotFound(f"there is nothing at {where} in the {part}", path=where) from None
    return value


def _diff(hf: Holdfast, given: DiffArguments) -> ToolResult:
    one, other = versions_to_compare(hf, given.a, given.b)
    found = hf.diff(one, other)
    changes = (
        changes_of(found)
        if given.path is None
        else [(change, "state") for change in changes_below(found, given.path)]
    )
    rows, records, more = fill_page(changes[given.offset :], _change_row, given.limit)
    record = {"a": reference_to(one), "b": reference_to(other), "changes": records, "of": len(changes)}
    lines = [f"{reference_to(one)} → {reference_to(other)}", *(_change_line(*row) for row in rows)]
    following = {"offset": given.offset + len(rows)} if more else None
    return _listed("change", lines, record, following, number=len(rows))


def _change_row(found: tuple[Change, str]) -> dict[str, Any]:
    change, of = found
    # Truncate before converting to JSON: a change may hold most of a state.
    values = {"old": truncate(change.old, ROW).value, "new": truncate(change.new, ROW).value}
    bare = change_view(msgspec.structs.replace(change, old=None, new=None), of)
    return {**truncate_row({**bare, "summary": change.summary}), **values}


def _change_line(change: Change, of: str) -> str:
    where = plain(change.where) or "(all)"
    parts = [f"{_SIGNS[change.kind]} {where if of == 'state' else f'({where})'}"]
    if change.source is not None:
        return f"{parts[0]}  {change.summary}"
    old, new = brief(change.old, 200), brief(change.new, 200)
    values = {"added": new, "removed": old}.get(change.kind, f"{old} → {new}")
    return _line([*parts, values])


def _blame(hf: Holdfast, given: BlameArguments) -> ToolResult:
    version = hf.version(given.ref)
    found = hf.history(version.run).blame_parts(given.path, at=version, depth=given.depth)
    rows, records, more = fill_page(islice(found, given.offset, None), _blame_record, given.limit)
    lines = [
        _line(
            [
                part.path or "(all)",
                f"version {part.version.number}",
                part.version.address or f"({part.version.kind})",
                age(part.version.at),
                brief(part.value, 100),
            ]
        )
        for part in rows
    ]
    following = {"offset": given.offset + len(rows)} if more else None
    return _listed("part", lines, {"ref": reference_to(version), "parts": records}, following)


def _blame_record(part: Any) -> dict[str, Any]:
    # One line of the value: all of it may be most of the state.
    return truncate_row({**blame_view(part, value=False), "value": brief(part.value, 100)})


def _inbox(hf: Holdfast, given: InboxArguments) -> ToolResult:
    run = None if given.run is None else resolve_run(hf, given.run, "leave out the version")
    found = hf.inbox(
        open=not given.answered,
        run_id=run,
        workflow=given.workflow,
        assignee=given.assignee,
        kind=given.kind,
        limit=given.limit + 1,
        after=given.after,
    )
    rows, records, more = fill_page(
        found, lambda question: truncate_row(question_view(question)), given.limit
    )
    following = {"after": rows[-1].id} if more else None
    lines = [_question_line(question) for question in rows]
    return _listed("question", lines, {"questions": records}, following)


def _question_line(question: Question) -> str:
    wants = None if question.schema is None else f"wants {brief(question.schema, 200)}"
    until = None if question.expires is None else f"until {question.expires.isoformat()}"
    due = None if question.due in (None, question.expires) else f"due {question.due.isoformat()}"
    person = question.assignee and f"assigned to {question.assignee}"
    urgent = f"priority {question.priority}" if question.priority else None
    by = (
        None
        if question.answered is None
        else f"answered {age(question.answered)} by {question.actor or 'an unknown caller'}"
    )
    why = question.details.get("why")
    return _line(
        [
            question.id,
            brief(question.text, 300),
            wants,
            person,
            urgent,
            due,
            until,
            by,
            why and brief(why, 300),
        ]
    )


def _listed(
    what: str,
    lines: list[str],
    record: dict[str, Any],
    following: dict[str, Any] | None,
    *,
    number: int | None = None,
) -> ToolResult:
    """Return a page of a list, with the arguments of the next page."""
    summary = f"{count(len(lines) if number is None else number, what)}."
    if following is not None:
        summary += " There are more: the last line says how to get them."
        lines = [*lines, f"for the next page, call again with {dumps(following)}"]
    return ToolResult(summary, lines, {**record, "next": following})


def _line(parts: Iterable[Any]) -> str:
    """Join parts to one line; truncate long ones."""
    return "  ".join(truncate(str(part), ROW).value for part in parts if part)


def json_lines(value: Any) -> list[str]:
    """Return JSON as lines."""
    return dumps(value, indent=1).split("\n")


def _cut_lines(version: Version, part: str, shown: TruncatedValue) -> list[str]:
    lines = [each.describe(f"show {reference_to(version)} {_next_call(part, each)}") for each in shown.cuts]
    return [*lines, f"{count(shown.more, 'more place')} further in are cut"] if shown.more else lines


def _next_call(part: str, each: TruncatedPlace) -> str:
    return dumps({"part": part, "path": each.path, "offset": each.start + each.shown})


def _cut_records(shown: TruncatedValue) -> list[dict[str, Any]]:
    return [truncate_row(msgspec.structs.asdict(each)) for each in shown.cuts]
