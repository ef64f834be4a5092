"""The snapshot record: compared, validated, written to a document and read from one.

A snapshot is complete and immutable, and does not depend on the version that it was read from, which may be
pruned.

Invariant: `read_document(document_of(snapshot))` equals the snapshot exactly; `validate_snapshot` never
raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast.compat.snapshot_manager import kaiban
from holdfast.errors import HoldfastError, InvalidCall, InvalidReference, InvalidSnapshot
from holdfast.history import snapshot as documents
from holdfast.history.snapshot import Validation
from holdfast.history.version import Version
from holdfast.model.names import MAX_ID, check_run_id, printable, short, suggest
from holdfast.tree import diff as trees
from holdfast.tree import path as paths
from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import FrozenDict, reveal

#: Prefix of the run that keeps the snapshots of a run, separate from a workflow's run of the same id.
PREFIX = "snapshots/"

RUN_ID, WORKFLOW_ID = "run_id", "workflow_id"
#: What follows a place in a path that is the place or below it.
_AFTER = ("", ".", "[", "#")
_CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


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
    #: Classes of values that are stored by their content, by path: `app.Status:RUNNING` for the member of an enum,
    #: `app.Scores` for a subclass of a built-in type, `app.Plan()` for an object that is stored as a dict.
    types: dict[str, str] = {}
    #: Whether the store redacted secrets: the text `[redacted]` then takes the place of one.
    redacts: bool = True

    @property
    def version(self) -> Any:
        """The field `version` of the run if it has one; otherwise the version of the snapshot format, `"1"`."""
        return self.state.get("version", str(documents.NUMBER))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            snake = _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)
            for each in (name, snake, kaiban.CAMEL.get(name, name)):
                if each in self.state:
                    return self.state[each]
            if snake != name and snake in Snapshot.__struct_fields__:
                return getattr(self, snake)
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


def compare_snapshots(
    a: Snapshot, b: Snapshot, *, deep: bool = False, nested: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the changes from one snapshot to another: `{"status": {"from": "running", "to": "completed"}}`.

    Every field is compared, exactly: `1`, `1.0` and `True` are three values. A missing field is shown as
    None. With `deep`, changes are listed by path: `{"step_results.fetch.status": {…}}`. With `nested`, the
    changes of a field that is a dict on both sides are listed by its keys:
    `{"step_results": {"fetch": {"from": …, "to": …}}}`. If the snapshots are of different runs or workflows,
    `run_id` and `workflow_id` are included.
    """
    if deep and nested:
        raise InvalidCall("compare_snapshots lists changes deep or nested, not both")
    for one in (a, b):
        if not isinstance(one, Snapshot):
            raise InvalidCall(f"compare_snapshots takes two snapshots, not {short(one)}")
    old, new = _frozen_pair(a, b)
    found: dict[str, dict[str, Any]] = {}
    for name in (RUN_ID, WORKFLOW_ID):
        one, two = getattr(a, name), getattr(b, name)
        if one != two:
            found[name] = {"from": one, "to": two}
    # Values may be equal as they are stored, and of other classes.
    types = [path for path in {**a.types, **b.types} if a.types.get(path) != b.types.get(path)]
    if deep:
        table = trees.fields(change for change in trees.changes(old, new) if change.path)
        for path in types:
            table.setdefault(path, {"from": a.types.get(path), "to": b.types.get(path)})
        return found | table
    for name in {**old, **new}:
        retyped = _below(paths.show([name]), types)
        if not retyped and name in old and name in new and same(old[name], new[name]):
            continue
        was, now = a.state.get(name), b.state.get(name)
        if nested and isinstance(was, Mapping) and isinstance(now, Mapping):
            found[name] = {
                key: {"from": was.get(key), "to": now.get(key)}
                for key in {**was, **now}
                if key not in was
                or key not in now
                or not same(old[name][key], new[name][key])
                or _below(paths.show([name, key]), retyped)
            }
        if not found.get(name):
            found[name] = {"from": was, "to": now}
    return found


def _below(place: str, listed: list[str]) -> list[str]:
    """Return the paths that are a place or below it."""
    return [path for path in listed if path.startswith(place) and path[len(place) : len(place) + 1] in _AFTER]


def validate_snapshot(snapshot: Any) -> Validation:
    """Check whether a snapshot can be restored. Return a true value, or a false one with a list of
    `problems`. Accepts a snapshot, or the result of `export_snapshot`, as text or as a document. Never
    raises."""
    try:
        if isinstance(snapshot, Snapshot):
            return documents.validate(document_of(snapshot))
        foreign = kaiban.parse(snapshot)
        problems = None if foreign is None else tuple(kaiban.problems(foreign))
        found = documents.validate(snapshot) if problems is None else Validation(problems)
        if found:
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
            "meta": meta_of(
                snapshot.workflow_id, snapshot.replaced, snapshot.types, redacts=snapshot.redacts
            ),
            "result": None,
            "error": None,
            "state": snapshot.state,
        }
    )


def read_document(document: Any, *, run_id: str | None = None) -> Snapshot:
    """Return the snapshot in a document, or raise `InvalidSnapshot`; with `run_id`, make it one of that run."""
    foreign = kaiban.parse(document)
    facts = documents.read(document) if foreign is None else kaiban.read(foreign)
    state = facts["state"]
    if not isinstance(state, dict):
        raise InvalidSnapshot(f"the state of a snapshot is its fields, not {type(state).__name__}")
    was = facts["run"].removeprefix(PREFIX)
    name = check_snapshot_run(was if run_id is None else run_id)
    own = state.get(RUN_ID)
    if id_text(own) not in (None, was):
        raise InvalidSnapshot(
            f"the snapshot is of run {short(was)}, but its field {RUN_ID} is {short(own)}: it was changed"
        )
    if id_text(own) is not None and name != was:
        state[RUN_ID] = name
        with suppress(ValueError):
            kind: Any = type(own)
            state[RUN_ID] = kind(name)
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


def meta_of(
    workflow_id: str | None, replaced: Any, types: Mapping[str, str], *, redacts: bool
) -> dict[str, Any]:
    """Return the metadata of a snapshot that is not in its fields."""
    found: dict[str, Any] = {WORKFLOW_ID: workflow_id, "replaced": list(replaced)}
    if types:
        found["types"] = dict(types)
    if not redacts:
        found["redacts"] = False
    return found


def id_text(value: Any) -> str | None:
    """Return an id as text; None if the value is not an id."""
    return str(value) or None if isinstance(value, str | int | UUID) else None


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
    types = found.get("types")
    return {
        WORKFLOW_ID: workflow if isinstance(workflow, str) else None,
        "replaced": tuple(path for path in listed if isinstance(path, str)),
        "types": {
            path: name
            for path, name in (types.items() if isinstance(types, dict) else ())
            if isinstance(path, str) and isinstance(name, str)
        },
        "redacts": found.get("redacts") is not False,
    }


def _frozen_pair(a: Snapshot, b: Snapshot) -> tuple[Any, Any]:
    """Return two states, frozen so that equal parts are shared."""
    folder = Folder(None)
    one = folder.fold(a.state)
    return one, folder.fold(b.state, one)
