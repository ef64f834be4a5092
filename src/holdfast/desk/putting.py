"""Putting a large value into the state of a run that is kept by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidReference, NotFound
from holdfast.history.version import Version, segments_of
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact


def place_for(hf: Holdfast, run: str, path: str) -> tuple[str, list[Any]]:
    """The run that is meant, which need not be there yet, and where in its state; or why nothing can be put there."""
    try:
        run = hf.find(run)
        if hf.get(run).workflow is not None:
            raise InvalidCall(
                f"run {run!r} is a workflow's: its steps write its state; fork it to change that", run=run
            )
    except NotFound:
        pass
    segments = segments_of(path)
    if not segments:
        raise InvalidReference("a path is needed: the whole state is no large value")
    return run, segments


def put(hf: Holdfast, run: str, segments: list[Any], content: Artifact, *, step: str) -> Version:
    """Put a value into the state of a run: a new version, or the run's first. Dicts on the way to it are made."""
    with hf.history(run).edit(step=step) as state:
        _put_at(state, segments, content)
    return hf.history(run).head


def _put_at(state: Any, segments: list[Any], content: Artifact) -> None:
    place = state
    try:
        for segment, after in pairwise(segments):
            if isinstance(place, dict) and segment not in place and isinstance(after, str):
                place[segment] = {}
            place = place[segment]
        if not isinstance(place, dict) and segments[-1] == len(place):
            place.append(content)
        else:
            place[segments[-1]] = content
    except (LookupError, TypeError, AttributeError):
        where = paths.show(segments)
        raise NotFound(
            f"the state has no place for {where}: `holdfast show RUN` shows it", path=where
        ) from None
