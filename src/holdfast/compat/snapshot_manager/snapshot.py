"""The snapshot record, and the fields of any object: read for a snapshot, and restored from it.

A snapshot is complete and immutable, and does not depend on the version that it was read from, which may be
pruned.

To find the object that holds the fields, a function is called, and `get_state()` of an object that has it.
The fields of a mapping are its entries; those of any other object its attributes that do not start with an
underscore.

Values that could be stored are restored as copies. Other values are represented in the snapshot by a text or
a dict: an error is restored as an error; an object gets its fields back if the store has an object of its
class at that place; for the rest, and for redacted secrets, the store keeps its current value.

Invariant: `read_document(document_of(snapshot))` equals the snapshot exactly; `validate_snapshot` never
raises. Reading fields runs no code of the object except the function or `get_state` itself, and the methods
of a mapping. Writing fields is atomic: if one is refused, those before it are reverted. A restore runs only
the setters and copy methods of the store; the store shares no object with the snapshot; nothing in the store
changes except its fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from copy import copy
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, InvalidReference, InvalidSnapshot
from holdfast.execution.exception_codec import describe, revive
from holdfast.history import snapshot as documents
from holdfast.history.snapshot import Validation
from holdfast.history.version import Version
from holdfast.model.names import MAX_ID, check_run_id, printable, short, suggest
from holdfast.tree import diff as trees
from holdfast.tree import path as paths
from holdfast.tree.codec import REDACTED, open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import FrozenDict, reveal, thaw
from holdfast.tree.sanitize import TYPE_KEY, public_fields, sanitize

#: Maximum depth of functions that return functions.
_MAX_DEPTH = 4

_MISSING: Any = object()

#: Prefix of the run that keeps the snapshots of a run, separate from a workflow's run of the same id.
PREFIX = "snapshots/"

RUN_ID, WORKFLOW_ID = "run_id", "workflow_id"
#: Value of `TYPE_KEY` in the dict for an error whose class is not registered. No class has this name.
_ERROR = "exception"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a run at one time. A field is also an attribute: `snapshot.status` is
    `snapshot.state["status"]`, unless the snapshot has its own attribute of that name."""

    run_id: str
    #: The workflow, if known.
    workflow_id: str | None
    #: Its number among the snapshots of its run: 1, 2, 3, … Numbers are not reused.
    number: int
    #: When it was taken, in UTC.
    timestamp: datetime
    #: Every field of the run, frozen.
    state: FrozenDict
    #: Paths of the values that could not be stored and are replaced by a text or a dict.
    replaced: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    note: str | None = None
    #: Whether it was taken by a timer.
    timed: bool = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            try:
                return self.state[name]
            except KeyError:
                pass
        hint = suggest(name, (field for field in self.state if isinstance(field, str)))
        raise AttributeError(f"the snapshot has no field {name!r}{hint}", name=name, obj=self)

    def __eq__(self, other: object) -> bool:
        names = [name for name in Snapshot.__struct_fields__ if name != "state"]
        return (
            type(other) is Snapshot
            and all(getattr(self, name) == getattr(other, name) for name in names)
            and same(*_frozen_pair(self, other))
        )

    def __hash__(self) -> int:
        return hash((self.run_id, self.number, self.timestamp))

    def __repr__(self) -> str:
        fields = ", ".join(map(str, self.state))
        return printable(
            f"<Snapshot {self.number} of {self.run_id!r}, {self.timestamp:%Y-%m-%d %H:%M:%S}: {fields:.200}>"
        )


def compare_snapshots(a: Snapshot, b: Snapshot, *, deep: bool = False) -> dict[str, dict[str, Any]]:
    """Return the changes from one snapshot to another: `{"status": {"from": "running", "to": "completed"}}`.

    Every field is compared, exactly: `1`, `1.0` and `True` are three values. A missing field is shown as
    None. With `deep`, changes are listed by path: `{"step_results.fetch.status": {…}}`. If the snapshots are
    of different runs or workflows, `run_id` and `workflow_id` are included.
    """
    for one in (a, b):
        if not isinstance(one, Snapshot):
            raise InvalidCall(f"compare_snapshots takes two snapshots, not {short(one)}")
    old, new = _frozen_pair(a, b)
    found: dict[str, dict[str, Any]] = {}
    for name in (RUN_ID, WORKFLOW_ID):
        one, two = getattr(a, name), getattr(b, name)
        if one != two:
            found[name] = {"from": one, "to": two}
    if deep:
        table = trees.fields(change for change in trees.changes(old, new) if change.path)
        return found | table
    for name in {**old, **new}:
        if name not in old or name not in new or not same(old[name], new[name]):
            found[name] = {"from": a.state.get(name), "to": b.state.get(name)}
    return found


def validate_snapshot(snapshot: Any) -> Validation:
    """Check whether a snapshot can be restored. Return a true value, or a false one with a list of
    `problems`. Accepts a snapshot, or the result of `export_snapshot`, as text or as a document. Never
    raises."""
    try:
        if isinstance(snapshot, Snapshot):
            return documents.validate(document_of(snapshot))
        found = documents.validate(snapshot)
        if not found:
            return found
        read_document(snapshot)
    except HoldfastError as error:
        return Validation((str(error),))
    except Exception as error:
        return Validation((f"cannot be read: {type(error).__name__}",))
    return found


def document_of(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as a document for `json.dumps`."""
    return documents.document_of(
        {
            "run": snapshot.run_id,
            "version": snapshot.number,
            "parent": None,
            "timeline": 1,
            "kind": "timed" if snapshot.timed else "manual",
            "status": "running",
            "step": None,
            "at": snapshot.timestamp.isoformat(),
            "tags": list(snapshot.tags),
            "note": snapshot.note,
            "actor": None,
            "meta": meta_of(snapshot.workflow_id, snapshot.replaced),
            "result": None,
            "error": None,
            "state": snapshot.state,
        }
    )


def read_document(document: Any, *, run_id: str | None = None) -> Snapshot:
    """Return the snapshot in a document, or raise `InvalidSnapshot`; with `run_id`, make it one of that run."""
    facts = documents.read(document)
    state = facts["state"]
    if not isinstance(state, dict):
        raise InvalidSnapshot(f"the state of a snapshot is its fields, not {type(state).__name__}")
    was = facts["run"].removeprefix(PREFIX)
    name = check_snapshot_run(was if run_id is None else run_id)
    if state.get(RUN_ID) == was:
        state[RUN_ID] = name
    return Snapshot(
        run_id=name,
        number=facts["version"],
        timestamp=datetime.fromisoformat(facts["at"]),
        state=reveal(Folder(None).fold(state), open_box),
        tags=tuple(facts["tags"]),
        note=facts["note"],
        timed=facts["kind"] == "timed",
        **_from_meta(facts["meta"]),
    )


def of_version(version: Version, meta: Any = None) -> Snapshot:
    """Return the snapshot in a version of a snapshot run; `meta` overrides the annotations of the version."""
    if not isinstance(version.state, FrozenDict):
        raise InvalidSnapshot(
            f"{version!r} is not a snapshot: it has no fields",
            run=version.run,
        )
    return Snapshot(
        run_id=version.run.removeprefix(PREFIX),
        number=version.number,
        timestamp=version.at,
        state=version.state,
        tags=version.tags,
        note=version.note,
        timed=version.kind == "timed",
        **_from_meta(version.annotations if meta is None else meta),
    )


def meta_of(workflow_id: str | None, replaced: Any) -> dict[str, Any]:
    """Return the metadata of a snapshot that is not in its fields."""
    return {WORKFLOW_ID: workflow_id, "replaced": list(replaced)}


def check_snapshot_run(run_id: Any) -> str:
    """Return the id of a run that can have snapshots, or raise `InvalidReference`."""
    if len(check_run_id(run_id)) > MAX_ID - len(PREFIX):
        raise InvalidReference(f"run id {short(run_id)} has more than {MAX_ID - len(PREFIX)} characters")
    return str(run_id)


def _from_meta(meta: Any) -> dict[str, Any]:
    """Return the fields of a snapshot that `meta_of` put into its metadata, as far as they are valid."""
    found = meta if isinstance(meta, dict) else {}
    workflow, replaced = found.get(WORKFLOW_ID), found.get("replaced")
    listed = replaced if isinstance(replaced, list) else ()
    return {
        WORKFLOW_ID: workflow if isinstance(workflow, str) else None,
        "replaced": tuple(path for path in listed if isinstance(path, str)),
    }


def _frozen_pair(a: Snapshot, b: Snapshot) -> tuple[Any, Any]:
    """Return two states, frozen so that equal parts are shared."""
    folder = Folder(None)
    one = folder.fold(a.state)
    return one, folder.fold(b.state, one)


class Target:
    """A store whose fields are to be written. The constructor refuses a store that cannot be written."""

    def __init__(self, store: Any) -> None:
        self._set_state: Callable[[Any], Any] | None = None
        method = None if _is_function(store) else _method(store, "set_state")
        if method is not None and _method(store, "get_state") is not None:
            self._set_state = method
        self._holder = holder_of(store)
        if self._set_state is None and holder_of(store) is not self._holder:
            raise InvalidCall(
                f"{_short(store)} returns another object each time, so that nothing would be restored: give the object"
            )
        #: The current fields.
        self.fields = dict(fields_of(self._holder))
        self.is_mapping = isinstance(self._holder, Mapping)
        if self.is_mapping and self._set_state is None and not isinstance(self._holder, MutableMapping):
            raise InvalidCall(f"{_short(self._holder)} cannot be changed: give a dict or an object")

    def write(self, fields: Mapping[Any, Any], remove: list[Any]) -> None:
        """Set some fields and remove others; all of it, or nothing and raise `InvalidSnapshot`."""
        if self._set_state is not None:
            kept = {name: value for name, value in self.fields.items() if name not in remove}
            try:
                self._set_state({**kept, **fields})
            except Exception as error:
                raise self._refused(error, None) from error
            return
        done: list[Any] = []
        try:
            for name in (*fields, *remove):
                done.append(name)
                self._put(name, fields.get(name, _MISSING))
        except Exception as error:
            for name in reversed(done):
                with suppress(Exception):
                    self._put(name, self.fields.get(name, _MISSING))
            raise self._refused(error, done[-1]) from error

    def _put(self, name: Any, value: Any) -> None:
        if self.is_mapping:
            if value is _MISSING:
                self._holder.pop(name, None)
            else:
                self._holder[name] = value
        elif value is not _MISSING:
            setattr(self._holder, name, value)
        elif name in fields_of(self._holder):
            delattr(self._holder, name)

    def _refused(self, error: Exception, name: Any) -> InvalidSnapshot:
        where = "" if name is None else f" at {name!r:.60}"
        return InvalidSnapshot(
            f"{type(self._holder).__name__} refused the snapshot{where}, and is unchanged: "
            f"{type(error).__name__}: {error!s:.300}",
            field=name,
        )


def holder_of(store: Any, depth: int = 0) -> Any:
    """Return the object that holds the fields of a store."""
    if isinstance(store, type):
        raise InvalidCall(f"{_short(store)} is a class: give an object of it")
    give = store if _is_function(store) else _method(store, "get_state")
    if give is None:
        has_none = callable(store) and not isinstance(store, Mapping) and not fields_of(store)
        give = store if has_none else None
    if give is None:
        return store
    if depth == _MAX_DEPTH:
        raise InvalidCall(
            f"{_short(store)} returns a function that returns a function …: give the object with the fields"
        )
    if inspect.iscoroutinefunction(give):
        raise InvalidCall(f"{_short(give)} has to be awaited: give a plain function")
    with suppress(ValueError):  # some built-in functions have no signature
        try:
            inspect.signature(give).bind()
        except TypeError as error:
            raise InvalidCall(f"{_short(give)} cannot be called without arguments: {error}") from None
    return holder_of(give(), depth + 1)


def fields_of(holder: Any) -> dict[Any, Any]:
    """Return the fields of an object, or raise `InvalidCall` if it has none. A dict is returned as it is."""
    if isinstance(holder, Mapping):
        return holder if type(holder) is dict else dict(holder)
    found = public_fields(holder, type(holder))
    if found is None or holder is None:
        raise InvalidCall(f"{_short(holder)} has no fields: give an object or a dict")
    return found


def _is_function(store: Any) -> bool:
    return inspect.isroutine(store) or isinstance(store, partial)


def _method(store: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of an object; None for a mapping, whose fields are always its entries."""
    if isinstance(store, Mapping):
        return None
    found = inspect.getattr_static(store, name, None)
    return getattr(store, name) if found is not None and callable(getattr(store, name, None)) else None


def _short(value: Any) -> str:
    """Return a description of a value that does not reveal its content."""
    name = getattr(value, "__qualname__", None) if isinstance(value, type) or _is_function(value) else None
    return name if isinstance(name, str) else f"an object of {type(value).__name__}"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a restore."""

    #: The fields that were set.
    fields: tuple[Any, ...]
    #: Fields that are not in the snapshot and were kept.
    kept: tuple[Any, ...] = ()
    #: Fields that are not in the snapshot and were removed.
    removed: tuple[Any, ...] = ()
    #: Paths of values that could not be stored and are missing in the store: a text or a dict replaces them.
    lost: tuple[str, ...] = ()


def storable_fields(holder: Any, fields: dict[Any, Any]) -> tuple[dict[Any, Any], list[str]]:
    """Return the fields of an object in storable form, and the paths of the values that had to be replaced."""

    def instead(value: Any) -> Any:
        """Describe an error whose class is not registered: its message and its traceback."""
        if value is holder:
            return "<cycle to the root>"
        return {TYPE_KEY: _ERROR, **describe(value)} if isinstance(value, BaseException) else NotImplemented

    made, replaced = sanitize(fields, instead=instead)
    return made, replaced


def restore(target: Target, snapshot: Snapshot, *, keep_unknown: bool | None) -> Restored:
    """Write the fields of a snapshot back; all of them, or none."""
    graft = _Graft(snapshot.replaced)
    made = {}
    for name, value in thaw(snapshot.state).items():
        live = target.fields.get(name, _MISSING)
        new = graft.value(value, live, (name,))
        if (name,) not in graft.live:
            made[name] = new
    unknown = [name for name in target.fields if name not in snapshot.state]
    keep = not target.is_mapping if keep_unknown is None else keep_unknown
    target.write(made, [] if keep else unknown)
    return Restored(
        fields=tuple(made),
        kept=tuple(unknown) if keep else (),
        removed=() if keep else tuple(unknown),
        lost=tuple(graft.lost),
    )


class _Graft:
    """Replacement of values that a snapshot could not hold by the store's current values."""

    def __init__(self, replaced: tuple[str, ...]) -> None:
        self._replaced = frozenset(replaced)
        self.lost: list[str] = []
        #: Paths where the store keeps its current value.
        self.live: set[tuple[Any, ...]] = set()

    def value(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return the value to restore for a value of the snapshot; `live` is the store's current one."""
        kind = type(value)
        shown = paths.show(path) if self._replaced else ""
        if (kind is str and value == REDACTED) or shown in self._replaced:
            return self._instead(value, live, path)
        if kind is dict:
            within = live if isinstance(live, Mapping) else {}
            return {
                key: self.value(item, within.get(key, _MISSING), (*path, key)) for key, item in value.items()
            }
        if kind is list or kind is tuple:
            current = live if type(live) is kind else ()
            items = [
                self.value(item, current[index] if index < len(current) else _MISSING, (*path, index))
                for index, item in enumerate(value)
            ]
            return items if kind is list else tuple(items)
        if any(each.startswith((f"{shown}.", f"{shown}[")) for each in self._replaced):
            # A new object of a registered class that contains a value that could not be stored.
            with suppress(Exception):
                self._fields(value, public_fields(value, kind) or {}, live, path)
        return value

    def _instead(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return the value to use for a text or a dict that represents something else."""
        if type(value) is dict and TYPE_KEY in value:
            fields = {name: item for name, item in value.items() if name != TYPE_KEY}
            if value[TYPE_KEY] == _ERROR:
                return revive(fields)
            kind = type(live)
            if live is not _MISSING and f"{kind.__module__}.{kind.__qualname__}" == value[TYPE_KEY]:
                with suppress(Exception):
                    made = copy(live)
                    if made is not live:
                        self._fields(made, fields, live, path)
                        return made
        if live is _MISSING:
            self.lost.append(paths.show(path))
            return value
        self.live.add(path)
        return live

    def _fields(self, made: Any, fields: dict[str, Any], live: Any, path: tuple[Any, ...]) -> None:
        """Set the fields of an object that is not referenced elsewhere yet."""
        current = {} if live is _MISSING else public_fields(live, type(live)) or {}
        for name, item in fields.items():
            new = self.value(item, current.get(name, _MISSING), (*path, name))
            object.__setattr__(made, name, new)
