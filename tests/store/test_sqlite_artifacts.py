"""Where SQLite's store keeps contents: in the database, in a folder, or first in one, then in the other."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptStore, NotFound
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.samples import ALL, commit, content, digest, history, new_run, upload

_LARGE = content("large", 2_500_000)


def _read(store: SQLiteStore, data: bytes = _LARGE) -> bytes:
    return b"".join(store.artifact_pieces(digest(data)))


def _file(folder: Path, data: bytes = _LARGE) -> Path:
    name = digest(data).hex()
    return folder / name[:2] / name[2:]


def _holding(store: SQLiteStore) -> None:
    commit(store, new_run(), change={"uploads": [upload(_LARGE)], "holds": [digest(_LARGE)]})


def test_a_folder_keeps_contents_out_of_the_database(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
        assert _file(folder).read_bytes() == _LARGE
        assert (store.stats().file_bytes or 0) < len(_LARGE) / 4
        run = store.run("run")
        assert run is not None
        store.delete_run(run)
        assert store.collect(before=ALL) == (1, len(_LARGE))
        assert not _file(folder).exists()


def test_a_refused_change_makes_no_artifact_of_its_file(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path / "artifacts")) as store:
        history(store, 1)
        with pytest.raises(Exception, match="another writer"):
            _holding(store)
        assert store.artifact(digest(_LARGE)) is None
        with pytest.raises(NotFound):
            _read(store)


def test_a_folder_can_be_taken_up_later(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        _holding(store)
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path / "artifacts")) as store:
        assert _read(store) == _LARGE
        assert not store.put_artifact(upload(_LARGE), 5)
        assert store.put_artifact(upload(b"more"), 5)
        assert _read(store) == _LARGE
        assert _read(store, b"more") == b"more"


def test_a_folder_that_was_not_named_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
        store.put_artifact(upload(b""), 5)
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        with pytest.raises(NotFound, match="artifacts="):
            _read(store)
        assert _read(store, b"") == b""
        store.put_artifact(upload(_LARGE), 5)
        assert _read(store) == _LARGE


def test_a_damaged_or_missing_file_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
        _file(folder).write_bytes(_LARGE[:-1] + b"?")
        pieces = store.artifact_pieces(digest(_LARGE))
        handed_out = [next(pieces), next(pieces)]
        with pytest.raises(CorruptStore):
            next(pieces)
        assert b"".join(handed_out) == _LARGE[: 2 << 20]
        _file(folder).unlink()
        with pytest.raises(NotFound):
            _read(store)
        store.put_artifact(upload(_LARGE), 5)
        assert _read(store) == _LARGE


def test_what_was_collected_between_placing_and_commit_is_placed_again(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        store.put_artifact(upload(_LARGE), 5)
        store._artifacts.place([upload(_LARGE)])
        assert store.collect(before=ALL) == (1, len(_LARGE))
        store._link.write(lambda connection: store._artifacts.keep(connection, [upload(_LARGE)], 7))
        assert _read(store) == _LARGE
