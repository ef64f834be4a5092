"""Persisters for Burr: an application is a run, each of its actions a version.

Invariant: sequence ids increase along a timeline. A writer that continues from an earlier one starts a new
timeline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Any, Literal
from urllib.parse import unquote

from holdfast import Holdfast, InvalidCall, StaleVersion, Version
from holdfast.integrations import missing_extra
from holdfast.integrations.histories import Ledger, number_of_head, off_loop, plain, run_id_of
from holdfast.model.checks import check_integer

try:
    from burr.core.persistence import AsyncBaseStatePersister, BaseStatePersister, PersistedStateData
    from burr.core.state import FIELD_SERIALIZATION, State
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "Burr", error.name) from error

_STATUSES = {"completed": "running", "failed": "failed"}  # status of an action: status of its run


class HoldfastPersister(BaseStatePersister):
    """Persister for `with_state_persister` and `initialize_from` of an application.

    An application is the run `burr/APP_ID`, or `burr/PARTITION_KEY/APP_ID`. `allow` lists your own classes
    that its state may hold.
    """

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._ledger = Ledger(hf, allow)

    def is_initialized(self) -> bool:
        """Return True: an open store needs no initialization."""
        return True

    def save(
        self,
        partition_key: str | None,
        app_id: str,
        sequence_id: int,
        position: str,
        state: State[Any],
        status: Literal["completed", "failed"],
        **kwargs: Any,
    ) -> None:
        """Save the state after an action as a version. Raise `StaleVersion` if this persister is past the
        sequence id."""
        check_integer("sequence_id", sequence_id, 0)
        if status not in _STATUSES or not isinstance(state, State) or not isinstance(position, str):
            raise InvalidCall("save takes the name of an action, a State, and 'completed' or 'failed'")
        own = {key for key in state if key in FIELD_SERIALIZATION}
        values = {key: FIELD_SERIALIZATION[key][0](state[key]) if key in own else state[key] for key in state}
        entry = {"sequence_id": sequence_id, "position": position, "status": status}
        entry |= {"state": values, "fields": sorted(own)}
        run_id = _run_id(partition_key, app_id)
        after = self._newest_before(run_id, sequence_id)
        made = self._ledger.enter(run_id, entry, after=after, step=position, status=_STATUSES[status])
        self._ledger.remember(run_id, made)

    def load(
        self, partition_key: str | None, app_id: str | None, sequence_id: int | None = None, **kwargs: Any
    ) -> PersistedStateData | None:
        """Return the last saved state, or that of a sequence id; without `app_id`, of the application that
        saved last."""
        if app_id is None and not (app_id := next(iter(self.list_app_ids(partition_key)), None)):
            return None
        run_id = _run_id(partition_key, app_id)
        if sequence_id is not None:
            check_integer("sequence_id", sequence_id, 0)
        if (version := self._around(run_id, sequence_id)[1]) is None:
            return None
        entry = plain(version)
        self._ledger.remember(run_id, version)
        return {
            "partition_key": partition_key or "",
            "app_id": app_id,
            "sequence_id": _sequence(version),
            "position": entry["position"],
            "state": State({key: _field(key, value, entry) for key, value in entry["state"].items()}),
            "created_at": version.at.isoformat(),
            "status": entry["status"],
        }

    def list_app_ids(self, partition_key: str | None, **kwargs: Any) -> list[str]:
        """Return the applications of a partition, most recently saved first."""
        prefix = _run_id(partition_key, "x")[:-1]
        found = sorted(self._ledger.runs(prefix), key=lambda run: run.updated, reverse=True)
        return [unquote(name) for run in found if "/" not in (name := run.id.removeprefix(prefix))]

    def _newest_before(self, run_id: str, sequence_id: int) -> int:
        """Return the number of the version that the state of a sequence id follows; 0 if it is the first."""
        known = self._ledger.known(run_id)
        if known is None:
            known = self._around(run_id, sequence_id)[0]
        elif _sequence(known) >= sequence_id:
            raise StaleVersion(f"run {run_id!r} is past sequence id {sequence_id}: load it anew", run=run_id)
        return 0 if known is None else known.number

    def _around(self, run_id: str, sequence_id: int | None) -> tuple[Version | None, Version | None]:
        """Return the newest version before a sequence id on the head's timeline, and the version of that id;
        the head for None."""
        if not number_of_head(log := self._ledger.hf.history(run_id)):
            return None, None
        if sequence_id is None:
            return None, log.head
        if (back := _sequence(head := log.head) - sequence_id) < 0:
            return head, None
        # Sequence ids decrease with each version back, so the searched version is within this distance.
        line = list(islice(log.ancestors(), back + 2))[::-1]
        at = bisect_left(line, sequence_id, key=_sequence)
        return line[at - 1] if at else None, line[at] if _sequence(line[at]) == sequence_id else None


class AsyncHoldfastPersister(AsyncBaseStatePersister):
    """Async persister for an application that is built by `abuild`. The event loop never waits for the
    store."""

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._persister = HoldfastPersister(hf, allow=allow)

    async def is_initialized(self) -> bool:
        return True

    async def save(self, *args: Any, **kwargs: Any) -> None:
        await off_loop(self._persister.save, *args, **kwargs)

    async def load(self, *args: Any, **kwargs: Any) -> PersistedStateData | None:
        return await off_loop(self._persister.load, *args, **kwargs)

    async def list_app_ids(self, partition_key: str | None, **kwargs: Any) -> list[str]:
        return await off_loop(self._persister.list_app_ids, partition_key, **kwargs)


def _run_id(partition_key: str | None, app_id: str) -> str:
    return run_id_of("burr", *([] if partition_key in (None, "") else [partition_key]), app_id)


def _sequence(version: Version) -> int:
    try:
        return check_integer("sequence_id", version.get("sequence_id"), 0)
    except InvalidCall:
        raise InvalidCall(f"run {version.run!r} is no application of Burr: choose another app_id") from None


def _field(key: str, value: Any, entry: dict[str, Any]) -> Any:
    """Return a value of the state, deserialized by its `register_field_serde` function if its field has one."""
    if key in entry["fields"] and key not in FIELD_SERIALIZATION:
        raise InvalidCall(f"{key!r} was written by a function of its own: call register_field_serde first")
    return FIELD_SERIALIZATION[key][1](value) if key in entry["fields"] else value
