"""Artifacts: handles of large values that are stored outside of the state, under the hash of their content.

The state contains only the handle: digest, size, name. The content is read on demand, in pieces, and may be larger
than memory. `artifact(…)` makes a handle from bytes, a path, an open binary file, or any other value that can be
stored: its content is then the encoded value, after a mark. The commit that first contains the handle writes the
content to the store.

Invariant: `digest` is the SHA-256 of the content; content that does not match is never returned.
Invariant: an artifact of a value is a copy: a later change of the value does not change it.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.atomic_file import write_atomically
from holdfast.errors import IncompatibleFormat, InvalidCall, NotFound, UnsupportedValue

PIECE = 1 << 20
#: The start of content that is an encoded value.
VALUE_MARK = b"holdfast value 1\n"
#: Characters of a path in a message.
_LONGEST_SHOWN = 200

Pieces = Callable[[], Iterator[bytes]]


class Artifact:
    """A handle of a large value. Handles with the same content and name are equal."""

    __slots__ = ("_pieces", "arrives", "digest", "name", "size")

    def __init__(
        self,
        digest: str,
        size: int,
        name: str | None = None,
        pieces: Pieces | None = None,
        arrives: bool = False,
    ) -> None:
        #: SHA-256 of the content, in hexadecimal digits.
        self.digest = digest
        self.size = size
        self.name = name
        self._pieces = pieces
        #: Whether the next commit writes the content to the store.
        self.arrives = arrives

    def bind(self, pieces: Pieces) -> None:
        """Set the source of the content."""
        self._pieces = pieces

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces of at most 1 MiB."""
        if self._pieces is None:
            raise NotFound(
                f"artifact {self.digest[:12]} is not bound to a store: read it from a version, "
                "or with hf.artifact(digest)",
                artifact=self.digest,
            )
        return self._pieces()

    def read(self) -> bytes:
        """Return the content."""
        return b"".join(self.pieces())

    def load(self) -> Any:
        """Return the value that `artifact` was given, as a copy of its own. `InvalidCall` if the content is not a value
        but bytes, which `read` returns."""
        from holdfast.tree.codec import decode

        content = self.read()
        if not content.startswith(VALUE_MARK):
            raise InvalidCall(
                f"artifact {self.digest[:12]} contains bytes, not a value: call read()", artifact=self.digest
            )
        return decode(memoryview(content)[len(VALUE_MARK) :])

    def open(self) -> BinaryIO:
        """Return the content as a binary file that is read on demand."""
        return io.BufferedReader(_PieceReader(self.pieces()), PIECE)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a file; an existing file is replaced once the content is complete and verified."""
        pieces = self.pieces()
        try:
            with write_atomically(Path(path), overwrite=True) as file:
                for piece in pieces:
                    file.write(piece)
        except OSError as error:
            raise InvalidCall(f"{path} cannot be written: {error.strerror}", path=str(path)) from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Artifact) and (self.digest, self.name) == (other.digest, other.name)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Artifact{name} {self.digest[:12]} {self.size} bytes>"


def artifact(source: Any, name: str | None = None) -> Artifact:
    """Return a handle of bytes, of the file at a path (a `str` is a path), of an open binary file, or of any other
    value that can be stored: a list, a dict, an array, an object of a registered class. `read` returns the content of
    bytes and files, `load` the value. Equal values are stored once."""
    if name is not None and not isinstance(name, str):
        raise InvalidCall(f"the name of an artifact is a string, not {type(name).__name__}")
    if isinstance(source, bytes | bytearray | memoryview):
        return _of_content(bytes(source), name)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            # The working directory may change before the commit.
            path = path.absolute()
            digest, size = _measure(_read_file(path))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error, _TEXT if isinstance(source, str) else "") from error
        return Artifact(digest, size, name or path.name, lambda: _read_again(path, digest), arrives=True)
    if isinstance(source, io.TextIOBase):
        raise InvalidCall(_TEXT_MODE)
    if hasattr(source, "read"):
        return _spool(source, name)
    return _of_value(source, name)


_TEXT = ". A str is the path of a file; to make an artifact of a text, give [text] or text.encode()"
_TEXT_MODE = "artifact takes a file opened in binary mode ('rb')"


def without_secrets(made: Artifact, hides: Callable[[Any], bool]) -> Artifact:
    """Return a new artifact of a value with secrets redacted: itself if there are none."""
    from holdfast.tree.codec import encode

    if not made.arrives or not next(made.pieces(), b"").startswith(VALUE_MARK):
        return made
    try:
        value = made.load()
    except IncompatibleFormat:
        # Bytes that only start like a value.
        return made
    content = VALUE_MARK + encode(value, hides)
    redacted = _of_content(content, made.name)
    return made if redacted.digest == made.digest else redacted


def _of_value(value: Any, name: str | None) -> Artifact:
    from holdfast.tree.codec import artifacts_in, encode
    from holdfast.tree.fold import Folder

    # A draft is encoded as it is now, and continues.
    data = encode(Folder(None, consume=False).fold(value))
    if next(artifacts_in(data), None) is not None:
        raise UnsupportedValue(
            "an artifact cannot contain another one, which the store would not find in it: put both into the state"
        )
    return _of_content(VALUE_MARK + data, name)


def _of_content(content: bytes, name: str | None) -> Artifact:
    return Artifact(sha256(content).hexdigest(), len(content), name, lambda: _slices(content), arrives=True)


def _spool(source: BinaryIO, name: str | None) -> Artifact:
    import tempfile

    spool = tempfile.SpooledTemporaryFile(max_size=8 * PIECE)  # noqa: SIM115 - lives as long as the handle

    def copy() -> Iterator[bytes]:
        while (piece := source.read(PIECE)) != b"":
            if not isinstance(piece, bytes):
                raise InvalidCall(_TEXT_MODE)
            spool.write(piece)
            yield piece

    digest, size = _measure(copy())
    lock = threading.Lock()

    def pieces() -> Iterator[bytes]:
        """Yield the content; each of several concurrent readers has its own position."""
        at = 0
        while at < size:
            with lock:
                spool.seek(at)
                piece = spool.read(PIECE)
            at += len(piece)
            yield piece

    return Artifact(digest, size, name, pieces, arrives=True)


def _read_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _read_again(path: Path, digest: str) -> Iterator[bytes]:
    """Yield the content of the file again; raise before the last piece if the file has changed."""
    hashed = sha256()
    last = b""
    try:
        for piece in _read_file(path):
            hashed.update(piece)
            if last:
                yield last
            last = piece
    except OSError as error:
        raise _unreadable(path, error) from error
    if hashed.hexdigest() != digest:
        raise InvalidCall(
            f"{path} has changed since it became an artifact: create the artifact again", path=str(path)
        )
    if last:
        yield last


def _slices(content: bytes) -> Iterator[bytes]:
    return (content[at : at + PIECE] for at in range(0, len(content), PIECE))


def _unreadable(path: Path, error: Exception, hint: str = "") -> NotFound:
    why = getattr(error, "strerror", None) or error
    shown = str(path)
    shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
    return NotFound(f"cannot read {shown} for an artifact: {why}{hint}", path=str(path))


def _measure(pieces: Iterator[bytes]) -> tuple[str, int]:
    hashed = sha256()
    size = 0
    for piece in pieces:
        hashed.update(piece)
        size += len(piece)
    return hashed.hexdigest(), size


class _PieceReader(io.RawIOBase):
    """A raw file of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
