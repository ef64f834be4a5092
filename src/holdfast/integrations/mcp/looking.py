"""The tools that read: runs, log, show, diff, blame, prompts.

Invariant: nothing is changed, no code of the user's is run, and every list comes in pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import msgspec

from holdfast.desk.lookup import below, find_runs, run_of, sides
from holdfast.desk.records import (
    blame_record,
    change_record,
    changes_of,
    name_of,
    prompt_record,
    run_record,
    timeline_record,
    version_record,
)
from holdfast.desk.words import age, brief, count, dumps, moment, plain, span
from holdfast.engine import Holdfast
from holdfast.errors import NotFound
from holdfast.history.version import Version, segments_of
from holdfast.integrations.mcp.arguments import Blame, Diff, Log, Prompts, Runs, Show, Takes
from holdfast.integrations.mcp.bounds import ROW, Cut, Shown, cut, fit, page, row
from holdfast.integrations.mcp.server import Answer, Tool
from holdfast.model.public import Prompt, RunSummary
from holdfast.tree import path as paths
from holdfast.tree.diff import Change

#: Signs of what stands beside the state.
_BESIDE = 4000
#: Timelines that are listed with a log: the newest.
_LINES = 12

_SIGNS = {"added": "+", "removed": "-", "changed": "~", "moved": "→"}


def looking(store: Callable[[], Holdfast]) -> list[Tool]:
    """The tools, on a store that is opened when one of them is called."""

    def tool(name: str, does: str, takes: type[Takes], act: Callable[[Holdfast, Any], Answer]) -> Tool:
        return Tool(name, name.capitalize(), does, takes, lambda given: act(store(), given))

    return [
        tool("runs", "Lists runs, newest first: id, status, workflow, step, head.", Runs, _runs),
        tool("log", "Lists the versions of a run, newest first, without their state.", Log, _log),
        tool(
            "show",
            "Shows a version: its step, result, error and state, or one part of it. What is large is cut; cuts says "
            "where, and path and offset show it.",
            Show,
            _show,
        ),
        tool("diff", "Lists what changed from version A to version B, of one run or of two.", Diff, _diff),
        tool("blame", "Tells which version last changed each part of a state.", Blame, _blame),
        tool("prompts", "Lists the questions that runs ask and that wait for an answer.", Prompts, _prompts),
    ]


def _runs(hf: Holdfast, given: Runs) -> Answer:
    found = find_runs(
        hf,
        status=given.status,
        workflow=given.workflow,
        tags=given.tags,
        since=None if given.since is None else moment(given.since),
        search=given.search,
        limit=given.limit + 1,
        after=None if given.after is None else hf.find(given.after),
    )
    rows, records, more = page(found, lambda run: row(run_record(run)), given.limit)
    following = {"after": rows[-1].id} if more else None
    return _listed("run", [_run_line(run) for run in rows], {"runs": records}, following)


def _run_line(run: RunSummary) -> str:
    status = run_record(run)["status"]
    parts = [
        run.id, status, run.workflow or "", run.step and f"step {run.step}", f"head {run.head}",
        age(run.updated), run.origin and f"forked from {run.origin}", *(f":{tag}" for tag in run.tags[:12]),
    ]  # fmt: skip
    return _line(parts)


def _log(hf: Holdfast, given: Log) -> Answer:
    log = hf.history(run_of(hf, given.run, "give a number as before, or use show"))
    found = log.versions(
        limit=given.limit + 1, before=given.before, step=given.step, tag=given.tag, timeline=given.timeline
    )
    rows, records, more = page(found, lambda version: row(version_record(version)), given.limit)
    head = log.head_number
    lines = log.timelines()
    record = {
        "run": log.id,
        "head": head,
        "versions": records,
        "timelines": [row(timeline_record(line)) for line in lines[-_LINES:]],
    }
    told = [_version_line(version, head) for version in rows]
    told += [
        _line([f"timeline {line.number} begins after version {line.parent}", line.reason, line.actor])
        for line in lines[-_LINES:]
        if line.parent is not None
    ]
    return _listed("version", told, record, {"before": rows[-1].number} if more else None, number=len(rows))


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
        version.note and brief(version.note, 100),
    ]


def _show(hf: Holdfast, given: Show) -> Answer:
    version = hf.version(given.ref)
    if given.part == "all" and not given.path and not given.offset:
        return _summary(hf, version)
    part = "state" if given.part == "all" else given.part
    segments = segments_of(given.path)
    value = _part(hf, version, part, segments)
    shown = fit(value, start=given.offset, at=segments)
    record = {"ref": name_of(version), "part": part, "path": given.path, "value": shown.value}
    says = f"The {part} of a version" + (", at a path." if given.path else ".")
    name = f"{name_of(version)} {part} {given.path}".rstrip()
    return Answer(
        says,
        [f"{name}:", *document(shown.value), *_cut_lines(version, part, shown)],
        {**record, "cuts": _cut_records(shown), "more_cuts": shown.more},
    )


def _summary(hf: Holdfast, version: Version) -> Answer:
    record: dict[str, Any] = {"ref": name_of(version), **row(version_record(version))}
    lines = [_line([name_of(version), *_version_parts(version)])]
    cuts: list[dict[str, Any]] = []
    more = 0
    for part, value in {**_beside(hf, version), "state": version.state}.items():
        if value is None and part != "state":
            record[part] = None
            continue
        shown = fit(value) if part == "state" else fit(value, _BESIDE)
        record[part] = shown.value
        lines += [f"{part}:", *document(shown.value), *_cut_lines(version, part, shown)]
        cuts += [{"part": part, **each} for each in _cut_records(shown)]
        more += shown.more
    return Answer("A version.", lines, {**record, "cuts": cuts, "more_cuts": more})


def _beside(hf: Holdfast, version: Version) -> dict[str, Any]:
    """What is said of a version beside its state."""
    run = hf.get(version.run)
    failed = run.status == "failed" and run.head.number == version.number
    return {
        "arguments": version.arguments,
        "result": version.result,
        "meta": version.meta,
        "error": version.error,
        # The step that failed left no version.
        "failure": run.failure if failed else None,
    }


def _part(hf: Holdfast, version: Version, part: str, segments: list[Any]) -> Any:
    if part == "state":
        return version.get(segments)
    value = _beside(hf, version)[part]
    for segment in segments:
        try:
            if not isinstance(value, dict | list):
                raise LookupError
            value = value[segment]
        except (LookupError, TypeError):
            where = paths.show(segments)
            raise NotFound(f"there is nothing at {where} in the {part}", path=where) from None
    return value


def _diff(hf: Holdfast, given: Diff) -> Answer:
    one, other = sides(hf, given.a, given.b)
    found = hf.diff(one, other)
    changes = (
        changes_of(found)
        if given.path is None
        else [(change, "state") for change in below(found, given.path)]
    )
    rows, records, more = page(changes[given.offset :], _change_row, given.limit)
    record = {"a": name_of(one), "b": name_of(other), "changes": records, "of": len(changes)}
    lines = [f"{name_of(one)} → {name_of(other)}", *(_change_line(*row) for row in rows)]
    following = {"offset": given.offset + len(rows)} if more else None
    return _listed("change", lines, record, following, number=len(rows))


def _change_row(found: tuple[Change, str]) -> dict[str, Any]:
    change, of = found
    # Cut before they are made JSON: a change may hold most of a state.
    values = {"old": cut(change.old, ROW).value, "new": cut(change.new, ROW).value}
    bare = change_record(msgspec.structs.replace(change, old=None, new=None), of)
    return {**row({**bare, "summary": change.summary}), **values}


def _change_line(change: Change, of: str) -> str:
    where = plain(change.where) or "(all)"
    parts = [f"{_SIGNS[change.kind]} {where if of == 'state' else f'({where})'}"]
    if change.source is not None:
        return f"{parts[0]}  {change.summary}"
    old, new = brief(change.old, 200), brief(change.new, 200)
    told = {"added": new, "removed": old}.get(change.kind, f"{old} → {new}")
    return _line([*parts, told])


def _blame(hf: Holdfast, given: Blame) -> Answer:
    version = hf.version(given.ref)
    found = hf.history(version.run).blame_parts(given.path, at=version, depth=given.depth)
    rows, records, more = page(islice(found, given.offset, None), _blame_record, given.limit)
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
    return _listed("part", lines, {"ref": name_of(version), "parts": records}, following)


def _blame_record(part: Any) -> dict[str, Any]:
    # The value in a line: the whole of it may be most of the state.
    return row({**blame_record(part, value=False), "value": brief(part.value, 100)})


def _prompts(hf: Holdfast, given: Prompts) -> Answer:
    run = None if given.run is None else run_of(hf, given.run, "leave out the version")
    if given.answered:
        # There may be any number of them: no more are read than are asked for.
        found = hf.prompts(open=False, run_id=run, limit=given.offset + given.limit + 1)
        of = None
    else:
        found = hf.prompts(run_id=run)
        of = len(found)
    rows, records, more = page(found[given.offset :], lambda prompt: row(prompt_record(prompt)), given.limit)
    following = {"offset": given.offset + len(rows)} if more else None
    lines = [_prompt_line(prompt) for prompt in rows]
    return _listed("question", lines, {"prompts": records, "of": of}, following)


def _prompt_line(prompt: Prompt) -> str:
    wants = None if prompt.schema is None else f"wants {brief(prompt.schema, 200)}"
    until = None if prompt.due is None else f"until {prompt.due.isoformat()}"
    by = (
        None
        if prompt.answered is None
        else f"answered {age(prompt.answered)} by {prompt.actor or 'somebody'}"
    )
    why = prompt.details.get("why")
    return _line([prompt.id, brief(prompt.question, 300), wants, until, by, why and brief(why, 300)])


def _listed(
    what: str,
    lines: list[str],
    record: dict[str, Any],
    following: dict[str, Any] | None,
    *,
    number: int | None = None,
) -> Answer:
    """A page of a list, and what gives the next one."""
    says = f"{count(len(lines) if number is None else number, what)}."
    if following is not None:
        says += " There are more: the last line says how to get them."
        lines = [*lines, f"for the next page, call again with {dumps(following)}"]
    return Answer(says, lines, {**record, "next": following})


def _line(parts: Iterable[Any]) -> str:
    """What there is to say of something, in a line; texts that are too long are cut."""
    return "  ".join(cut(str(part), ROW).value for part in parts if part)


def document(value: Any) -> list[str]:
    """JSON in lines."""
    return dumps(value, indent=1).split("\n")


def _cut_lines(version: Version, part: str, shown: Shown) -> list[str]:
    lines = [each.told(f"show {name_of(version)} {_how(part, each)}") for each in shown.cuts]
    return [*lines, f"{count(shown.more, 'more place')} further in are cut"] if shown.more else lines


def _how(part: str, each: Cut) -> str:
    return dumps({"part": part, "path": each.path, "offset": each.start + each.shown})


def _cut_records(shown: Shown) -> list[dict[str, Any]]:
    return [row(msgspec.structs.asdict(each)) for each in shown.cuts]
