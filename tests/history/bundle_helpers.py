"""Runs to export, comparisons of imported runs, and functions that build bundles with valid hashes.

A module that needs the fixtures binds them: `hf, other = bundle_helpers.hf, bundle_helpers.other`.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

import holdfast
from holdfast import Holdfast, InvalidSnapshot, Retention
from holdfast.history.bundle.frames import AnyFrame, AttachmentFrame, BundleReader, EndFrame, VersionFrame
from holdfast.history.hashes import seal, seal_attachment
from holdfast.model.records import AttachmentRecord, StoreStats, VersionRecord
from holdfast.store.protocol import iter_attachments

MAGIC = b"holdfast.bundle 2\n"


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    """Where runs come from."""
    with holdfast.open(tmp_path / "a.db", durability="fast") as opened:
        yield opened


@pytest.fixture(params=["sqlite", "folder", "memory"])
def other(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Holdfast]:
    """Where they go."""
    where = ":memory:" if request.param == "memory" else tmp_path / "b.db"
    artifacts = tmp_path / "artifacts" if request.param == "folder" else None
    with holdfast.open(where, durability="fast", artifacts=artifacts) as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Holdfast]:
    """A store with a run of its own, which no bad bundle may touch."""
    with holdfast.open(tmp_path / "b.db", durability="fast", artifacts=tmp_path / "files") as opened:
        opened.history("mine").commit({"mine": 1})
        yield opened


@pytest.fixture(scope="module")
def small() -> bytes:
    return small_bundle()


def full_run(hf: Holdfast, run_id: str = "full", *, large: int = 70_000) -> None:
    """A run with something of everything."""
    log = hf.history(run_id)
    noise = random.Random(run_id)
    state: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"question {n} " + "x" * n} for n in range(150)],
        "wide": {f"key-{n}": {"n": n, "text": "word " * (n % 7)} for n in range(400)},
        "large": noise.randbytes(large),
        "text": "".join(map(chr, noise.choices(range(32, 900), k=large))),
        "file": holdfast.artifact(noise.randbytes(3000), name="notes.txt"),
        "odd": {(1, "a"): {1, 2, 3}, 2.5: None, b"k": [float("inf"), -0.0, 1 << 80]},
    }
    log.commit(
        state,
        step="begin",
        tags=["first", "good"],
        note="how it began",
        actor="anna",
        annotations={"cost": 1.5},
        key="begin",
    )
    log.attach("begin", {"text": "word " * 5_000, "odd": state["odd"], "line\nbreak": None})
    log.attach("early", {"\U0001f40b": noise.randbytes(large)})
    for n in range(8):
        with log.edit(step=f"step-{n}", result={"n": n, "list": list(range(n * 10))}) as draft:
            draft["messages"].append({"role": "model", "content": f"answer {n} " + "y" * 200})
            draft["wide"][f"key-{n * 13}"] = {"n": -n, "text": "z" * 150}
            if n == 3:
                draft["other"] = noise.randbytes(large)
            if n == 5:
                del draft["other"]
    log.commit(
        holdfast.thaw(log.head.state), step="fails", error=ValueError("no"), status="failed", key="\U0001f40b"
    )
    log.tag(4, "kept")
    log.pin(6)
    log.rollback(to=5, reason="wrong turn", actor="bob")
    with log.edit(step="again", tags=["good"]) as draft:
        draft["again"] = holdfast.artifact(b"second content", name="again.bin")
    log.merge(9, note="both")
    log.untag(4, "kept")
    log.rollback(to=12, reason="once more")


def random_run(hf: Holdfast, seed: int) -> str:
    """A run, perhaps a fork, made by chance."""
    chance = random.Random(seed)
    name = f"run-{seed}"
    log = hf.history(name)
    log.commit({"list": [], "dict": {}})
    for n in range(chance.randint(3, 40)):
        what = chance.random()
        numbers = [version.number for version in log.versions()]
        if what < 0.6:
            with log.edit(step=chance.choice((None, "plan", "act")), result=n) as draft:
                draft["list"].extend(
                    {"n": n, "pad": "p" * chance.randint(0, 300)} for _ in range(chance.randint(0, 40))
                )
                draft["dict"].update(
                    {f"k{chance.randint(0, 300)}": "v" * chance.randint(0, 700) for _ in range(20)}
                )
                if chance.random() < 0.2:
                    draft["big"] = chance.randbytes(66_000)
                if chance.random() < 0.2:
                    draft["file"] = [holdfast.artifact(chance.randbytes(100))]
        elif what < 0.7:
            log.commit({"list": [n], "dict": {}, "only": chance.randbytes(70_000)}, key=f"key {n}")
            log.attach(
                f"key {n + chance.randint(-1, 1)}", {f"{n}": chance.randbytes(chance.randint(0, 9_000))}
            )
        elif what < 0.8:
            log.rollback(to=chance.choice(numbers))
        elif what < 0.85:
            log.tag(chance.choice(numbers), f"tag-{n}")
        elif what < 0.9:
            log.prune(Retention(last=chance.randint(1, 6)))
        else:
            name = f"run-{seed}-{n}"
            log = hf.fork(f"{log.id}@{chance.choice(numbers)}", name)
    return name


def small_bundle() -> bytes:
    """A small bundle with all kinds of frames: two kept versions, one stub, marks, events, attachments, an artifact."""
    with holdfast.open(":memory:") as hf:
        log = hf.history("small")
        state = {"a": {"text": "shared " * 40}, "n": 1}
        log.commit(state)
        log.commit({**state, "n": 2, "file": holdfast.artifact(b"content")}, tags=["good"])
        log.rollback(to=2, reason="why")
        log.commit({**state, "n": 3, "file": holdfast.artifact(b"content")}, note="third", key="third")
        log.attach("first", {"early": 1})
        log.attach("third", {"a": {"b": [1]}, "b": "text"})
        log.prune(Retention(last=2))
        return exported(hf, "small")


def full_bundle() -> bytes:
    """The bundle of a full run that has further blocks too."""
    with holdfast.open(":memory:") as hf:
        full_run(hf)
        hf.history("full").commit({f"k{n}": random.Random(n).randbytes(300).hex() for n in range(500)})
        return exported(hf, "full")


def refused(hf: Holdfast, data: bytes, match: str | None = None, error: Any = InvalidSnapshot) -> None:
    """The bundle is refused with a reason, and the store is as it was."""
    before = snapshot(hf)
    with pytest.raises(error, match=match):
        hf.import_run(io.BytesIO(data))
    assert snapshot(hf) == before


def facts(hf: Holdfast, run_id: str) -> dict[str, Any]:
    """All that can be read of a run, without what belongs to its store."""
    log = hf.history(run_id)
    [run] = [run for run in hf.runs() if run.id == run_id]
    versions = [
        (
            (version.number, version.parent, version.timeline, version.kind, version.status, version.step),
            (
                version.steps,
                version.at,
                version.size,
                version.detail,
                version.tags,
                version.pinned,
                version.key,
            ),
            (
                version.completed_steps,
                exact(version.state),
                exact(version.result),
                exact(version.annotations),
            ),
            exact(version.error),
        )
        for version in log.versions(limit=1000)
    ]
    events = [(event.kind, event.at, event.version, event.step, event.data) for event in log.events()]
    return {
        "run": (
            run.status,
            run.workflow,
            run.step,
            run.head,
            run.versions,
            run.timeline,
            run.created,
            run.updated,
        ),
        "tags": run.tags,
        "versions": versions,
        "timelines": log.timelines(),
        "events": [event for event in events if event[0] != "version.saved"],
        "saved": [event for event in events if event[0] == "version.saved"],
        "attachments": [
            (each.key, each.name, each.at, each.data)
            for each in iter_attachments(hf._store, run_key(hf, run_id))
        ],
    }


def run_key(hf: Holdfast, run_id: str) -> int:
    """The key of a run in its store."""
    run = hf._store.run(run_id)
    assert run is not None
    return run.key


def exact(value: Any) -> Any:
    """A value as its bytes, in which types and order show; artifacts with their contents."""
    return holdfast.tree.codec.encode(value), sorted(contents(value))


def contents(value: Any) -> Iterable[bytes]:
    """The contents of all artifacts in a value."""
    if isinstance(value, holdfast.Artifact):
        yield value.read()
    elif isinstance(value, dict):
        for item in value.values():
            yield from contents(item)
    elif isinstance(value, list):
        for item in value:
            yield from contents(item)


def holds(hf: Holdfast, run_id: str) -> dict[int, list[bytes]]:
    """Which version holds which artifact, as the store has written it down."""
    store: Any = hf._store
    run = store.run(run_id)
    rows: dict[int, list[bytes]] = {}
    with store._database.reader() as connection:
        for number, digest in connection.execute(
            "SELECT number, digest FROM hold WHERE run=? ORDER BY number, digest", (run.key,)
        ):
            rows.setdefault(number, []).append(digest)
    return rows


def exported(hf: Holdfast, run_id: str) -> bytes:
    """A bundle in memory."""
    file = io.BytesIO()
    hf.export_run(run_id, file)
    return file.getvalue()


def snapshot(hf: Holdfast, folder: Path | None = None) -> tuple[Any, ...]:
    """What must not change when an import is refused."""
    stats: StoreStats = msgspec.structs.replace(hf.stats(), file_bytes=None)
    files = sorted(os.listdir(folder)) if folder is not None else None
    return stats, hf.runs(), hf.events(), files


def frames_of(data: bytes) -> list[AnyFrame]:
    """The frames of a bundle."""
    return list(BundleReader(io.BytesIO(data)).frames())


def bundle(
    parts: Sequence[AnyFrame | bytes], *, magic: bytes = MAGIC, after: bytes = b"", level: int = 3
) -> bytes:
    """A bundle of any frames, or bytes in their place, with a hash that fits."""
    stream = zstandard.ZstdCompressor(level=level).compressobj()
    data = magic
    for part in parts:
        encoded = part if isinstance(part, bytes) else msgspec.msgpack.encode(part)
        data += stream.compress(len(encoded).to_bytes(4, "big") + encoded)
    return hashed(data + stream.flush() + after)


def hashed(data: bytes) -> bytes:
    """Bytes with the hash that ends a bundle."""
    return data + sha256(data).digest()


def first(frames: Sequence[AnyFrame], kind: type[Any]) -> int:
    """The place of the first frame of a kind."""
    return next(index for index, frame in enumerate(frames) if isinstance(frame, kind))


def changed(data: bytes, change: Callable[[list[AnyFrame]], object]) -> bytes:
    """A bundle whose frames were changed, with counts and a hash that fit again."""
    frames = frames_of(data)
    result = change(frames)
    if isinstance(result, list):
        frames = result
    kinds = [type(frame).__name__ for frame in frames]
    counted = ("Timeline", "Version", "Mark", "Event", "Artifact", "Attachment")
    counts = [kinds.count(f"{name}Frame") for name in counted]
    return bundle([EndFrame(*counts) if isinstance(frame, EndFrame) else frame for frame in frames])


def sealed(run_id: str, frame: AnyFrame, **more: Any) -> VersionFrame:
    """A version frame that was changed by someone who can compute hashes."""
    assert isinstance(frame, VersionFrame)
    frame = msgspec.structs.replace(frame, **more)
    fields = {
        name: getattr(frame, name) for name in frame.__struct_fields__ if name not in ("blocks", "holds")
    }
    return msgspec.structs.replace(frame, hash=seal(run_id, VersionRecord(**fields)).hash)


def attached(run_id: str, key: str, name: str, data: bytes, at: int = 0) -> AttachmentFrame:
    """An attachment frame of someone who can compute hashes."""
    record = AttachmentRecord(key=key, name=name, at=at, data=data, hash=b"")
    return AttachmentFrame(key, name, at, data, seal_attachment(run_id, record).hash)
