"""Resolve references, filters and paths that an operator writes; count the runs of a store; add artifacts to a state.

Invariant: memory does not grow with the number of runs in the store.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from heapq import nlargest
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidCall, InvalidReference, NotFound
from holdfast.history.compare import Diff
from holdfast.history.history import History
from holdfast.history.version import Version, segments_of
from holdfast.model.names import split_reference
from holdfast.model.public import RunSummary, StoredArtifact
from holdfast.model.records import STATUS_FILTERS, STATUSES
from holdfast.operator_view.records import reference_to, status_of
from holdfast.operator_view.text import as_json, dumps, plain
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.tree.diff import Change


class StoreOverview(NamedTuple):
    """The number of runs by status, and the largest runs, largest first."""

    statuses: dict[str, int]
    largest: list[RunSummary]


def store_overview(hf: Holdfast, largest: int) -> StoreOverview:
    """Return the overview of all runs of a store."""
    statuses = dict.fromkeys(STATUS_FILTERS, 0)
    found: list[RunSummary] = []
    for run in hf.iter_runs():
        statuses[status_of(run)] += 1
        found.append(run)
        if len(found) > 4 * largest:
            found = _largest(found, largest)
    return StoreOverview(statuses, _largest(found, largest))


def _largest(runs: list[RunSummary], count: int) -> list[RunSummary]:
    return nlargest(count, runs, key=lambda run: run.size)


def find_artifact_target(hf: Holdfast, run: str, path: str) -> tuple[str, list[Any]]:
    """Return the run, which need not exist, and the path in its state; raise an error if the run is not manual."""
    try:
        run = hf.get(run, prefix=True).id
        if hf.get(run).workflow is not None:
            raise InvalidCall(
                f"only the steps of run {run!r} change its state: fork it, and change the fork", run=run
            )
    except NotFound:
        pass
    segments = segments_of(path)
    if not segments:
        raise InvalidReference("a path is required: the whole state cannot be an artifact")
    return run, segments


def store_artifact(hf: Holdfast, run: str, segments: list[Any], content: Artifact, *, step: str) -> Version:
    """Add an artifact to the state of a run as a new version; create the run and dicts on the path if needed."""
    with hf.history(run).edit(step=step) as state:
        _put_at(state, segments, content)
    return hf.history(run).head


def _put_at(state: Any, segments: list[Any], content: Artifact) -> None:
    parent = state
    try:
        for segment, after in pairwise(segments):
            if isinstance(parent, dict) and segment not in parent and isinstance(after, str):
                parent[segment] = {}
            parent = parent[segment]
        if not isinstance(parent, dict) and segments[-1] == len(parent):
            parent.append(content)
        else:
            parent[segments[-1]] = content
    except (LookupError, TypeError, AttributeError):
        where = paths.show(segments)
        raise NotFound(
            f"{where} cannot be set in this state: `holdfast show RUN` shows it", path=where
        ) from None


_PAGE = 500
#: Statuses of runs that may have open questions.
_ASKING = ("stalled", "paused", "running", "suspended", "queued")
_ABSENT = object()


def resolve_version(hf: Holdfast, ref: str, other: Version | None = None) -> Version:
    """Return the version that a reference names; `@4`, `~1` and `:tag` refer to the run of `other`."""
    if other is not None and ref[:1] in ("@", "~", ":"):
        return hf.version(f"{other.run}{ref}")
    if other is not None and (ref.isdecimal() or ref == "head"):
        return hf.version(f"{other.run}@{ref}")
    return hf.version(ref)


def resolve_run(hf: Holdfast, text: str, instead: str) -> str:
    """Return the id of the run that an id or a unique prefix names. The error for a reference to a version contains the
    advice `instead`."""
    try:
        return hf.get(text, prefix=True).id
    except NotFound:
        try:
            named = reference_to(hf.version(text))
        except HoldfastError:
            named = None
        if named is None:
            raise
        raise InvalidReference(f"{named} is a version, but a run is expected: {instead}", ref=text) from None


def version_in_run(hf: Holdfast, run_id: str, ref: str) -> Version:
    """Return a version of a run by a reference with or without its id: `RUN@12`, `@12`, `12`, `~2`, a tag."""
    history = hf.history(run_id)
    if ref[:1] not in ("@", "~", ":") and (len(split_reference(ref)) > 1 or ref == run_id):
        return history.at(hf.version(ref))
    return history.at(ref)


_CONDITION = re.compile(r"(?P<name>[^=<>!]*)(?P<sign>!=|>=|<=|=|>|<)(?P<value>(?![=<>]).*)", re.DOTALL)


def parse_value(text: str) -> Any:
    """Return the value that a person writes in a filter: a number, true, false or null as in JSON; any other text as it
    is, and `"7"` in quotes for the text 7."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def parse_conditions(texts: Sequence[str]) -> dict[str, Any]:
    """Return the `where` of `History.versions` for conditions such as `model=gpt-4` and `cost>0.5`."""
    found: dict[str, Any] = {}
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None or not match["name"].strip():
            raise InvalidCall(
                f"{plain(text)[:60]!r} is not a condition: write NAME=VALUE, or one of != > >= < <= instead of ="
            )
        key = f"{match['name'].strip()}{match['sign']}"
        if key in found:
            raise InvalidCall(f"there are two conditions {plain(key)[:60]!r}: a version can meet only one")
        found[key] = parse_value(match["value"].strip())
    return found


def parse_meta(texts: Sequence[str]) -> dict[str, Any]:
    """Return metadata written as `customer=7`, by name; a value is read as in `parse_value`."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise InvalidCall(f"{plain(text)[:60]!r} is not NAME=VALUE, such as customer=7")
        if name.strip() in found:
            raise InvalidCall(f"{plain(name)[:60]!r} is given twice: a run has one value for a name")
        found[name.strip()] = parse_value(value.strip())
    return found


def find_runs(
    hf: Holdfast,
    *,
    status: Collection[str] = (),
    workflow: str | None = None,
    tags: Sequence[str] = (),
    since: datetime | None = None,
    meta: Sequence[str] = (),
    search: str = "",
    asking: bool = False,
    limit: int,
    after: str | None = None,
) -> list[RunSummary]:
    """Return the runs that match all filters, newest first. `interrupted`, `manual`, the search text and open questions
    are filtered here, the rest in the store."""
    statuses = {each if each in STATUSES else "running" for each in status}
    wanted, wanted_meta = search.casefold(), parse_meta(meta)
    page_size = max(limit, _PAGE) if wanted or asking else limit
    found: list[RunSummary] = []
    while len(found) < limit:
        page = hf.runs(
            status=sorted(statuses) or (_ASKING if asking else None),
            workflow=workflow,
            tags=tags,
            since=since,
            meta=wanted_meta,
            limit=page_size,
            after=after,
        )
        found += [
            run
            for run in page
            if (not status or status_of(run) in status)
            and _mentions(run, wanted)
            and (not asking or _asks(hf, run))
        ]
        if len(page) < page_size:
            break
        after = page[-1].id
    return found[:limit]


def _asks(hf: Holdfast, run: RunSummary) -> bool:
    """Return whether a run has an open question. What a stalled run asks takes longer to read."""
    return run.status == "stalled" or bool(hf.inbox(run_id=run.id, kind="question", limit=1))


def versions_to_compare(hf: Holdfast, a: str, b: str | None) -> tuple[Version, Version]:
    """Return the two versions of a diff. The second defaults to the head; for the head, compare with its parent."""
    one = hf.version(a)
    if b is not None:
        return one, resolve_version(hf, b, one)
    head = hf.version(one.run)
    if head.number != one.number:
        return one, head
    if one.parent is None:
        raise NotFound(f"{reference_to(one)} has no parent: name two versions")
    return hf.version(f"{one.run}@{one.parent}"), one


def changes_below(found: Diff, path: str) -> list[Change]:
    """Return the changes at or below a path, also if a change of a parent includes it."""
    wanted = tuple(segments_of(path))
    changes: list[Change] = []
    for change in found.changes:
        if change.path[: len(wanted)] == wanted:
            changes.append(change)
        elif change.source is None and wanted[: len(change.path)] == change.path:
            changes += _part(change, wanted)
    if not changes and not (_has(found.a, path) or _has(found.b, path)):
        raise NotFound(
            f"there is no value at {path} in {reference_to(found.a)} or {reference_to(found.b)}", path=path
        )
    return changes


def ancestor_numbers(log: History, head: Version) -> set[int]:
    """Return the numbers of a version and its ancestors, merged versions included."""
    found: set[int] = set()
    starts = [head.number]
    while starts:
        for version in log.ancestors(starts.pop()):
            if version.number in found:
                break
            found.add(version.number)
            if merged := version.detail.get("merged"):
                starts.append(merged)
    return found


def iter_descendants(hf: Holdfast, run: str) -> Iterator[str]:
    """Yield the children of a run, and theirs."""
    for child in hf.get(run).children:
        yield child
        yield from iter_descendants(hf, child)


def iter_artifacts(hf: Holdfast) -> Iterator[StoredArtifact]:
    """Yield the artifacts of a store."""
    after: str | None = None
    while page := hf.artifacts(after=after, limit=_PAGE):
        yield from page
        after = page[-1].digest


def find_artifacts(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Artifact]]:
    """Yield the artifacts in a state, each with its path."""
    if isinstance(value, Artifact):
        yield at, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from find_artifacts(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from find_artifacts(item, (*at, index))


def _mentions(run: RunSummary, text: str) -> bool:
    """Return whether the id, workflow, step or tags of a run contain a text."""
    if not text:
        return True
    return any(text in part.casefold() for part in (run.id, run.workflow or "", run.step or "", *run.tags))


def _part(change: Change, path: tuple[Any, ...]) -> Iterator[Change]:
    """Yield the change at a path below a change."""
    rest = path[len(change.path) :]
    old, new = _at(change.old, rest), _at(change.new, rest)
    if old is _ABSENT and new is not _ABSENT:
        yield Change("added", path, None, new)
    elif new is _ABSENT and old is not _ABSENT:
        yield Change("removed", path, old, None)
    elif old is not new and dumps(as_json(old)) != dumps(as_json(new)):
        yield Change("changed", path, old, new)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for segment in path:
        try:
            value = value[segment]
        except (LookupError, TypeError):
            return _ABSENT
    return value


def _has(version: Version, path: str) -> bool:
    try:
        version.get(path)
    except NotFound:
        return False
    return True
