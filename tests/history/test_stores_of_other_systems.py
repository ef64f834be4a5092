"""Stores that were written on another system: time zones and paths."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import pathlib
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import UnknownTimeZone, step, workflow
from holdfast.tree import values
from holdfast.tree.codec import decode, encode
from holdfast.web.errors import problem_for

_ZONE = "Mars/Olympus"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with times in a zone that is not known any more."""
    zones = tmp_path / "zones" / "Mars"
    zones.mkdir(parents=True)
    known = importlib.resources.files("tzdata") / "zoneinfo" / "Europe" / "Berlin"
    (zones / "Olympus").write_bytes(known.read_bytes())
    zoneinfo.reset_tzpath(to=[str(zones.parent)])
    try:
        time = dt.datetime(2026, 11, 17, 8, tzinfo=zoneinfo.ZoneInfo(_ZONE))
        with holdfast.open(tmp_path / "runs.db") as hf:
            hf.history("kept").commit(
                {"n": 1, "when": time, "deep": {"all": [1, (2, time)], "zones": {time.tzinfo}}}
            )
            hf.history("kept").commit({"n": 2, "when": time})
            hf.history("keys").commit({"by time": {time: 1}})
            hf.run(_takes_a_time, time, run_id="flow")
            hf.export_run("keys", tmp_path / "keys.bundle")
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache(only_keys=[_ZONE])
    return iter([tmp_path / "runs.db"])


@step(name="other_systems_step")
def _later(time: dt.datetime) -> Any:
    return {"time": time + dt.timedelta(hours=1)}


@workflow(name="other_systems")
def _takes_a_time(time: dt.datetime) -> Any:
    return _later(time)


@pytest.fixture
def hf(store: Iterator[Path]) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(next(store), create=False) as opened:
        yield opened


def test_unknown_time_zone_is_named_in_the_error(hf: holdfast.Holdfast) -> None:
    for read in (
        lambda: hf.version("kept@1").state,
        lambda: hf.version("kept@1").get("when"),
        lambda: hf.version("kept@1").get("deep.zones"),
        lambda: hf.version("keys@1").state,
        lambda: hf.get("flow").result,
        lambda: hf.version("flow@2").arguments,
    ):
        with pytest.raises(
            UnknownTimeZone, match=r"time zone 'Mars/Olympus' is not known.*pip install -U tzdata"
        ) as raised:
            read()
        assert raised.value.details == {"zone": _ZONE}
    assert problem_for(raised.value)[0]["status"] == 422


def test_unknown_time_zone_leaves_other_values_readable(hf: holdfast.Holdfast, tmp_path: Path) -> None:
    first = hf.version("kept@1")
    assert (first.get("n"), first.get("deep.all[0]")) == (1, 1)
    assert [version.number for version in hf.history("kept").versions()] == [2, 1]
    assert hf.history("kept").blame("n").version.number == 2
    assert hf.get("flow").status == "completed"
    assert len(hf.events()) > 3
    assert hf.verify().problems[1:] == ()
    hf.history("kept").rollback(1)
    hf.fork("kept@1", run_id="fork")
    hf.export_run("kept", tmp_path / "kept.bundle")
    assert hf.import_run(tmp_path / "kept.bundle", run_id="again").head.get("n") == 1


def test_bundle_with_an_unknown_time_zone_is_not_reported_as_damaged(
    hf: holdfast.Holdfast, tmp_path: Path
) -> None:
    with pytest.raises(UnknownTimeZone):
        hf.export_run("keys", tmp_path / "again.bundle")
    with pytest.raises(UnknownTimeZone):
        hf.import_run(tmp_path / "keys.bundle", run_id="again")


def test_edit_of_a_state_with_an_unknown_time_zone_changes_nothing(hf: holdfast.Holdfast) -> None:
    with pytest.raises(UnknownTimeZone), hf.history("kept").edit() as state:
        state["n"] = 5
    assert hf.history("kept").head.number == 2


def test_paths_of_another_system_keep_their_flavour() -> None:
    windows = values.path_classes(pathlib.WindowsPath)
    posix = values.path_classes(pathlib.PosixPath)
    assert windows == {
        "Path": pathlib.PurePosixPath,
        "WindowsPath": pathlib.WindowsPath,
        "PurePosixPath": pathlib.PurePosixPath,
        "PureWindowsPath": pathlib.PureWindowsPath,
    }
    assert posix == {**windows, "Path": pathlib.PosixPath, "WindowsPath": pathlib.PureWindowsPath}
    assert set(posix) == set(values._PATH_NAMES.values())


def test_path_of_windows_is_read_as_a_windows_path() -> None:
    read = values.restore(16, ["WindowsPath", "C:\\data\\a b"])
    assert type(read) is pathlib.PureWindowsPath
    assert read == pathlib.PureWindowsPath("C:/data/a b")
    assert type(decode(encode(read))) is pathlib.PureWindowsPath


def test_path_of_this_system_is_stored_as_path() -> None:
    """Recorded arguments are compared by their bytes."""
    assert b"\xa4Path" in encode(Path("/a"))
    assert type(decode(encode(Path("/a")))) is pathlib.PosixPath
