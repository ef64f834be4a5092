"""What is meant by a reference, a filter or a path, wherever an operator writes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any

from holdfast.desk.records import name_of, status_of
from holdfast.desk.words import as_json, dumps
from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidReference, NotFound
from holdfast.history.compare import Diff
from holdfast.history.history import History
from holdfast.history.version import Version, segments_of
from holdfast.model.names import split_reference
from holdfast.model.public import RunSummary, StoredArtifact
from holdfast.model.records import STATUSES
from holdfast.tree.artifact import Artifact
from holdfast.tree.diff import Change

_PAGE = 500
#: What runs that ask somebody are.
_ASKING = ("frozen", "paused", "running", "suspended")
_NOTHING = object()


def version_of(hf: Holdfast, ref: str, beside: Version | None = None) -> Version:
    """The version that a reference names. Beside another one, `@4`, `~1` and `:tag` are of its run."""
    if beside is not None and ref[:1] in ("@", "~", ":"):
        return hf.version(f"{beside.run}{ref}")
    if beside is not None and (ref.isdecimal() or ref == "head"):
        return hf.version(f"{beside.run}@{ref}")
    return hf.version(ref)


def run_of(hf: Holdfast, text: str, instead: str) -> str:
    """The id of the run that an id, or its beginning, names. For what names a version, it is told what to write
    instead."""
    try:
        return hf.find(text)
    except NotFound:
        try:
            named = name_of(hf.version(text))
        except HoldfastError:
            named = None
        if named is None:
            raise
        raise InvalidReference(f"{named} is a version, and this takes a run: {instead}", ref=text) from None


def within(hf: Holdfast, run_id: str, ref: str) -> Version:
    """A version of one run, by a reference with or without the run's name: `RUN@12`, `@12`, `12`, `~2`, a tag."""
    history = hf.history(run_id)
    if ref[:1] not in ("@", "~", ":") and (len(split_reference(ref)) > 1 or ref == run_id):
        return history.at(hf.version(ref))
    return history.at(ref)


def find_runs(
    hf: Holdfast,
    *,
    status: Collection[str] = (),
    workflow: str | None = None,
    tags: Sequence[str] = (),
    since: datetime | None = None,
    search: str = "",
    asking: bool = False,
    limit: int,
    after: str | None = None,
) -> list[RunSummary]:
    """The runs that are wanted, newest first. Which were interrupted or are kept by hand, which mention a text, and
    which ask somebody is known only when they are looked at."""
    statuses = {each if each in STATUSES else "running" for each in status}
    wanted = search.casefold()
    asked = {prompt.run for prompt in hf.prompts()} if asking else None
    page_size = max(limit, _PAGE) if wanted or asking else limit
    found: list[RunSummary] = []
    while len(found) < limit:
        page = hf.runs(
            status=sorted(statuses) or (_ASKING if asking else None),
            workflow=workflow,
            tags=tags,
            since=since,
            limit=page_size,
            after=after,
        )
        found += [
            run
            for run in page
            if (not status or status_of(run) in status)
            and _mentions(run, wanted)
            and (asked is None or run.id in asked)
        ]
        if len(page) < page_size:
            break
        after = page[-1].id
    return found[:limit]


def sides(hf: Holdfast, a: str, b: str | None) -> tuple[Version, Version]:
    """The two versions of a diff. Without the second, it is the head; if that is the first, what it follows and it."""
    one = hf.version(a)
    if b is not None:
        return one, version_of(hf, b, one)
    head = hf.version(one.run)
    if head.number != one.number:
        return one, head
    if one.parent is None:
        raise NotFound(f"{name_of(one)} has no version before it: name two versions")
    return hf.version(f"{one.run}@{one.parent}"), one


def below(found: Diff, path: str) -> list[Change]:
    """The changes of one part of the state, which may have come or gone with what is around it."""
    wanted = tuple(segments_of(path))
    changes: list[Change] = []
    for change in found.changes:
        if change.path[: len(wanted)] == wanted:
            changes.append(change)
        elif change.source is None and wanted[: len(change.path)] == change.path:
            changes += _part(change, wanted)
    if not changes and not (_has(found.a, path) or _has(found.b, path)):
        raise NotFound(
            f"there is nothing at {path} in {name_of(found.a)} nor in {name_of(found.b)}", path=path
        )
    return changes


def behind(log: History, head: Version) -> set[int]:
    """The versions that a version comes from, also by merges, and itself."""
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


def parts_of(hf: Holdfast, run: str) -> Iterator[str]:
    """The runs that are parts of a run, and theirs."""
    for part in hf.get(run).children:
        yield part
        yield from parts_of(hf, part)


def all_artifacts(hf: Holdfast) -> Iterator[StoredArtifact]:
    """The large values of a store."""
    after: str | None = None
    while page := hf.artifacts(after=after, limit=_PAGE):
        yield from page
        after = page[-1].digest


def artifacts_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Artifact]]:
    """The large values in a state, each with its path."""
    if isinstance(value, Artifact):
        yield at, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from artifacts_in(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from artifacts_in(item, (*at, index))


def _mentions(run: RunSummary, text: str) -> bool:
    """Does a text stand in what a list shows of a run?"""
    if not text:
        return True
    return any(text in part.casefold() for part in (run.id, run.workflow or "", run.step or "", *run.tags))


def _part(change: Change, path: tuple[Any, ...]) -> Iterator[Change]:
    """What a change means for a path below it."""
    rest = path[len(change.path) :]
    old, new = _at(change.old, rest), _at(change.new, rest)
    if old is _NOTHING and new is not _NOTHING:
        yield Change("added", path, None, new)
    elif new is _NOTHING and old is not _NOTHING:
        yield Change("removed", path, old, None)
    elif old is not new and dumps(as_json(old)) != dumps(as_json(new)):
        yield Change("changed", path, old, new)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for segment in path:
        try:
            value = value[segment]
        except (LookupError, TypeError):
            return _NOTHING
    return value


def _has(version: Version, path: str) -> bool:
    try:
        version.get(path)
    except NotFound:
        return False
    return True
