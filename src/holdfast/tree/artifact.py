"""A handle on a large value that is kept beside the state, under the hash of its content.

In state lies only the handle: digest, size, name. Its content is read when asked for, in pieces, so that it
may be larger than memory. `artifact(…)` makes a handle from bytes, a path or an open binary file; the content
enters the store with the commit that first holds the handle.

Invariant: `digest` is the SHA-256 of the content; what does not match is never handed out as if it did.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import InvalidCall, NotFound
from holdfast.whole import whole

PIECE = 1 << 20

Pieces = Callable[[], Iterator[bytes]]


class Artifact:
    """A large value under the hash of its content. Two handles on the same content, under the same name, are equal."""

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
        #: Is its content on the way into a store, with the next commit?
        self.arrives = arrives

    def bind(self, pieces: Pieces) -> None:
        """Say where the content can be read."""
        self._pieces = pieces

    def pieces(self) -> Iterator[bytes]:
        """The content in pieces of at most 1 MiB."""
        if self._pieces is None:
            raise NotFound(
                f"artifact {self.digest[:12]} is bound to no store: read it from a version, "
                "or with hf.artifact(digest)",
                artifact=self.digest,
            )
        return self._pieces()

    def read(self) -> bytes:
        """The whole content."""
        return b"".join(self.pieces())

    def open(self) -> BinaryIO:
        """The content as a binary file, read as it is needed."""
        return io.BufferedReader(_PieceReader(self.pieces()), PIECE)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the content to a file, which takes the place of what is there when it is complete and checked."""
        pieces = self.pieces()
        try:
            with whole(Path(path), overwrite=True) as file:
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


def artifact(source: bytes | str | os.PathLike[str] | BinaryIO, name: str | None = None) -> Artifact:
    """A handle on the content of bytes, of the file at a path, or of an open binary file."""
    if name is not None and not isinstance(name, str):
        raise InvalidCall(f"the name of an artifact is a string, not {type(name).__name__}")
    if isinstance(source, bytes | bytearray | memoryview):
        content = bytes(source)
        digest = sha256(content).hexdigest()
        return Artifact(digest, len(content), name, lambda: _slices(content), arrives=True)
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        try:
            # The same file wherever the process goes before it is committed.
            path = path.absolute()
            digest, size = _measure(_read_file(path))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error
        return Artifact(digest, size, name or path.name, lambda: _read_again(path, digest), arrives=True)
    if isinstance(source, io.TextIOBase):
        raise InvalidCall(_TEXT_MODE)
    if hasattr(source, "read"):
        return _spool(source, name)
    raise InvalidCall(f"artifact takes bytes, a path or an open binary file, not {type(source).__name__}")


_TEXT_MODE = "artifact takes a file opened in binary mode ('rb')"


def _spool(source: BinaryIO, name: str | None) -> Artifact:
    import tempfile

    spool = tempfile.SpooledTemporaryFile(max_size=8 * PIECE)  # noqa: SIM115 - lives as long as the handle
    hashed = sha256()
    size = 0
    while (piece := source.read(PIECE)) != b"":
        if not isinstance(piece, bytes):
            raise InvalidCall(_TEXT_MODE)
        hashed.update(piece)
        size += len(piece)
        spool.write(piece)
    turn = threading.Lock()

    def pieces() -> Iterator[bytes]:
        """Several readers may be under way: each knows its own place."""
        at = 0
        while at < size:
            with turn:
                spool.seek(at)
                piece = spool.read(PIECE)
            at += len(piece)
            yield piece

    return Artifact(hashed.hexdigest(), size, name, pieces, arrives=True)


def _read_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _read_again(path: Path, digest: str) -> Iterator[bytes]:
    """The file once more; what has changed in the meantime is not passed off as the content."""
    hashed = sha256()
    held = b""
    try:
        for piece in _read_file(path):
            hashed.update(piece)
            if held:
                yield held
            held = piece
    except OSError as error:
        raise _unreadable(path, error) from error
    if hashed.hexdigest() != digest:
        raise InvalidCall(
            f"{path} has changed since it became an artifact: make the artifact anew", path=str(path)
        )
    if held:
        yield held


def _slices(content: bytes) -> Iterator[bytes]:
    return (content[at : at + PIECE] for at in range(0, len(content), PIECE))


def _unreadable(path: Path, error: Exception) -> NotFound:
    why = getattr(error, "strerror", None) or error
    return NotFound(f"cannot read {path} for an artifact: {why}", path=str(path))


def _measure(pieces: Iterator[bytes]) -> tuple[str, int]:
    hashed = sha256()
    size = 0
    for piece in pieces:
        hashed.update(piece)
        size += len(piece)
    return hashed.hexdigest(), size


class _PieceReader(io.RawIOBase):
    """Pieces as a raw file."""

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
