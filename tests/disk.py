"""The disk as tests see it: every change that SQLite and Holdfast make to files, to be recorded or to fail.

SQLite is watched through a VFS that inherits the system's; the files that Holdfast writes itself, through the functions
of `os` and `open`. Neither needs anything of the code under test.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import apsw

_BASE = apsw.vfs_names()[0]
_CREATES = apsw.SQLITE_OPEN_CREATE
_LOGS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
#: The error code that SQLite gets for a call that fails, by the kind of the call.
_CODES = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "sync_folder": apsw.SQLITE_IOERR_DIR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
    "create": apsw.SQLITE_CANTOPEN,
}


class Call(NamedTuple):
    """A change of a file that is about to be made."""

    kind: str
    path: str
    offset: int = 0
    data: bytes = b""
    #: The new name, of a rename or a link.
    other: str = ""
    by_sqlite: bool = False


#: Sees each call before it is carried out, and may raise an `OSError`; a write of which a part is to be carried out all
#: the same raises `Short`.
Watcher = Callable[[Call], None]


class Short(OSError):
    """A write that ends after so many bytes because the disk is full."""

    def __init__(self, count: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.count = count


class Disk:
    """Shows all calls below a folder to the watcher, for the length of a `with`. SQLite must have closed its files when
    it ends."""

    def __init__(self, folder: os.PathLike[str] | str, watcher: Watcher) -> None:
        self.folder = os.fspath(folder)
        self.watcher = watcher
        self._stack = ExitStack()

    def __enter__(self) -> Disk:
        self._vfs = _VFS(self)
        apsw.set_default_vfs(_VFS.NAME)
        self._stack.callback(self._vfs.unregister)
        self._stack.callback(apsw.set_default_vfs, _BASE)
        for owner, name, replacement in (
            (os, "fsync", self._fsync),
            (os, "replace", self._two_names("rename", os.replace)),
            (os, "link", self._two_names("link", os.link)),
            (os, "unlink", self._one_name("delete", os.unlink)),
            (os, "mkdir", self._one_name("mkdir", os.mkdir)),
            (os, "open", self._creating(os.open)),
            (builtins, "open", self._writing(open)),
        ):
            self._stack.enter_context(patch.object(owner, name, replacement))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def covers(self, path: str) -> bool:
        """Return whether a file is on this disk."""
        return path.startswith(self.folder)

    def _fsync(self, descriptor: int, real: Callable[[int], None] = os.fsync) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.covers(path):
            self.watcher(Call("sync_folder" if os.path.isdir(path) else "sync", path))
        real(descriptor)

    def _one_name(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *rest: Any, **options: Any) -> None:
            if self.covers(os.fspath(path)):
                self.watcher(Call(kind, os.fspath(path)))
            real(path, *rest, **options)

        return call

    def _two_names(self, kind: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(one: Any, other: Any, **options: Any) -> None:
            if self.covers(os.fspath(one)):
                self.watcher(Call(kind, os.fspath(one), other=os.fspath(other)))
            real(one, other, **options)

        return call

    def _creating(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            if flags & os.O_CREAT and self.covers(os.fspath(path)) and not os.path.lexists(path):
                self.watcher(Call("create", os.fspath(path)))
            return real(path, flags, *rest, **options)

        return opened

    def _writing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return an `open` that watches the writes to files that `os.open` has created."""

        def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if isinstance(file, int) and mode == "wb":
                path = os.readlink(f"/proc/self/fd/{file}")
                if self.covers(path):
                    return _File(file, path, self)
            return real(file, mode, *rest, **options)

        return opened


class _File(io.FileIO):
    """A file that Holdfast writes."""

    def __init__(self, descriptor: int, path: str, disk: Disk) -> None:
        super().__init__(descriptor, "wb")
        self._disk = disk
        self._path = path

    def write(self, data: Any, /) -> int:
        whole = bytes(data)
        try:
            self._disk.watcher(Call("write", self._path, self.tell(), whole))
        except Short as short:
            super().write(whole[: short.count])
            raise
        super().write(whole)
        return len(whole)


class _VFSFile(apsw.VFSFile):
    """A file that SQLite writes."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._path = path if path and disk.covers(path) else None
        if self._path is not None and flags[0] & _CREATES and not os.path.exists(self._path):
            self._watch("create")
        #: SQLite syncs the folder of a log with the log's first sync.
        self._syncs_folder = bool(flags[0] & _CREATES and flags[0] & _LOGS)
        super().__init__(_BASE, name, flags)

    def _watch(self, kind: str, offset: int = 0, data: bytes = b"") -> None:
        if self._path is not None:
            _show(self._disk, Call(kind, self._path, offset, data, by_sqlite=True))

    def xRead(self, amount: int, offset: int) -> bytes:
        self._watch("read", offset)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        try:
            self._watch("write", offset, bytes(data))
        except apsw.FullError as full:
            if isinstance(full.__cause__, Short):
                super().xWrite(bytes(data)[: full.__cause__.count], offset)
            raise
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self._watch("truncate", size)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        self._watch("sync")
        super().xSync(flags)
        if self._syncs_folder:
            self._syncs_folder = False
            if self._path is not None:
                folder = os.path.dirname(self._path)
                _show(self._disk, Call("sync_folder", folder, by_sqlite=True))


class _VFS(apsw.VFS):
    NAME = "holdfast-tests"

    def __init__(self, disk: Disk) -> None:
        super().__init__(self.NAME, _BASE)
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _VFSFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk.covers(filename):
            _show(self._disk, Call("delete", filename, by_sqlite=True))
        super().xDelete(filename, syncdir)
        if syncdir and self._disk.covers(filename):
            _show(self._disk, Call("sync_folder", os.path.dirname(filename), by_sqlite=True))


def _show(disk: Disk, call: Call) -> None:
    try:
        disk.watcher(call)
    except OSError as error:
        full = error.errno == errno.ENOSPC and call.kind in ("write", "truncate")
        raise apsw.exception_for(apsw.SQLITE_FULL if full else _CODES[call.kind]) from error
