"""`holdfast export` and `holdfast import`"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from filled_store import LONG, SampleStore
from terminal import PROGRAM, environment

import holdfast
from holdfast.cli.commands.export import file_name


def test_export_prints_a_version_as_json(sample: SampleStore) -> None:
    out = sample.pipe("export", "report-1@3")
    assert out.count("\n") == 1
    document = json.loads(out)
    assert holdfast.validate(document)
    assert document["version"] == 3
    assert json.loads(sample.screen("export", "counted@1")) == sample.json("export", "counted@1")
    assert sample.screen("export", "counted@1").startswith('{\n  "format": "holdfast.snapshot",')


def test_export_prints_several_versions_as_lines(sample: SampleStore) -> None:
    lines = sample.pipe("export", "report-1@3", "hand:good", "counted~1").splitlines()
    assert [(each["run"], each["version"]) for each in map(json.loads, lines)] == [
        ("report-1", 3), ("hand", 7), ("counted", 5),
    ]  # fmt: skip


def test_export_overwrites_a_file_only_with_force(own: SampleStore) -> None:
    assert own.pipe("export", "hand", "-o", "hand.json") == "1 file written to hand.json\n"
    written = (own.folder / "hand.json").read_bytes()
    reported = own.screen("export", "counted", "-o", "hand.json", code=4)
    assert "hand.json exists: overwrite it with --force" in reported
    assert (own.folder / "hand.json").read_bytes() == written
    own.pipe("export", "counted", "-o", "hand.json", "--force")
    assert (own.folder / "hand.json").read_bytes() != written


def test_export_all_can_be_imported_into_another_store(own: SampleStore) -> None:
    backup = own.folder / "backup"
    assert "files written to" in own.screen("export", "--bundle", "--all", "-o", str(backup))
    known = own.json("runs")
    assert len(list(backup.iterdir())) == len(known)
    imported = own.pipe("import", str(backup), "--store", "new.db").splitlines()
    assert sorted(imported) == sorted(run["id"] for run in known)
    new = SampleStore(own.folder / "new")
    new.folder.mkdir()
    (own.folder / "new.db").rename(new.store)
    assert {run["id"]: run["versions"] for run in new.json("runs")} == {
        run["id"]: run["versions"] for run in known
    }
    assert new.json("verify")["ok"] is True
    assert new.json("show", "hand:good") == own.json("show", "hand:good")
    assert new.json("log", "hand") == own.json("log", "hand")


def test_import_under_another_run_id(own: SampleStore) -> None:
    own.call("export", "--bundle", "hand", "-o", str(own.folder / "hand.holdfast"))
    assert own.pipe("import", "hand.holdfast", "--run-id", "hand-2") == "hand-2\n"
    assert len(own.json("log", "hand-2")) == 9
    own.call("export", "hand@4", "-o", str(own.folder / "four.json"))
    found = json.loads(own.pipe("import", "four.json", "--run-id", "four", "--json"))
    assert found == {"imported": [{"file": "four.json", "run": "four"}], "refused": []}
    assert own.json("show", "four", "--state") == own.json("show", "hand@4", "--state")
    assert own.json("show", "four")["kind"] == "import"


def test_import_never_overwrites_a_run(own: SampleStore) -> None:
    file = str(own.folder / "hand.json")
    own.call("export", "hand@4", "-o", file)
    reported = own.refused("import", file, code=4)
    assert reported == "run 'hand' exists: import it under another id with --run-id, or delete it first"
    assert len(own.json("log", "hand")) == 9


def test_import_of_many_files_skips_the_unreadable(own: SampleStore) -> None:
    folder = own.folder / "many"
    own.call("export", "hand", "counted", "-o", str(folder))
    own.call("delete", "counted", "-y")
    (folder / "broken.json").write_text('{"format": "holdfast.snapshot"')
    (folder / "other.txt").write_text("not looked at")
    done = own.call("import", str(folder))
    assert done.code == 6, "of the first that was refused"
    assert done.out == "counted\n"
    assert [line.rpartition("/")[2].split(":")[0] for line in done.err.splitlines()] == [
        "broken.json", "hand.json",
    ]  # fmt: skip
    assert len(own.json("import", str(folder), code=6)["refused"]) == 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"{",
        b"holdfast",
        b'{"format": 1}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 9999,
    ],
)
def test_import_of_another_file_is_refused(own: SampleStore, content: bytes) -> None:
    (own.folder / "bad").write_bytes(content)
    assert own.refused("import", str(own.folder / "bad"), code=6)


def test_import_of_a_changed_snapshot_is_refused(own: SampleStore) -> None:
    text = own.call("export", "hand@4").out
    changed = own.folder / "changed.json"
    changed.write_text(text.replace('"n": 3', '"n": 4').replace('"hand"', '"changed"'))
    assert own.refused("import", str(changed), code=6)
    assert own.refused("log", "changed", code=3)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (["export"], 2, "name what to export, or use --all"),
        (["export", "hand", "--all"], 2, "name what to export, or use --all"),
        (["export", "--bundle", "hand"], 2, "use -o PATH"),
        (["export", "nosuch"], 3, "no run 'nosuch'"),
        (["export", "hand@99", "-o", "x.json"], 3, "no version 99"),
        (["export", "hand", "-o", "/nosuch/folder/x.json"], 74, "/nosuch/folder/x.json: No such file"),
        (["export", "--bundle", "hand", "-o", "/nosuch/folder/x"], 74, "/nosuch/folder/x: No such file"),
        (["import"], 2, "missing argument"),
        (["import", "nosuch.json"], 74, "nosuch.json: No such file"),
        (["import", "/", "/", "--run-id", "a"], 2, "--run-id is for a single file"),
    ],
)
def test_export_and_import_usage_errors_are_reported(
    sample: SampleStore, arguments: list[str], code: int, reported: str
) -> None:
    assert reported in sample.refused(*arguments, code=code)


def test_export_of_several_needs_a_folder(own: SampleStore) -> None:
    (own.folder / "file").write_text("")
    reported = own.refused("export", "hand", "counted", "-o", str(own.folder / "file"), code=74)
    assert "file: File exists" in reported


@pytest.mark.parametrize("ref", ["../../etc/passwd", "a/b", ".hidden", "a:b", "語", LONG, "con?*|", "a\\b"])
def test_export_file_names_stay_in_their_folder(ref: str) -> None:
    name = file_name(ref, ".json")
    assert Path(name).name == name
    assert not name.startswith(".")
    assert len(name.encode()) < 200
    assert not set(name) & set('\\:*?"<>|')
    assert file_name(ref + "x", ".json") != name
    assert file_name("." + ref, ".json") != name


def test_export_of_similar_ids_writes_separate_files(own: SampleStore) -> None:
    with own.open() as hf:
        for name in ("a", ".a", "..a", "%2Ea"):
            hf.history(name).commit({"name": name})
    backup = own.folder / "backup"
    for _ in range(2):
        own.call("export", "--bundle", "a", ".a", "..a", "%2Ea", "-o", str(backup), "--force")
    assert sorted(path.name for path in backup.iterdir()) == sorted(
        f"{name}.holdfast" for name in ("a", "%2Ea", "%2E.a", "%252Ea")
    )
    imported = own.pipe("import", str(backup), "--store", "new.db").split()
    assert sorted(imported) == sorted(["a", ".a", "..a", "%2Ea"])


def test_export_writes_nothing_if_one_file_exists(own: SampleStore) -> None:
    backup = own.folder / "backup"
    backup.mkdir()
    (backup / "hand.json").write_text("precious")
    assert "hand.json exists" in own.refused("export", "counted", "hand", "-o", str(backup), code=4)
    assert [path.name for path in backup.iterdir()] == ["hand.json"]
    assert (backup / "hand.json").read_text() == "precious"


def test_export_writes_duplicates_once(own: SampleStore) -> None:
    found = own.json("export", "--bundle", "hand", "han", "hand", "-o", str(own.folder / "hand.holdfast"))
    assert [each["ref"] for each in found["exported"]] == ["hand"]
    assert own.pipe("export", "hand@4", "hand@4").count("\n") == 1


def test_export_keeps_other_files_and_follows_links(own: SampleStore) -> None:
    (own.folder / "hand.json.part").write_text("precious")
    real = own.folder / "real.json"
    real.write_text("old")
    real.chmod(0o640)
    (own.folder / "hand.json").symlink_to(real)
    own.pipe("export", "hand", "-o", "hand.json", "--force")
    assert (own.folder / "hand.json").is_symlink()
    assert json.loads(real.read_text(encoding="utf-8"))["run"] == "hand"
    assert real.stat().st_mode & 0o777 == 0o640
    assert (own.folder / "hand.json.part").read_text() == "precious"
    assert not list(own.folder.glob(".holdfast-*"))


def test_export_writes_utf_8_in_every_locale(own: SampleStore) -> None:
    own.pipe("export", LONG, "-o", "long.json", PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert "海" in (own.folder / "long.json").read_text(encoding="utf-8")


def test_export_output_can_be_imported(own: SampleStore) -> None:
    lines = own.pipe("export", "hand@4", "counted", "report-1")
    (own.folder / "three.json").write_text(lines, encoding="utf-8")
    assert own.pipe("import", "three.json", "--store", "new.db").split() == ["hand", "counted", "report-1"]
    assert own.pipe("import", "-", "--store", "other.db", stdin=lines).split() == [
        "hand",
        "counted",
        "report-1",
    ]
    indented = "".join(json.dumps(json.loads(line), indent=2) + "\n" for line in lines.splitlines())
    (own.folder / "indented.json").write_text(indented)
    done = own.call("import", str(own.folder / "indented.json"))
    assert (done.code, done.out) == (4, "nothing was imported\n"), "all of them are here"
    assert "--run-id is for a single run" in own.refused(
        "import", str(own.folder / "three.json"), "--run-id", "a", code=2
    )


def test_import_reads_a_bundle_from_standard_input(own: SampleStore) -> None:
    own.call("export", "--bundle", "hand", "-o", str(own.folder / "hand.holdfast"))
    with (own.folder / "hand.holdfast").open("rb") as file:
        command = [*PROGRAM, "import", "-", "--run-id", "again"]
        done = subprocess.run(
            command, cwd=own.folder, env=environment(), stdin=file, capture_output=True, text=True, check=True
        )
    assert done.stdout == "again\n"


@pytest.mark.parametrize("content", [None, b"", b"{}", b"holdfast", b'{"format": 1}'])
def test_import_creates_no_store_for_invalid_files(bare: SampleStore, content: bytes | None) -> None:
    if content is not None:
        (bare.folder / "bad.json").write_bytes(content)
    bare.refused("import", str(bare.folder / "bad.json"), code=74 if content is None else 6)
    assert not (bare.folder / "holdfast.db").exists()


def test_import_of_an_empty_folder_is_refused(bare: SampleStore) -> None:
    (bare.folder / "other.txt").write_text("not looked at")
    assert "nothing to import in" in bare.refused("import", str(bare.folder), code=3)
    assert not (bare.folder / "holdfast.db").exists()


def test_import_reports_a_missing_file_among_others(own: SampleStore) -> None:
    own.call("export", "hand@4", "-o", str(own.folder / "four.json"))
    own.call("delete", "hand", "-y")
    done = own.call("import", "nosuch.json", str(own.folder / "four.json"))
    assert (done.code, done.out, done.err) == (74, "hand\n", "nosuch.json: No such file or directory\n")


def test_export_bundle_of_a_version_is_refused(own: SampleStore) -> None:
    done = own.call("export", "--bundle", "report-1@2", "-o", "x")
    assert done.code == 2
    assert "report-1@2 is a version, but a run is expected" in done.err
