"""Seeds of the fuzz targets: good inputs, made by Holdfast's own encoders, from which mutations start."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import requests_in_process as requests
from msgspec import inspect

import holdfast
from holdfast import Holdfast, Opaque, Retention
from holdfast.history.bundle.frames import BundleReader, VersionFrame
from holdfast.snapshots import SnapshotManager
from holdfast.tree.block import _inflate
from holdfast.tree.codec import encode
from holdfast.tree.portable import to_json

_pack = msgspec.msgpack.encode

VALUES: list[Any] = [
    None, True, -1, 1 << 40, 1 << 80, -(1 << 70), 1.5, -0.0, float("inf"), float("nan"), "text", "\ud800", "é",
    b"bytes", [], {}, [1, [2, [3]]], {"a": {"b": [1]}}, {1: 2, None: 3, 2.5: 4, b"k": 5}, {(1, "a"): {1, 2}},
    {"\udc00": 1}, (1, (2,)), {1, 2}, frozenset((1, frozenset())), dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC),
    dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), dt.date(2024, 2, 29), dt.time(1, 2),
    dt.timedelta(-1, 2, 3), dt.timezone(dt.timedelta(hours=1), "X"), ZoneInfo("UTC"), Decimal("1.50"), Decimal("NaN"),
    Fraction(1, 3), 1 + 2j, UUID(int=7), PurePosixPath("a/b"), bytearray(b"x"), deque([1, [2]], 3),
    OrderedDict([("a", 1)]), range(1, 9, 2), ValueError("no", 1), Opaque("app.Type", {"a": (1,)}),
    holdfast.artifact(b"content", name="a.txt"),
]  # fmt: skip
PATHS = [
    "", "plan", "plan.tasks[3].title", '["odd key"]', "[(1, 2)]", "['a']", "[b'k']", "[None]", "[-1]", "[1.5]", "*",
    "scores.*", "tasks[*].title", "a-b_c", "[(1, ('x', b'y'))]", "[True]", '["\\u1234"]', "é.ü", "[1j]", "[-1.5e300]",
]  # fmt: skip


def codec() -> Iterator[bytes]:
    for value in VALUES:
        yield encode(value)
    yield encode(VALUES)
    yield encode(dict(enumerate(VALUES)))


def path() -> Iterator[bytes]:
    for text in PATHS:
        yield text.encode()


def snapshot() -> Iterator[bytes]:
    with SnapshotManager() as manager, holdfast.open(":memory:") as hf:
        for value in (
            {"status": "running", "n": [1, {"a": None}]},
            dict(enumerate(VALUES)),
            {"v": VALUES[:25]},
        ):
            made = manager.create_snapshot("r", value, workflow_id="w", tags=["t"], note="n")
            assert made is not None
            yield manager.export_snapshot(made).encode()
        log = hf.history("run")
        log.commit(
            {"a": 1}, step="s", result={"x": (1, 2)}, annotations={"cost": 1.5}, actor="me", tags=["t"]
        )
        yield json.dumps(log.export()).encode()
    for value in VALUES:
        yield json.dumps(to_json(value)).encode()


def _runs(hf: Holdfast) -> None:
    small = hf.history("small")
    state = {"a": {"text": "shared " * 40}, "n": 1, "list": [1, 2, {"x": "y" * 100}]}
    small.commit(state, step="begin", result=(1, 2), annotations={"cost": 1}, actor="me")
    small.commit({**state, "n": 2, "file": holdfast.artifact(b"content")}, tags=["good"])
    small.rollback(to=2, reason="why")
    small.commit(
        {**state, "n": 3, "odd": {(1, 2): {1}}, "big": 1 << 80}, error=ValueError("no"), note="third"
    )
    pruned = hf.history("pruned")
    for number in range(5):
        pruned.commit({"keep": "k" * 200, "n": number, "list": list(range(number))})
    pruned.pin(2)
    pruned.prune(Retention(last=2))
    wide = hf.history("wide")
    wide.commit({f"key {n}": n for n in range(120)})
    with wide.edit() as draft:
        draft["key 7"] = "x"
        draft["more"] = "y"
    long = hf.history("long")
    long.commit({"messages": [{"role": "user", "content": f"{n}"} for n in range(70)]})
    with long.edit() as draft:
        draft["messages"].append({"role": "model", "content": "z" * 700})
    large = hf.history("large")
    large.commit({"large": random.Random(1).randbytes(70_000)[:66_000], "text": "t" * 600})
    large.commit({"large": b"0" * 66_000, "text": "t" * 600})


def _bundles() -> Iterator[bytes]:
    with holdfast.open(":memory:") as hf:
        _runs(hf)
        for run in hf.runs():
            file = io.BytesIO()
            hf.export_run(run.id, file)
            yield file.getvalue()


def _frames(data: bytes) -> list[Any]:
    """The frames of a bundle as a document, with each pack as its nodes."""
    found = []
    for frame in BundleReader(io.BytesIO(data)).frames():
        plain = msgspec.msgpack.decode(_pack(frame))
        if isinstance(frame, VersionFrame):
            plain[1 + VersionFrame.__struct_fields__.index("pack")] = _nodes(frame.pack)
        found.append(plain)
    return found


def _nodes(pack: bytes) -> Any:
    return msgspec.msgpack.decode(_inflate(pack))


def bundle() -> Iterator[bytes]:
    for made in _bundles():
        if len(made) < 8_000:
            yield made
            yield _pack(_frames(made))


def pack() -> Iterator[bytes]:
    for made in _bundles():
        packs = [
            frame.pack for frame in BundleReader(io.BytesIO(made)).frames() if isinstance(frame, VersionFrame)
        ]
        yield _pack([_nodes(each) for each in packs])
        yield _pack(packs)


def http() -> Iterator[bytes]:
    runs = ["good", "hand", "ask", "bad", "wait", "queued", "project", "loops/project"]
    for operation in requests.OPERATIONS:
        for turn, run in enumerate(runs[:4] if "{run}" in operation.path else runs[:1]):
            known = {"run": run, "version": "2", "tag": "t1", "queue": "q", "project_id": "project"}
            parts = [known.get(name, "x") for name in operation.parts]
            query = {} if operation.query is None else _sample(inspect.type_info(operation.query), turn)
            body = None if operation.body is None else _sample(inspect.type_info(operation.body), turn)
            if operation.upload is not None:
                body = next(bundle()) if turn % 2 else b'{"format": "holdfast.snapshot"}'
            yield _pack([3, operation.method, operation.path, parts, query, body, None])
        yield _pack([turn % 4, operation.method, operation.path, parts, query, body, None])


def _sample(kind: Any, turn: int) -> Any:
    """A value of a type that an operation declares."""
    if isinstance(kind, inspect.Metadata):
        return _sample(kind.type, turn)
    if isinstance(kind, inspect.StructType):
        fields = [field for field in kind.fields if field.required or (turn + len(field.name)) % 2]
        return {field.encode_name: _sample(field.type, turn) for field in fields}
    if isinstance(kind, inspect.UnionType):
        return _sample(kind.types[turn % len(kind.types)], turn)
    if isinstance(kind, inspect.LiteralType):
        return kind.values[turn % len(kind.values)]
    if isinstance(kind, inspect.VarTupleType | inspect.ListType):
        return [_sample(kind.item_type, turn)]
    if isinstance(kind, inspect.DictType):
        return {"tasks[0].name": _sample(kind.value_type, turn)}
    if isinstance(kind, inspect.StrType):
        return ("2", "good@2", "tasks[0]", "agent")[turn % 4]
    simple = {
        inspect.IntType: 2,
        inspect.FloatType: 0.5,
        inspect.BoolType: bool(turn % 2),
        inspect.NoneType: None,
    }
    return simple.get(type(kind), {"a": [turn, {"$holdfast": "tuple", "value": [1]}]})


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    each.__name__: each for each in (codec, path, pack, snapshot, bundle, http)
}
