"""Artifacts of a SQLite store in the database, in a folder, or first in one, then in the other."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import CorruptStore, NotFound, StoreUnavailable
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import ALL, commit, content, digest, history, new_run, upload

_LARGE = content("large", 2_500_000)


def _read(store: SQLiteStore, data: bytes = _LARGE) -> bytes:
    return b"".join(store.artifact_pieces(digest(data)))


def _file(folder: Path, data: bytes = _LARGE) -> Path:
    name = digest(data).hex()
    return folder / name[:2] / name[2:]


def _holding(store: SQLiteStore) -> None:
    commit(store, new_run(), change={"uploads": [upload(_LARGE)], "holds": [digest(_LARGE)]})


def test_artifact_folder_keeps_contents_out_of_the_database(tmp_path: Path) -> None:
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


def test_refused_change_creates_no_artifact(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path / "artifacts")) as store:
        history(store, 1)
        with pytest.raises(Exception, match="another writer"):
            _holding(store)
        assert store.artifact(digest(_LARGE)) is None
        with pytest.raises(NotFound):
            _read(store)


def test_artifact_folder_can_be_added_later(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        _holding(store)
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path / "artifacts")) as store:
        assert _read(store) == _LARGE
        assert not store.put_artifact(upload(_LARGE), 5)
        assert store.put_artifact(upload(b"more"), 5)
        assert _read(store) == _LARGE
        assert _read(store, b"more") == b"more"


def test_missing_artifact_folder_is_named_in_the_error(tmp_path: Path) -> None:
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


def test_damaged_or_missing_artifact_file_is_reported(tmp_path: Path) -> None:
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


def test_artifact_collected_before_the_commit_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        store.put_artifact(upload(_LARGE), 5)
        assert len(list(store._artifacts.place([upload(_LARGE)]))) == 1
        assert store.collect(before=ALL) == (1, len(_LARGE))
        store._database.write(lambda connection: store._artifacts.keep(connection, [upload(_LARGE)], 7))
        assert _read(store) == _LARGE


def test_truncated_artifact_file_is_repaired_by_the_next_upload(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
        _file(folder).write_bytes(_LARGE[:-1])
        store.put_artifact(upload(_LARGE), 5)
        assert _read(store) == _LARGE


def test_artifact_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
    assert _file(folder).stat().st_mode & 0o777 == 0o600


def test_errors_of_the_artifact_folder_are_translated(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        store.put_artifact(upload(_LARGE), 5)
        _file(folder).unlink()
        _file(folder).mkdir()
        with pytest.raises(StoreUnavailable, match="read from"):
            _read(store)
        with pytest.raises(StoreUnavailable, match="written to"):
            store.put_artifact(upload(_LARGE), 6)
        with pytest.raises(StoreUnavailable, match="removed from"):
            store.collect(before=ALL)


def test_artifact_and_its_folders_survive_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is durable after its folder was synced."""
    synchronized: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        synchronized.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    folder = tmp_path / "made" / "artifacts"
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        assert synchronized == [str(tmp_path), str(tmp_path / "made")]
        synchronized.clear()
        _holding(store)
    target = _file(folder)
    above, (part, inside) = synchronized[0], synchronized[1:]
    assert (above, inside) == (str(folder), str(target.parent))
    assert part.endswith(".part")


def test_partial_file_of_a_dead_process_is_deleted_later(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    hour, now = 3600, 1_000_000_000
    with closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        _holding(store)
        left = [_file(folder).with_name(f".holdfast-{name}.part") for name in ("old", "new")]
        for part, age in zip(left, (30 * hour, hour), strict=True):
            part.write_bytes(b"half")
            os.utime(part, (now - age, now - age))
        store.collect(before=now * 1_000_000)
        assert [part.exists() for part in left] == [False, True]
        assert _read(store) == _LARGE
