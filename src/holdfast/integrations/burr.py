"""Persisters for Burr: an application is a run, each of its actions a version.

Invariant: sequence ids increase along a timeline. A writer that continues from an earlier one starts a new
timeline; one that only loads an earlier state, or forks from it, stays on its own.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter
from typing import Any, Self
from urllib.parse import unquote

from holdfast import Holdfast, InvalidCall, NotFound, StaleVersion, Version
from holdfast.integrations import missing_extra
from holdfast.integrations.histories import EntryLog, KnownVersions, build_run_id, plain_state
from holdfast.model.checks import check_integer
from holdfast.off_loop import run_off_loop

try:
    from burr.core.persistence import AsyncBaseStatePersister, BaseStatePersister, PersistedStateData
    from burr.core.state import FIELD_SERIALIZATION, State
except ModuleNotFoundError as error:
    raise missing_extra(__name__, "Burr", error.name) from error


#: For an application that exists and was not loaded.
_ADVICE = "continue it with initialize_from(persister, …), or choose another app_id"


class HoldfastPersister(BaseStatePersister):
    """Persister for `with_state_persister` and `initialize_from` of an application.

    An application is the run `burr/APP_ID`, or `burr/PARTITION_KEY/APP_ID`. `allow` lists your own classes
    that its state may hold.
    """

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._log = EntryLog(hf, allow)
        #: The application's own classes.
        self.allowed = self._log.allowed
        self._forget_versions()

    def is_initialized(self) -> bool:
        """Return True: an open store needs no initialization."""
        return True

    def copy(self) -> Self:
        """Return a persister of the same class for another writer on the same store. Burr calls it for each
        application of a parallel action, so that an attempt that still runs and its retry get separate
        timelines. Attributes of a subclass are shared with the copy."""
        made = copy.copy(self)
        made._forget_versions()  # noqa: SLF001 - its own class
        return made

    def save(
        self,
        partition_key: str | None,
        app_id: str,
        sequence_id: int,
        position: str,
        state: State[Any],
        status: str,
        **kwargs: Any,
    ) -> None:
        """Save the state after an action as a version. Raise `StaleVersion` if this persister is past the
        sequence id, or if the version that it saved or loaded last was removed; raise `AlreadyExists` for the
        first sequence id of an application that is stored and was not loaded.

        Burr saves the status `completed` or `failed`. An application may save any text: the run counts as
        failed after `failed`, and as running after all others.
        """
        check_integer("sequence_id", sequence_id, 0)
        if not isinstance(state, State) or not isinstance(position, str) or not isinstance(status, str):
            raise InvalidCall("save takes the name of an action, a State, and a status, such as 'completed'")
        # Members of an enum and other subclasses are saved as the text that they equal.
        position, status = str.__str__(position), str.__str__(status)
        custom = {key for key in state if key in FIELD_SERIALIZATION}
        values = {
            key: FIELD_SERIALIZATION[key][0](state[key]) if key in custom else state[key] for key in state
        }
        entry = {"sequence_id": sequence_id, "position": position, "status": status}
        entry |= {"state": values, "fields": sorted(custom)}
        run_id = _run_id(partition_key, app_id)
        after = self._version_before(run_id, sequence_id)
        run_status = "failed" if status == "failed" else "running"
        made = self._log.append(run_id, entry, after=after, step=position, status=run_status, advice=_ADVICE)
        self._saved.remember(run_id, made)

    def load(
        self, partition_key: str | None, app_id: str | None, sequence_id: int | None = None, **kwargs: Any
    ) -> PersistedStateData | None:
        """Return the last saved state, or that of a sequence id; without `app_id`, of the application that
        saved last. An application that this persister saves stays on its timeline, also if an earlier state of it
        is loaded."""
        if app_id is None and not (app_id := next(iter(self.list_app_ids(partition_key)), None)):
            return None
        run_id = _run_id(partition_key, app_id)
        if sequence_id is not None:
            check_integer("sequence_id", sequence_id, 0)
        if (version := self._find_around(run_id, sequence_id)[1]) is None:
            return None
        entry = plain_state(version)
        key = run_id, self._saved.hash_of(run_id), _sequence_id_of(version)
        self._loaded.remember(key, version)
        return {
            "partition_key": partition_key or "",
            "app_id": app_id,
            "sequence_id": _sequence_id_of(version),
            "position": entry["position"],
            "state": State({key: _deserialize(key, value, entry) for key, value in entry["state"].items()}),
            "created_at": version.at.isoformat(),
            "status": entry["status"],
        }

    def list_app_ids(self, partition_key: str | None, **kwargs: Any) -> list[str]:
        """Return the applications of a partition, most recently saved first."""
        prefix = _run_id(partition_key, "x")[:-1]
        found = self._log.recent_runs(prefix)
        return [unquote(name) for run in found if "/" not in (name := run.id.removeprefix(prefix))]

    def _forget_versions(self) -> None:
        """Become a writer that has saved and loaded nothing."""
        #: The version that was saved last, by run.
        self._saved: KnownVersions[str] = KnownVersions(self._log.hf)
        #: Loaded versions, by run, the hash of the version of it that was saved last before, and sequence id.
        self._loaded: KnownVersions[tuple[str, str | None, int]] = KnownVersions(self._log.hf)

    def _version_before(self, run_id: str, sequence_id: int) -> Version | None:
        """Return the version that the state of a sequence id follows; None if it is the first.

        It is the one with the highest sequence id before it among the version that was saved last and those that
        were loaded since then. The version that was loaded last may be one that was only looked at.
        """
        saved = self._saved.find(run_id)
        last = -1 if saved is None else _sequence_id_of(saved)
        was_removed = saved is None and self._saved.hash_of(run_id) is not None
        # After the removal of the saved version, an older one is not known to be from the same application.
        lowest = sequence_id - 1 if was_removed else last if last < sequence_id else 0
        loaded = self._loaded_between(run_id, lowest, sequence_id)
        if loaded is None and last >= sequence_id:
            raise StaleVersion(f"run {run_id!r} is past sequence id {sequence_id}: load it again", run=run_id)
        before = saved if loaded is None else self._loaded.find(loaded)
        if before is not None:
            return before
        newest = self._find_around(run_id, sequence_id)[0]
        if newest is not None and (was_removed or loaded is not None):
            raise StaleVersion(
                f"the version of run {run_id!r} that this persister saved or loaded last was pruned, or the run "
                "was deleted and created again: load it again",
                run=run_id,
            )
        return newest

    def _loaded_between(
        self, run_id: str, lowest: int, sequence_id: int
    ) -> tuple[str, str | None, int] | None:
        """Return the key of the version with the highest sequence id from `lowest` on, and before `sequence_id`, that
        was loaded since the last save."""
        saved = self._saved.hash_of(run_id)
        directly_before = run_id, saved, sequence_id - 1
        if self._loaded.hash_of(directly_before) is not None:
            return directly_before
        if lowest >= sequence_id - 1:
            return None
        # An action before this one was not saved.
        found = [key for key in self._loaded.list_keys() if key[:2] == (run_id, saved)]
        return max((key for key in found if lowest <= key[2] < sequence_id), key=itemgetter(2), default=None)

    def _find_around(self, run_id: str, sequence_id: int | None) -> tuple[Version | None, Version | None]:
        """Return the newest version before a sequence id on the head's timeline, and the version of that id;
        the head for None."""
        history = self._log.hf.history(run_id)
        try:
            head = history.head
        except NotFound:
            return None, None
        if sequence_id is None:
            return None, head
        if (back := _sequence_id_of(head) - sequence_id) < 0:
            return head, None
        # Sequence ids decrease with each version back, so the searched version is within this distance.
        line = list(islice(history.ancestors(), back + 2))[::-1]
        at = bisect_left(line, sequence_id, key=_sequence_id_of)
        return line[at - 1] if at else None, line[at] if _sequence_id_of(line[at]) == sequence_id else None


class AsyncHoldfastPersister(AsyncBaseStatePersister):
    """Async persister for an application that is built by `abuild`. The event loop never waits for the
    store."""

    def __init__(self, hf: Holdfast, *, allow: Iterable[type] = ()) -> None:
        self._persister = HoldfastPersister(hf, allow=allow)

    async def is_initialized(self) -> bool:
        return True

    def copy(self) -> Self:
        made = copy.copy(self)
        made._persister = self._persister.copy()  # noqa: SLF001 - its own class
        return made

    async def save(self, *args: Any, **kwargs: Any) -> None:
        await run_off_loop(self._persister.save, *args, **kwargs)

    async def load(self, *args: Any, **kwargs: Any) -> PersistedStateData | None:
        return await run_off_loop(self._persister.load, *args, **kwargs)

    async def list_app_ids(self, partition_key: str | None, **kwargs: Any) -> list[str]:
        return await run_off_loop(self._persister.list_app_ids, partition_key, **kwargs)


def _run_id(partition_key: str | None, app_id: str) -> str:
    return build_run_id("burr", *([] if partition_key in (None, "") else [partition_key]), app_id)


def _sequence_id_of(version: Version) -> int:
    try:
        return check_integer("sequence_id", version.get("sequence_id"), 0)
    except InvalidCall:
        raise InvalidCall(
            f"run {version.run!r} is not an application of Burr: choose another app_id"
        ) from None


def _deserialize(key: str, value: Any, entry: dict[str, Any]) -> Any:
    """Return a value of the state, deserialized by its `register_field_serde` function if its field has one."""
    if key in entry["fields"] and key not in FIELD_SERIALIZATION:
        raise InvalidCall(f"{key!r} was serialized by a function of its own: call register_field_serde first")
    return FIELD_SERIALIZATION[key][1](value) if key in entry["fields"] else value
