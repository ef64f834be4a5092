"""Hostile bundles with valid hashes: refused, and nothing changes."""

from __future__ import annotations

import io
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import bundle_helpers
import msgspec
import pytest
import zstandard
from bundle_helpers import attached, bundle, changed, first, frames_of, full_bundle, refused, sealed, snapshot
from msgspec.msgpack import Ext
from msgspec.structs import replace

from holdfast import Holdfast, HoldfastError, InvalidSnapshot
from holdfast.history.bundle.frames import (
    AnyFrame,
    ArtifactFrame,
    AttachmentFrame,
    BlockFrame,
    EndFrame,
    EventFrame,
    MarkFrame,
    PieceFrame,
    RunFrame,
    TimelineFrame,
    VersionFrame,
)
from holdfast.model.run_detail import RunDetail, encode_detail
from holdfast.tree.block import digest, reference, squeeze
from holdfast.tree.codec import big_int, encode, to_bytes

Frames = list[AnyFrame]

#: An artifact without content, whose digest comes before that of the small bundle's own.
EMPTY = ArtifactFrame(sha256(b"").digest(), 0)


other, small = bundle_helpers.own, bundle_helpers.small


def _with_pack(small: bytes, pack: bytes, **more: Any) -> bytes:
    """The bundle with another pack in its newest version, sealed as if it belonged there."""

    def change(frames: Frames) -> None:
        at = max(index for index, frame in enumerate(frames) if isinstance(frame, VersionFrame))
        frames[at] = sealed(
            "small", frames[at], pack=pack, pack_hash=digest(pack), size=len(pack), holds=[], **more
        )

    return changed(small, change)


def test_hostile_packs_are_refused(other: Holdfast, small: bytes) -> None:
    own = reference(0, 0)
    oversized = b"\x01" + zstandard.ZstdCompressor().compress(b"\0" * ((64 << 20) + 1))[4:]
    for pack in (
        b"",
        b"\x00",
        b"\x07newer",
        b"\x01garbage",
        oversized,
        squeeze([]),
        squeeze([[], []]),
        squeeze([[None]]),
        squeeze([{}, []]),
        squeeze([[own], [], [own]]),
        squeeze([[own], [], [reference(0, 1)], [own]]),
        squeeze([[None], [[1, b"x" * 16]]]),
        squeeze([[None], [["1", b"x" * 16]]]),
        squeeze([[None], 7]),
        squeeze([[msgspec.msgpack.Ext(99, b"")], []]),
        squeeze([[msgspec.msgpack.Ext(25, b"\xff")], []]),
        squeeze([[msgspec.msgpack.Ext(25, encode(["no digest", 1, None]))], []]),
        squeeze([[msgspec.msgpack.Ext(40, b"short")], []]),
    ):
        refused(other, _with_pack(small, pack), "version 3")
    other.import_run(io.BytesIO(_with_pack(small, squeeze([[{"n": 3}], []]))))
    assert other.history("small").head.state == {"n": 3}


def test_state_that_expands_exponentially_is_refused(other: Holdfast, small: bytes) -> None:
    """Forty nodes, each of which refers to the one before it twice: reading the whole state would never end."""

    def pack(levels: int) -> bytes:
        nodes: list[Any] = [["x"] * 40]
        for level in range(levels):
            nodes.append({"a": reference(0, level), "b": reference(0, level)})
        return squeeze([[reference(0, levels)], [], *nodes])

    refused(other, _with_pack(small, pack(40)), "version 3")
    other.import_run(io.BytesIO(_with_pack(small, pack(5))))
    assert other.history("small").head.state["a"]["b"]["a"]["b"]["a"] == ["x"] * 40


def test_map_whose_keys_are_extensions_is_refused(other: Holdfast, small: bytes) -> None:
    keys = b"".join(to_bytes(big_int(number << 70)) + b"\x00" for number in range(3))
    hostile = msgspec.Raw(b"\x83" + keys)
    for pack in (
        squeeze([[reference(0, 0)], [], hostile]),
        squeeze([[hostile], []]),
        squeeze([[reference(0, 0)], [], [msgspec.msgpack.Ext(4, bytes(hostile))]]),
    ):
        refused(other, _with_pack(small, pack), "version 3")


def test_frame_with_a_field_of_the_wrong_type_is_refused(other: Holdfast, small: bytes) -> None:
    frames = frames_of(small)
    before = snapshot(other)
    for kind in dict.fromkeys(map(type, frames)):
        at = first(frames, kind)
        whole = msgspec.msgpack.decode(msgspec.msgpack.encode(frames[at]))
        for field in range(len(whole)):
            wrongs: tuple[Any, ...] = ({}, 1.5, [[]], msgspec.msgpack.Ext(1, b"x"), 1 << 63, -(1 << 63))
            for wrong in wrongs:
                parts: list[Any] = [*frames[:at], _encoded(whole, field, wrong), *frames[at + 1 :]]
                with pytest.raises(InvalidSnapshot):
                    other.import_run(io.BytesIO(bundle(parts)))
        # Fields with a default came later: bundles without them are older ones. The tag precedes the fields.
        least = whole[: sum(field.required for field in msgspec.structs.fields(kind))]
        for shape in (least, [*whole, 1], {"tag": whole}, [], None, "frame", [["run"] * 999]):
            parts = [*frames[:at], msgspec.msgpack.encode(shape), *frames[at + 1 :]]
            with pytest.raises(InvalidSnapshot):
                other.import_run(io.BytesIO(bundle(parts)))
    assert snapshot(other) == before


def _encoded(whole: list[Any], field: int, value: Any) -> bytes:
    return msgspec.msgpack.encode([*whole[:field], value, *whole[field + 1 :]])


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\xa3abc"])
def test_invalid_frames_are_refused(other: Holdfast, small: bytes, payload: bytes) -> None:
    frames = frames_of(small)
    refused(other, bundle([frames[0], payload, *frames[1:]]))
    refused(other, bundle([payload, *frames]))


def test_bundle_with_an_invalid_run_id_is_refused(
    other: Holdfast, small: bytes, subtests: pytest.Subtests
) -> None:
    cases: list[str] = [
        "",
        " ",
        "../../etc/passwd",
        "a@1",
        "a~2",
        "a\\b",
        "a\0b",
        "line\nbreak",
        "x" * 300,
        "\u2028",
        ".",
    ]
    for hostile in cases:
        with subtests.test(hostile=hostile):
            data = changed(small, _set(RunFrame, id=hostile))
            refused(other, data, "run id")
            with pytest.raises(InvalidSnapshot):
                other.import_run(io.BytesIO(data), run_id="fine")


def _set(kind: type[Any], **more: Any) -> Callable[[Frames], None]:
    def change(frames: Frames) -> None:
        at = first(frames, kind)
        frames[at] = replace(frames[at], **more)

    return change


def _at(frames: Frames, number: int) -> int:
    return next(
        i for i, frame in enumerate(frames) if isinstance(frame, VersionFrame) and frame.number == number
    )


def _resealed(number: int, **more: Any) -> Callable[[Frames], None]:
    def change(frames: Frames) -> None:
        at = _at(frames, number)
        frames[at] = sealed("small", frames[at], **more)

    return change


def _swap(one: int, two: int) -> Callable[[Frames], None]:
    def change(frames: Frames) -> None:
        a, b = _at(frames, one), _at(frames, two)
        frames[a], frames[b] = frames[b], frames[a]

    return change


def _drop(kind: type[Any]) -> Callable[[Frames], Frames]:
    return lambda frames: [frame for frame in frames if not isinstance(frame, kind)]


def _double(kind: type[Any]) -> Callable[[Frames], None]:
    return lambda frames: frames.insert(first(frames, kind), frames[first(frames, kind)])


def _take_key(frames: Frames) -> None:
    """Give version 2 the key of version 3, and link version 3 to it."""
    _resealed(2, key="third")(frames)
    two = frames[_at(frames, 2)]
    assert isinstance(two, VersionFrame)
    _resealed(3, prev=two.hash[:8])(frames)


CHANGES: dict[str, Callable[[Frames], object]] = {
    "head is not there": _set(RunFrame, head=9, last=9),
    "head is pruned": _set(RunFrame, head=1),
    "head is below all": _set(RunFrame, head=-1),
    "head is amid a timeline": lambda frames: (
        _resealed(3, timeline=1)(frames),
        _set(RunFrame, head=2)(frames),
        _set(TimelineFrame, parent=1)(frames),
    ),
    "last is too low": _set(RunFrame, last=2),
    "too few timelines": _set(RunFrame, timeline=3),
    "too many timelines": _set(RunFrame, timeline=1),
    "very many timelines": _set(RunFrame, timeline=(1 << 31) - 1),
    "nothing was pruned": _set(RunFrame, epoch=0),
    "no such status": _set(RunFrame, status="dancing"),
    "no such kind": _resealed(3, kind="step\n"),
    "timeline from nowhere": _set(TimelineFrame, parent=0),
    "timeline from the future": _set(TimelineFrame, parent=4),
    "timeline of another number": _set(TimelineFrame, number=3),
    "another run's version": _set(RunFrame, id="another"),
    "changed fact": _set(VersionFrame, hash=b"x" * 16),
    "changed fact of a version": lambda frames: _set_at(frames, 2, steps=7),
    "changed pack": lambda frames: _set_at(frames, 2, pack=squeeze([[{"n": 9}], []])),
    "changed size": _resealed(3, size=7),
    "wrong link": _resealed(3, prev=b"x" * 8),
    "no parent": _resealed(3, parent=0),
    "parent that is not there": _resealed(3, parent=-5),
    "parent of itself": _resealed(3, parent=3),
    "timeline that is not there": _resealed(3, timeline=3),
    "details that are none": _resealed(3, detail=b"\x01"),
    "note that is not a text": _resealed(3, detail=encode({"note": 7})),
    "merged with a text": _resealed(3, detail=encode({"merged": "x"})),
    "artifacts it does not refer to": _resealed(3, holds=[]),
    "more artifacts than it refers to": lambda frames: _set_at(frames, 1, holds=[b"x" * 32]),
    "blocks that are missing": _resealed(3, blocks=1),
    "stub with a parent after it": lambda frames: _set_at(frames, 1, parent=5),
    "versions in wrong order": _swap(2, 3),
    "version twice": _double(VersionFrame),
    "parent is missing": lambda frames: frames.pop(_at(frames, 1)),
    "head is missing": lambda frames: frames.pop(_at(frames, 3)),
    "no versions": _drop(VersionFrame),
    "block by itself": lambda frames: frames.insert(3, BlockFrame(b"x")),
    "mark twice": _double(MarkFrame),
    "mark on a pruned version": _set(MarkFrame, number=1),
    "mark on no version": _set(MarkFrame, number=7),
    "mark that is not a tag": _set(MarkFrame, name="head"),
    "event that is none": _set(EventFrame, data=b"\x90"),
    "event of a text": _set(EventFrame, data=encode({"version": "x"})),
    "key of another version": _take_key,
    "key that is no key": _resealed(3, key="a\nb"),
    "key that is empty": _resealed(3, key=""),
    "key that is too long": _resealed(3, key="\U0001f40b" * 251),
    "key without its hash": lambda frames: _set_at(frames, 3, key="other"),
    "no key": lambda frames: _set_at(frames, 3, key=None),
    "stub with a key": lambda frames: _set_at(frames, 1, key="first"),
    "attachment twice": _double(AttachmentFrame),
    "attachments in wrong order": lambda frames: frames.insert(
        first(frames, ArtifactFrame), attached("small", "a", "a", squeeze([1]))
    ),
    "attachments after artifacts": lambda frames: frames.insert(
        -1, attached("small", "z", "a", squeeze([1]))
    ),
    "attachment without its hash": _set(AttachmentFrame, name="other"),
    "attachment of another run": lambda frames: _attached(frames, squeeze([1]), run_id="other"),
    "attachment of two values": lambda frames: _attached(frames, squeeze([1, 2])),
    "attachment of no value": lambda frames: _attached(frames, squeeze([])),
    "attachment that is no block": lambda frames: _attached(frames, b"\x07newer"),
    "attachment of garbage": lambda frames: _attached(frames, b"\x00\x91\xc1"),
    "attachment that refers to a node": lambda frames: _attached(frames, squeeze([reference(0, 0)])),
    "attachment with a spine": lambda frames: _attached(frames, squeeze([Ext(41, to_bytes([1, 0, 1]))])),
    "attachment of an artifact": lambda frames: _attached(
        frames, squeeze([[Ext(25, encode([EMPTY.digest.hex(), 0, None]))]])
    ),
    "attachment of a held artifact": lambda frames: _attached(
        frames, squeeze([Ext(25, encode([sha256(b"content").hexdigest(), 7, None]))])
    ),
    "attachment with extensions for keys": lambda frames: _attached(
        frames, squeeze([msgspec.Raw(b"\x81" + to_bytes(big_int(1 << 70)) + b"\x00")])
    ),
    "attachment of a name with NUL": lambda frames: _attached(frames, squeeze([1]), name="a\0"),
    "attachment of a name that is too long": lambda frames: _attached(frames, squeeze([1]), name="ä" * 501),
    "attachment of a key that is no key": lambda frames: _attached(frames, squeeze([1]), key="z\x1b"),
    "artifact is missing": _drop((ArtifactFrame, PieceFrame)),  # type: ignore[arg-type]
    "content is missing": _drop(PieceFrame),
    "content is another": _set(PieceFrame, data=b"another"),
    "content is longer": _double(PieceFrame),
    "artifact is shorter": _set(ArtifactFrame, size=3),
    "artifact is longer": _set(ArtifactFrame, size=1 << 40),
    "artifact is another": _set(ArtifactFrame, digest=b"x" * 32),
    "artifact twice": _double(ArtifactFrame),
    "artifact too many": lambda frames: frames.insert(first(frames, ArtifactFrame), EMPTY),
    "artifacts in wrong order": lambda frames: frames.insert(-1, EMPTY),
    "run twice": _double(RunFrame),
    "no run": _drop(RunFrame),
    "no end": _drop(EndFrame),
    "two ends": _double(EndFrame),
    "something after the end": lambda frames: frames.append(PieceFrame(b"x")),
    "marks before versions": lambda frames: frames.insert(1, frames.pop(first(frames, MarkFrame))),
    "events last": lambda frames: frames.insert(-1, frames.pop(first(frames, EventFrame))),
    "backwards": lambda frames: frames[::-1],
    "empty": lambda frames: [],
}


@pytest.mark.parametrize(
    "meta",
    [
        {f"name-{number}": 1 for number in range(17)},
        {"a\n": 1},
        {"": 1},
        {"long": "x" * 501},
        {"n": float("nan")},
    ],
)
def test_metadata_that_no_run_can_have_are_refused(
    other: Holdfast, small: bytes, meta: dict[str, Any]
) -> None:
    data = changed(small, _set(RunFrame, detail=encode_detail(RunDetail(meta=meta))))
    refused(other, data, "cannot be imported: ")


def _attached(frames: Frames, data: bytes, *, run_id: str = "small", key: str = "z", name: str = "a") -> None:
    """Insert a further attachment."""
    frames.insert(first(frames, ArtifactFrame), attached(run_id, key, name, data))


def _set_at(frames: Frames, number: int, **more: Any) -> None:
    frames[_at(frames, number)] = replace(frames[_at(frames, number)], **more)


def test_inconsistent_frames_are_refused(other: Holdfast, small: bytes, subtests: pytest.Subtests) -> None:
    for name, change in CHANGES.items():
        with subtests.test(name=name):
            data = changed(small, change)
            assert data != small
            refused(other, data, "cannot be imported: ")


def test_bundle_with_wrong_counts_is_refused(other: Holdfast, small: bytes) -> None:
    *frames, end = frames_of(small)
    for field in end.__struct_fields__:
        wrong = replace(end, **{field: getattr(end, field) + 1})
        refused(other, bundle([*frames, wrong]), "missing")


def test_bundle_with_a_version_of_another_run_is_refused(other: Holdfast, small: bytes) -> None:
    theirs = next(f for f in frames_of(full_bundle()) if isinstance(f, VersionFrame) and f.number == 3)

    def splice(frames: Frames) -> None:
        frames[_at(frames, 3)] = theirs

    refused(other, changed(small, splice), "version 3 .*fails its hash")


def test_bundle_that_changes_between_check_and_import_is_refused(
    other: Holdfast, small: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = changed(small, lambda frames: frames.pop(first(frames, EventFrame)))
    file = io.BytesIO(small)
    write = other._store.import_run
    before = snapshot(other)

    def late(imported: Any) -> Any:
        file.seek(0)
        file.write(second)
        file.truncate()
        return write(imported)

    monkeypatch.setattr(other._store, "import_run", late)
    with pytest.raises(HoldfastError):
        other.import_run(file)
    assert snapshot(other) == before
