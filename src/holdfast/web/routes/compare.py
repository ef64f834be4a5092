"""Differences of versions, comparisons of runs and timelines, previews of actions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.operator_view.actions import describe_preview
from holdfast.operator_view.lookup import changes_below, resolve_version, version_in_run, versions_to_compare
from holdfast.operator_view.records import (
    BetweenView,
    ChangeView,
    PreviewView,
    StepPairView,
    between_view,
    change_view,
    changes_of,
    preview_view,
    reference_to,
    step_pair_view,
)
from holdfast.operator_view.truncate import TruncationLimits, value_node
from holdfast.tree.diff import Change
from holdfast.web.operation import Cursor, Limit, Name, OperationTable, Path, Query, Ref, Role
from holdfast.web.service import Service

TABLE = OperationTable("compare")
#: Events of one response.
_EVENTS = 100


class DiffQuery(Query):
    """Two versions. By default, `b` is the head of `a`'s run; `b` may omit the run, as in `@4`."""

    a: Ref
    b: Ref | None = None
    path: Path = ""
    cut: Annotated[bool, Meta(description="`old` and `new` truncated to nodes, as a state with `depth`.")] = (
        False
    )
    limit: Limit = 1000
    events_after: Cursor = 0


class DiffView(BetweenView):
    """Changes from one version to another; `count` is their total number."""

    a: str
    b: str
    changes: list[ChangeView]
    count: int


class PairQuery(Query):
    """Two versions; `b` may omit the run."""

    a: Ref
    b: Ref


class CompareQuery(Query):
    """Two versions; `b` may omit the run."""

    a: Ref
    b: Ref
    cut: bool = False
    limit: Limit = 1000
    events_after: Cursor = 0


class ComparisonView(DiffView):
    """Two lines of versions, step by step from their common ancestor, and the differences of their states. `step_count`
    is the total number of steps."""

    steps: list[StepPairView]
    step_count: int


class PreviewQuery(Query):
    """Action to preview: rollback `to` a version, or resume `from` a step; by default, resume from the head."""

    to: Name | None = None
    from_: Name | None = msgspec.field(default=None, name="from")
    resume: Annotated[bool, Meta(description="Whether the run would be resumed at once.")] = True


class DescribedPreview(PreviewView):
    """Preview with a description in sentences."""

    description: list[str]


@TABLE.add("GET", "/diff", Role.VIEWER)
def get_diff(service: Service, query: DiffQuery) -> DiffView:
    """Return the changes from one version to another, of one run or of two."""
    one, other = versions_to_compare(service.hf, query.a, query.b)
    found = service.hf.diff(one, other)
    changes = (
        [(change, "state") for change in changes_below(found, query.path)]
        if query.path
        else changes_of(found)
    )
    return {
        "a": reference_to(one),
        "b": reference_to(other),
        "changes": [_change(*each, query.cut) for each in changes[: query.limit]],
        "count": len(changes),
        **between_view(found, after=query.events_after, limit=min(query.limit, _EVENTS)),
    }


@TABLE.add("GET", "/diff/patch", Role.VIEWER)
def get_patch(service: Service, query: PairQuery) -> list[dict[str, Any]]:
    """Return a JSON patch (RFC 6902) from the first state to the second."""
    one = service.hf.version(query.a)
    return service.hf.diff(one, resolve_version(service.hf, query.b, one)).json_patch()


@TABLE.add("GET", "/compare", Role.VIEWER)
def get_comparison(service: Service, query: CompareQuery) -> ComparisonView:
    """Compare two runs or timelines, step by step, and their states."""
    one = service.hf.version(query.a)
    found = service.hf.compare(one, resolve_version(service.hf, query.b, one))
    changes = changes_of(found.diff)
    return {
        "a": reference_to(found.left),
        "b": reference_to(found.right),
        "steps": [step_pair_view(pair) for pair in found.steps[: query.limit]],
        "step_count": len(found.steps),
        "changes": [_change(*each, query.cut) for each in changes[: query.limit]],
        "count": len(changes),
        **between_view(found.diff, after=query.events_after, limit=min(query.limit, _EVENTS)),
    }


@TABLE.add("GET", "/runs/{run}/preview", Role.VIEWER)
def get_preview(service: Service, run: str, query: PreviewQuery) -> DescribedPreview:
    """Preview a resume or a rollback: which steps would be replayed, run again, undone."""
    hf = service.hf
    run = hf.get(run, prefix=True).id
    to = None if query.to is None else version_in_run(hf, run, query.to)
    found = hf.preview(run, to, from_address=query.from_)
    return {
        **preview_view(found),
        "description": describe_preview(found, resume=query.resume, back=to is not None),
    }


def _change(change: Change, of: str, cut: bool) -> ChangeView:
    if not cut:
        return change_view(change, of)
    limits = TruncationLimits(levels=2, entries=20, text=1000)
    return change_view(change, of, lambda value: value_node(value, limits, change.path))
