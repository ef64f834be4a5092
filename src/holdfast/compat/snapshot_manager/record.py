"""The snapshot record, and access to the fields of any object.

A snapshot is complete and immutable, and does not depend on the version that it was read from, which may be
pruned.

To find the object that holds the fields, a function is called, and `get_state()` of an object that has it.
The fields of a mapping are its entries; those of any other object its attributes that do not start with an
underscore.

Invariant: `read_document(document_of(snapshot))` equals the snapshot exactly; `validate_snapshot` never
raises. Reading fields runs no code of the object except the function or `get_state` itself, and the methods
of a mapping. Writing fields is atomic: if one is refused, those before it are reverted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, InvalidReference, InvalidSnapshot
from holdfast.history import snapshot as documents
from holdfast.history.snapshot import Validation
from holdfast.history.version import Version
from holdfast.model.names import MAX_ID, check_run_id, printable, short, suggest
from holdfast.tree import diff as trees
from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import FrozenDict, reveal
from holdfast.tree.sanitize import public_fields

#: Maximum depth of functions that return functions.
_DEEPEST = 4

MISSING: Any = object()


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
                f"{_short(store)} gives another object each time, so that nothing would be restored: give the object"
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
            self._call(self._set_state, {**kept, **fields})
            return
        done: list[Any] = []
        try:
            for name in (*fields, *remove):
                done.append(name)
                self._put(name, fields.get(name, MISSING))
        except Exception as error:
            for name in reversed(done):
                with suppress(Exception):
                    self._put(name, self.fields.get(name, MISSING))
            raise self._refused(error, done[-1]) from error

    def _call(self, method: Callable[[Any], Any], fields: dict[Any, Any]) -> None:
        try:
            method(fields)
        except Exception as error:
            raise self._refused(error, None) from error

    def _put(self, name: Any, value: Any) -> None:
        if self.is_mapping:
            if value is MISSING:
                self._holder.pop(name, None)
            else:
                self._holder[name] = value
        elif value is not MISSING:
            setattr(self._holder, name, value)
        elif name in fields_of(self._holder):
            delattr(self._holder, name)

    def _refused(self, error: Exception, name: Any) -> InvalidSnapshot:
        where = "" if name is None else f" at {name!r:.60}"
        return InvalidSnapshot(
            f"{type(self._holder).__name__} does not take the snapshot{where}, and is as it was: "
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
    if depth == _DEEPEST:
        raise InvalidCall(
            f"{_short(store)} gives a function that gives a function …: give what holds the fields"
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
        raise InvalidCall(f"a store has fields, which {_short(holder)} has not: give an object or a dict")
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


#: Prefix of the run that keeps the snapshots of a run, separate from a workflow's run of the same id.
PREFIX = "snapshots/"

RUN_ID, WORKFLOW_ID = "run_id", "workflow_id"


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
        return type(other) is Snapshot and _facts(self) == _facts(other) and _same(self, other)

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
        return Validation((f"cannot be looked at: {type(error).__name__}",))
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
    workflow, replaced = _from_meta(facts["meta"])
    return Snapshot(
        run_id=name,
        workflow_id=workflow,
        number=facts["version"],
        timestamp=datetime.fromisoformat(facts["at"]),
        state=reveal(Folder(None).fold(state), open_box),
        replaced=replaced,
        tags=tuple(facts["tags"]),
        note=facts["note"],
        timed=facts["kind"] == "timed",
    )


def of_version(version: Version, meta: Any = None) -> Snapshot:
    """Return the snapshot in a version of a snapshot run; `meta` overrides the annotations of the version."""
    if not isinstance(version.state, FrozenDict):
        raise InvalidSnapshot(
            f"{version!r} holds no fields, and is no snapshot: it was written by something else",
            run=version.run,
        )
    workflow, replaced = _from_meta(version.annotations if meta is None else meta)
    return Snapshot(
        run_id=version.run.removeprefix(PREFIX),
        workflow_id=workflow,
        number=version.number,
        timestamp=version.at,
        state=version.state,
        replaced=replaced,
        tags=version.tags,
        note=version.note,
        timed=version.kind == "timed",
    )


def meta_of(workflow_id: str | None, replaced: Any) -> dict[str, Any]:
    """Return the metadata of a snapshot that is not in its fields."""
    return {WORKFLOW_ID: workflow_id, "replaced": list(replaced)}


def check_snapshot_run(run_id: Any) -> str:
    """Return the id of a run that can have snapshots, or raise `InvalidReference`."""
    if len(check_run_id(run_id)) > MAX_ID - len(PREFIX):
        raise InvalidReference(f"run id {short(run_id)} has more than {MAX_ID - len(PREFIX)} characters")
    return str(run_id)


def _from_meta(meta: Any) -> tuple[str | None, tuple[str, ...]]:
    found = meta if isinstance(meta, dict) else {}
    workflow, replaced = found.get(WORKFLOW_ID), found.get("replaced")
    paths = replaced if isinstance(replaced, list) else ()
    return (
        workflow if isinstance(workflow, str) else None,
        tuple(path for path in paths if isinstance(path, str)),
    )


def _facts(snapshot: Snapshot) -> tuple[Any, ...]:
    return tuple(getattr(snapshot, name) for name in Snapshot.__struct_fields__ if name != "state")


def _same(a: Snapshot, b: Snapshot) -> bool:
    return same(*_frozen_pair(a, b))


def _frozen_pair(a: Snapshot, b: Snapshot) -> tuple[Any, Any]:
    folder = Folder(None)
    one = folder.fold(a.state)
    return one, folder.fold(b.state, one)
