"""A copy of a SQLite store, made while it is in use.

Invariant: the copy is the store as it was at one moment, in one file that needs no other, with the artifacts that its
versions hold; it appears under its name when it is complete.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from holdfast.errors import AlreadyExists, InvalidCall, StoreUnavailable
from holdfast.store.artifacts import ArtifactFolder
from holdfast.store.sqlite_artifacts import Artifacts
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link
from holdfast.tree.pack import Upload
from holdfast.whole import PART, put_in_place

#: Pages that are copied at a time.
_PAGES = 1000
_TIMEOUT = 30.0


def backup(
    link: Link, artifacts: Artifacts, path: str | os.PathLike[str], folder: str | os.PathLike[str] | None
) -> None:
    """Copy a store to `path`, where nothing may be, and the contents of its artifact folder to `folder`."""
    target = Path(path).absolute()
    if artifacts.folder is not None and folder is None:
        raise InvalidCall(
            f"{link.path} keeps artifacts in {artifacts.folder.folder}: give artifacts=, a folder for their copies"
        )
    if os.path.lexists(target):
        raise AlreadyExists(f"{path} exists: name a new file for the backup")
    part = target.with_name(PART.replace("*", os.urandom(8).hex()))
    try:
        part.touch(0o600, exist_ok=False)
        with link.errors(), closing(Connection(os.fspath(part), _TIMEOUT)) as copy:
            with link.reader(apart=True) as source:
                work = copy.backup("main", source, "main")
                try:
                    while not work.done:
                        work.step(_PAGES)
                finally:
                    # The error of a step is raised; one that SQLite meets while it ends the copy, on a disk that fails,
                    # must not hide it. (apsw says SystemError where a VFS in Python raises meanwhile.)
                    with suppress(SystemError):
                        work.close(force=True)
            if artifacts.folder is not None and folder is not None:
                _copy_contents(copy, artifacts, ArtifactFolder(folder))
        put_in_place(part, target)
    except FileExistsError as error:
        raise AlreadyExists(f"{path} exists: name a new file for the backup") from error
    except OSError as error:
        raise StoreUnavailable(
            f"the backup cannot be written to {path}: {error.strerror}: check its folder and your rights to it"
        ) from error
    finally:
        for end in ("", "-wal", "-shm", "-journal"):
            # On a disk that fails, what cannot be removed stays; the error that is raised says why.
            with suppress(OSError):
                part.with_name(part.name + end).unlink(missing_ok=True)


def _copy_contents(copy: Connection, artifacts: Artifacts, folder: ArtifactFolder) -> None:
    for digest, size in copy.execute(
        "SELECT digest, size FROM artifact WHERE digest NOT IN (SELECT digest FROM artifact_piece)"
    ):
        if size:
            folder.put(Upload(digest, size, partial(artifacts.pieces, digest)))
