"""What differs: two versions, two lines of versions, and what a move would do."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import Meta

from holdfast.desk.lookup import below, sides, version_of, within
from holdfast.desk.plan import told
from holdfast.desk.records import change_record, changes_of, name_of, pair_record, preview_record
from holdfast.desk.shapes import ChangeShown, PairShown, PreviewShown
from holdfast.tree import path as paths
from holdfast.tree.diff import Change
from holdfast.web.cutting import Cut, node_of
from holdfast.web.fields import Limit, Name, Path, Query, Ref
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service

TABLE = Table("compare")


class DiffQuery(Query):
    """Two versions. Without `b`, it is the head of `a`'s run; `b` may leave out the run, as in `@4`."""

    a: Ref
    b: Ref | None = None
    path: Path = ""
    cut: Annotated[bool, Meta(description="`old` and `new` cut into nodes, as a state with `depth`.")] = False
    limit: Limit = 1000


class Diff(TypedDict):
    """The changes from one version to another; `count` is how many there are."""

    a: str
    b: str
    changes: list[ChangeShown]
    count: int


class PairQuery(Query):
    """Two versions; `b` may leave out the run."""

    a: Ref
    b: Ref


class CompareQuery(Query):
    """Two versions; `b` may leave out the run."""

    a: Ref
    b: Ref
    cut: bool = False
    limit: Limit = 1000


class Comparison(Diff):
    """Two lines of versions, step by step from where they parted, and how their states differ. `step_count` is how many
    steps there are."""

    steps: list[PairShown]
    step_count: int


class PreviewQuery(Query):
    """Where a run would go on: `to` a version (a rollback), or `from` a step; else from its head."""

    to: Name | None = None
    from_: Name | None = msgspec.field(default=None, name="from")
    resume: Annotated[bool, Meta(description="Would it go on at once?")] = True


class PreviewTold(PreviewShown):
    """The same in sentences, too."""

    told: list[str]


@TABLE.add("GET", "/diff", Role.VIEWER)
def get_diff(service: Service, query: DiffQuery) -> Diff:
    """What changed from one version to another, of one run or of two."""
    one, other = sides(service.hf, query.a, query.b)
    found = service.hf.diff(one, other)
    changes = [(change, "state") for change in below(found, query.path)] if query.path else changes_of(found)
    return {
        "a": name_of(one),
        "b": name_of(other),
        "changes": [_change(*each, query.cut) for each in changes[: query.limit]],
        "count": len(changes),
    }


@TABLE.add("GET", "/diff/patch", Role.VIEWER)
def get_patch(service: Service, query: PairQuery) -> list[dict[str, Any]]:
    """The same as a JSON patch (RFC 6902) from the first state to the second."""
    one = service.hf.version(query.a)
    return service.hf.diff(one, version_of(service.hf, query.b, one)).json_patch()


@TABLE.add("GET", "/compare", Role.VIEWER)
def get_comparison(service: Service, query: CompareQuery) -> Comparison:
    """Two runs or timelines, step by step, and how their states differ."""
    one = service.hf.version(query.a)
    found = service.hf.compare(one, version_of(service.hf, query.b, one))
    changes = changes_of(found.diff)
    return {
        "a": name_of(found.left),
        "b": name_of(found.right),
        "steps": [pair_record(pair) for pair in found.steps[: query.limit]],
        "step_count": len(found.steps),
        "changes": [_change(*each, query.cut) for each in changes[: query.limit]],
        "count": len(changes),
    }


@TABLE.add("GET", "/runs/{run}/preview", Role.VIEWER)
def get_preview(service: Service, run: str, query: PreviewQuery) -> PreviewTold:
    """What resuming a run would do, or rolling it back: which steps would be passed, run again, undone."""
    hf = service.hf
    run = hf.find(run)
    to = None if query.to is None else within(hf, run, query.to)
    found = hf.preview(run, to, from_address=query.from_)
    return {**preview_record(found), "told": told(found, resume=query.resume, back=to is not None)}


def _change(change: Change, of: str, cut: bool) -> ChangeShown:
    if not cut:
        return change_record(change, of)
    limits = Cut(depth=2, limit=20)
    return {
        "kind": change.kind,
        "of": of,
        "path": change.where,
        "source": None if change.source is None else paths.show(change.source),
        "old": None if change.kind == "added" else node_of(change.old, limits, change.path),
        "new": None if change.kind == "removed" else node_of(change.new, limits, change.path),
        "summary": change.summary,
    }
