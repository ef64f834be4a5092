"""Artifacts: handles from bytes, a path or an open file; content read in pieces and verified."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from exact_equality import exactly

import holdfast
from holdfast.errors import IncompatibleFormat, InvalidCall, NotFound, UnsupportedValue
from holdfast.tree.artifact import PIECE, VALUE_MARK, Artifact, artifact
from holdfast.tree.codec import decode, encode

CONTENT = bytes(range(256)) * 3 * (PIECE // 256) + b"the end"
#: Larger than what a handle on an open file keeps in memory.
LARGE = CONTENT * 4


class Pipe(io.RawIOBase):
    """Can be read once, forwards only, in pieces of an odd size."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        return self._content.readinto(memoryview(buffer)[:7919])


def _from_path(content: bytes, folder: Path) -> Artifact:
    path = folder / "report.bin"
    path.write_bytes(content)
    return artifact(path)


def _from_file(content: bytes, folder: Path) -> Artifact:
    path = folder / "file.bin"
    path.write_bytes(content)
    with path.open("rb") as file:
        return artifact(file)


SOURCES: dict[str, Callable[[bytes, Path], Artifact]] = {
    "bytes": lambda content, _: artifact(content),
    "bytearray": lambda content, _: artifact(bytearray(content)),
    "memoryview": lambda content, _: artifact(memoryview(content)),
    "path": _from_path,
    "text path": lambda content, folder: artifact(str(_from_path(content, folder) and folder / "report.bin")),
    "open file": _from_file,
    "memory file": lambda content, _: artifact(io.BytesIO(content)),
    "pipe": lambda content, _: artifact(Pipe(content)),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("content", [b"", b"x", CONTENT, LARGE], ids=["empty", "small", "pieces", "large"])
def test_handle_has_digest_and_size_of_its_content(source: str, content: bytes, tmp_path: Path) -> None:
    handle = SOURCES[source](content, tmp_path)
    assert handle.digest == sha256(content).hexdigest()
    assert handle.size == len(content)
    assert handle.arrives
    for _ in range(2):
        assert handle.read() == content
        pieces = list(handle.pieces())
        assert b"".join(pieces) == content
        assert all(0 < len(piece) <= PIECE for piece in pieces)
    handle.save(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == content


def test_artifact_name_is_checked() -> None:
    assert artifact(b"x").name is None
    assert artifact(b"x", "a.txt").name == "a.txt"
    assert artifact(io.BytesIO(b"x"), "b").name == "b"
    assert artifact(Path(__file__)).name == "test_artifact.py"
    assert artifact(__file__, "other").name == "other"


def test_file_is_read_from_its_current_position(tmp_path: Path) -> None:
    file = io.BytesIO(b"headbody")
    file.seek(4)
    assert artifact(file).read() == b"body"


def test_open_file_may_be_closed_afterwards(tmp_path: Path) -> None:
    handle = _from_file(LARGE, tmp_path)
    (tmp_path / "file.bin").unlink()
    assert handle.read() == LARGE


@pytest.mark.parametrize("content", ["", "text"])
def test_file_in_text_mode_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(content)
    with path.open() as file, pytest.raises(InvalidCall, match="binary mode"):
        artifact(file)
    with pytest.raises(InvalidCall, match="binary mode"):
        artifact(io.StringIO(content))


def test_non_blocking_file_without_data_is_refused() -> None:
    class Waiting(io.RawIOBase):
        def read(self, _: int = -1) -> None:
            return None

    with pytest.raises(InvalidCall):
        artifact(Waiting())


def test_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.bin", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(NotFound, match="cannot read") as caught:
            artifact(path)
        assert caught.value.details["path"] == str(path)
        assert "A str is" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "some text", "two\nlines", "a\0b", "x" * 100_000])
def test_text_that_is_not_a_path_is_refused_with_advice(text: str) -> None:
    with pytest.raises(
        NotFound, match=r"A str is the path of a file; .* \[text\] or text\.encode\(\)$"
    ) as caught:
        artifact(text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("source", [object(), artifact, [1, lambda: None], {"a": {"b": artifact(b"x")}}])
def test_value_that_cannot_be_stored_is_refused(source: Any) -> None:
    with pytest.raises(UnsupportedValue):
        artifact(source)


def test_value_is_read_back_exactly() -> None:
    for value in (
        *(5, None, [], {}, True, -0.0, 10**30, (1, [2, {3}]), {"b": 1, "a": 2, 3: None}),
        [float(number) / 3 for number in range(10_000)],
        [b"bytes", "text\ud800"],
        {"nested": [{"deep": [1.0, 1, True]}]},
    ):
        loaded = artifact(value, "named").load()
        assert repr(loaded) == repr(value)
        assert type(loaded) is type(value)


def test_value_is_a_copy() -> None:
    value = {"numbers": [1, 2]}
    made = artifact(value)
    value["numbers"].append(3)
    first = made.load()
    first["numbers"].clear()
    assert made.load() == {"numbers": [1, 2]}


def test_equal_values_have_equal_handles() -> None:
    assert artifact([1.0, 2.0]) == artifact([1.0, 2.0])
    for other in ([1, 2], (1.0, 2.0), [2.0, 1.0]):
        assert artifact([1.0, 2.0]).digest != artifact(other).digest


def test_bytes_are_not_a_value() -> None:
    with pytest.raises(InvalidCall, match=r"contains bytes, not a value: call read\(\)"):
        artifact(b"[1]").load()
    # Bytes that look like one are read as such, or refused with a typed error.
    for content in (b"", b"\xc1", b"\x91" * 10_000, b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(IncompatibleFormat):
            artifact(VALUE_MARK + content).load()


def test_changed_file_is_refused(tmp_path: Path) -> None:
    handle = _from_path(CONTENT, tmp_path)
    (tmp_path / "report.bin").write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(InvalidCall, match=r"report\.bin has changed"):
        handle.read()
    file = handle.open()
    got: list[bytes] = []
    with pytest.raises(InvalidCall):
        got.extend(iter(lambda: file.read(1000), b""))
    assert sum(map(len, got)) < len(CONTENT)
    (tmp_path / "report.bin").unlink()
    with pytest.raises(NotFound, match="cannot read"):
        handle.read()


def test_open_reads_on_demand() -> None:
    given = 0

    def pieces() -> Any:
        nonlocal given
        for _ in range(1000):
            given += 1
            yield b"x" * PIECE

    handle = Artifact("ab" * 32, 1000 * PIECE, None, pieces)
    with handle.open() as file:
        assert file.read(10) == b"x" * 10
        assert given <= 2
        assert len(file.read(3 * PIECE)) == 3 * PIECE
        assert given <= 5


@pytest.mark.parametrize("source", SOURCES)
def test_open_returns_a_binary_file(source: str, tmp_path: Path) -> None:
    content = b"line 1\nline 2\n" + CONTENT
    with SOURCES[source](content, tmp_path).open() as file:
        assert file.readable()
        assert not file.writable()
        assert file.readline() == b"line 1\n"
        assert file.readline() == b"line 2\n"
        assert file.read() == CONTENT
        assert file.read() == b""


def test_open_skips_empty_pieces() -> None:
    handle = Artifact("ab" * 32, 2, None, lambda: iter([b"", b"a", b"", b"b", b""]))
    assert handle.open().read() == b"ab"


@pytest.mark.parametrize("source", SOURCES)
def test_concurrent_readers_are_independent(source: str, tmp_path: Path) -> None:
    handle = SOURCES[source](LARGE, tmp_path)
    one, other = handle.pieces(), handle.pieces()
    mixed = [b"", b""]
    for left, right in zip(one, other, strict=True):
        mixed[0] += left
        mixed[1] += right
    assert mixed == [LARGE, LARGE]


def test_readers_in_threads_are_independent() -> None:
    handle = artifact(io.BytesIO(LARGE))
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(handle.read() == LARGE)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8


def test_handles_are_equal_by_content_and_name() -> None:
    assert artifact(b"x") == artifact(io.BytesIO(b"x"))
    assert hash(artifact(b"x")) == hash(artifact(b"x", "n"))
    assert artifact(b"x") != artifact(b"x", "n")
    assert artifact(b"x") != artifact(b"y")
    assert artifact(b"x") != "x"
    assert repr(artifact(b"x", "n")) == f"<Artifact 'n' {sha256(b'x').hexdigest()[:12]} 1 bytes>"
    assert repr(artifact(b"")) == f"<Artifact {sha256(b'').hexdigest()[:12]} 0 bytes>"


def test_state_contains_only_the_handle() -> None:
    handle = artifact(CONTENT, "big.bin")
    data = encode({"doc": handle})
    assert len(data) < 200
    read = decode(data)["doc"]
    assert exactly(read, handle)
    assert not read.arrives
    for use in (read.read, read.open, read.pieces, lambda: read.save(os.devnull)):
        with pytest.raises(NotFound, match="not bound to a store"):
            use()


def test_artifact_accepts_the_file_of_open(tmp_path: Path) -> None:
    first: BinaryIO = artifact(CONTENT).open()
    assert artifact(first).read() == CONTENT


@pytest.mark.parametrize(
    "handle",
    [
        Artifact("zz" * 32, 5),
        Artifact("ab", 5),
        Artifact(5, 5),  # type: ignore[arg-type]
        Artifact("ab" * 32, -1),
        Artifact("ab" * 32, "5"),  # type: ignore[arg-type]
        Artifact("ab" * 32, 5, 5),  # type: ignore[arg-type]
    ],
)
def test_invalid_handle_is_not_written(handle: Artifact) -> None:
    with holdfast.open(":memory:") as hf:
        for value in (handle, {"a": [handle]}, {"a": (handle,)}):
            with pytest.raises(UnsupportedValue, match="Artifact cannot be split into parts"):
                hf.history("run").commit(value)
        assert hf.runs() == []


def test_name_of_a_handle_is_a_string() -> None:
    with pytest.raises(InvalidCall, match="name"):
        artifact(b"content", name=5)  # type: ignore[arg-type]
