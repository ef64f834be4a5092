"""A snapshot as a caller holds it: whole, immutable, and its own; the store may forget the version that it was read
from.

Invariant: `read_document(document_of(snapshot))` equals the snapshot, exactly; `validate_snapshot` never raises.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, InvalidReference, InvalidSnapshot
from holdfast.history import snapshot as documents
from holdfast.history.snapshot import Validation
from holdfast.history.version import Version
from holdfast.model.names import MAX_ID, check_run_id, meant, printable, short
from holdfast.tree import diff as trees
from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import FrozenDict, reveal

#: Where the snapshots of a run are kept: in a run of their own, beside a workflow's run of the same id.
PREFIX = "snapshots/"

RUN_ID, WORKFLOW_ID = "run_id", "workflow_id"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a run at one time. A field is also an attribute: `snapshot.status` is `snapshot.state["status"]`,
    unless the snapshot itself has something of that name."""

    run_id: str
    #: Of which workflow, where that is known.
    workflow_id: str | None
    #: Its number among the snapshots of its run: 1, 2, 3, … Numbers are not used again.
    number: int
    #: When it was taken, in UTC.
    timestamp: datetime
    #: Every field of the run, frozen.
    state: FrozenDict
    #: The paths of what could not be stored, and stands as a text or a dict.
    replaced: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    note: str | None = None
    #: Was it taken by time?
    timed: bool = False

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            try:
                return self.state[name]
            except KeyError:
                pass
        hint = meant(name, (field for field in self.state if isinstance(field, str)))
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
    """What changed from one snapshot to another: `{"status": {"from": "running", "to": "completed"}}`.

    Every field is compared, exactly: `1`, `1.0` and `True` are three values. A field that one of them does not have is
    None there. With `deep`, changes are told by path: `{"step_results.fetch.status": {…}}`. Where the snapshots are of
    two runs or two workflows, `run_id` and `workflow_id` are told as well.
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
    """Can this be restored? True, or false with a list of `problems`. Takes a snapshot, or what `export_snapshot` gave,
    as text or as the document in it. Never raises."""
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
    """A snapshot as a document that `json.dumps` takes."""
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
    """The snapshot that a document describes, or `InvalidSnapshot`; with `run_id`, as one of that run."""
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
    """The snapshot that a version of a run of snapshots is; `meta` is what was said of it, if that is known."""
    if not isinstance(version.state, FrozenDict):
        raise InvalidSnapshot(
            f"{version!r} holds no fields, and is no snapshot: it was written by something else",
            run=version.run,
        )
    workflow, replaced = _from_meta(version.meta if meta is None else meta)
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
    """What is said of a snapshot beside its fields."""
    return {WORKFLOW_ID: workflow_id, "replaced": list(replaced)}


def check_snapshot_run(run_id: Any) -> str:
    """The id of a run of which there can be snapshots, or `InvalidReference`."""
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
