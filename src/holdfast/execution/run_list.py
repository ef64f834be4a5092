"""Find and list the runs of a store.

Invariant: a page reads no more runs than it needs, unless a filter can only be decided by looking at each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from holdfast.errors import InvalidCall, InvalidReference
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_alive
from holdfast.execution.run import summary_of
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_ID, MAX_STEP, check_run_id, check_tags, short
from holdfast.model.public import RunSummary
from holdfast.model.records import STATUS_FILTERS, STATUSES, RunRecord, display_status
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import RunFilters

#: Tags by which runs are listed, at most.
_TAGS = 50
_PAGE = 500


def find(engine: EngineContext, text: str) -> str | None:
    """Return the id of the run that an id, or a unique prefix of one, names; None if there is none."""
    if not text:
        return None
    if engine.store.run(text) is not None:
        return text
    found = engine.store.run_ids(text, 6)
    if len(found) > 1:
        raise InvalidReference(
            f"{text!r} could be any of {', '.join(found[:5])}: write more of it", runs=found
        )
    return found[0] if found else None


def get(engine: EngineContext, text: str) -> str:
    """Return the id of the run that an id, or a unique prefix of one, names; raise `NotFound`."""
    found = find(engine, text) if isinstance(text, str) else check_run_id(text)
    if found is None:
        raise engine.no_run(text)
    return found


class RunQuery:
    """Checked filters for a list of runs."""

    def __init__(
        self,
        status: str | Sequence[str] | None,
        tags: Sequence[str],
        workflow: str | None,
        since: datetime | None,
        prefix: str,
    ) -> None:
        wanted = [status] if isinstance(status, str) else status
        if not isinstance(wanted, Sequence | None) or not all(
            name in STATUS_FILTERS for name in wanted or ()
        ):
            raise InvalidCall(f"status is one of {', '.join(STATUS_FILTERS)}, not {short(status)}")
        names = list(dict.fromkeys(check_tags(tags)))
        if len(names) > _TAGS:
            raise InvalidCall(f"runs are listed by at most {_TAGS} tags, not {len(names)}: name fewer")
        #: The statuses that the store cannot filter by; None if it can filter by all.
        self._wanted = None if wanted is None or set(wanted) <= set(STATUSES) else set(wanted)
        statuses = None if wanted is None else [each if each in STATUSES else "running" for each in wanted]
        self._filters = RunFilters(
            statuses=None if statuses is None else list(dict.fromkeys(statuses)),
            workflow=check_text("workflow", workflow, MAX_STEP),
            tags=names,
            since=None if since is None else _microseconds("since", since),
            prefix=check_text("prefix", prefix, MAX_ID) or "",
        )

    def page(self, engine: EngineContext, before: int | None, limit: int) -> list[RunSummary]:
        """Return at most `limit` runs, newest first, with keys below `before`."""
        page = limit if self._wanted is None else max(limit, _PAGE)
        return list(islice(self.iterate(engine, before, page), limit))

    def iterate(
        self, engine: EngineContext, before: int | None = None, page: int = _PAGE
    ) -> Iterator[RunSummary]:
        """Return an iterator over all runs, newest first."""
        return _RunIterator(self._read(engine, before, page))

    def _read(self, engine: EngineContext, before: int | None, page: int) -> Iterator[RunSummary]:
        while found := engine.store.runs(before=before, limit=page, **self._filters):
            for run in found:
                if self._wanted is None or self._matches(run, engine.context.clock()):
                    yield summary_of(engine.context, run)
            if len(found) < page:
                return
            before = found[-1].key

    def _matches(self, run: RunRecord, now: int) -> bool:
        assert self._wanted is not None
        return (
            run.status in self._wanted
            or display_status(run.status, run.workflow, is_alive(run, now)) in self._wanted
        )


class _RunIterator(ProcessBound):
    """An iterator over runs that says why it cannot be pickled."""

    def __init__(self, runs: Iterator[RunSummary]) -> None:
        self._runs = runs

    def __iter__(self) -> Iterator[RunSummary]:
        return self

    def __next__(self) -> RunSummary:
        return next(self._runs)


def _microseconds(name: str, at: Any) -> int:
    """Return a datetime in the unit of the stores; raise `InvalidCall`."""
    if not isinstance(at, datetime):
        raise InvalidCall(f"{name} is a datetime, not {short(at)}")
    try:
        return int(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise InvalidCall(f"{name} is a time that no clock can show: {short(at)}") from None
