"""`holdfast init` and `holdfast migrate`"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

from filled_store import STORE, SampleStore
from in_process import call
from terminal import Terminal

from holdfast.store.sqlite.schema import migrations

NEWEST = len(migrations())
OLD = Path(__file__).parent.parent / "compat" / "format-1.sqlite"


def test_init_creates_a_store(bare: SampleStore) -> None:
    reported = bare.pipe("init")
    assert reported == 'created holdfast.db: hf = holdfast.open("holdfast.db"), then `holdfast runs`\n'
    assert bare.pipe("runs") == ""
    assert "found" in bare.pipe("init"), "a second time nothing happens"
    assert json.loads(bare.pipe("init", "--json")) == {"store": STORE, "created": False}


def test_init_announces_the_change(bare: SampleStore) -> None:
    (bare.folder / "pyproject.toml").write_text('[project]\nname = "kelp"\n')
    asked = Terminal("init", cwd=bare.folder).until("Go ahead? [y/N]")
    assert "create a store at holdfast.db" in asked.text
    assert "add a table [tool.holdfast] with its location to pyproject.toml" in asked.text
    assert asked.type("n\n").end() == 1
    assert not (bare.folder / STORE).exists()
    assert bare.pipe("init", "--dry-run").startswith("create a store at holdfast.db\n")
    assert not (bare.folder / STORE).exists()


def test_init_records_the_store_in_the_project_file(bare: SampleStore) -> None:
    config = bare.folder / "pyproject.toml"
    config.write_text('[project]\nname = "kelp"  # a comment')
    bare.pipe("init", "runs.db", "-y")
    text = config.read_text()
    assert text.startswith('[project]\nname = "kelp"  # a comment\n')
    assert tomllib.loads(text)["tool"] == {"holdfast": {"store": "runs.db"}}
    below = bare.folder / "below"
    below.mkdir()
    assert SampleStore(below).pipe("runs") == "", "the store of the project, from a folder below it"
    bare.pipe("init", "-y")
    assert config.read_text() == text


def test_init_accepts_a_store_url(bare: SampleStore) -> None:
    assert "created" in bare.pipe("init", "sqlite:///runs.db")
    assert "found" in bare.pipe("init", "sqlite:///runs.db")


def test_init_preserves_the_rest_of_the_project_file(bare: SampleStore) -> None:
    config = bare.folder / "pyproject.toml"
    before = '[project]\r\nname = "kelp"\r\ndescription = "海 é"\r\n\r\n'.encode()
    config.write_bytes(before)
    config.chmod(0o640)
    bare.pipe("init", "runs.db", "-y", PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert config.read_bytes() == before + b'\r\n[tool.holdfast]\r\nstore = "runs.db"\r\n'
    assert config.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in bare.folder.iterdir() if "db" not in path.name) == ["pyproject.toml"]


def test_init_in_a_pipe_prints_only_the_result(bare: SampleStore) -> None:
    (bare.folder / "pyproject.toml").write_text("")
    done = call("init", cwd=bare.folder)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("created holdfast.db and recorded it in pyproject.toml: hf = ")
    again = bare.screen("init")
    assert again.startswith("found holdfast.db: hf = "), "there is nothing to ask"


def test_init_of_a_memory_store_is_refused(bare: SampleStore) -> None:
    assert "is lost when the program ends" in call("init", ":memory:", cwd=bare.folder).err
    assert call("init", "-y", cwd=bare.folder, HOLDFAST_STORE=":memory:").code == 2


def test_init_of_a_server_ignores_files(bare: SampleStore) -> None:
    (bare.folder / "postgresql:").mkdir()
    done = call(
        "init", "postgresql://none@127.0.0.1:1/none", "--dry-run", cwd=bare.folder, HOLDFAST_PATIENCE="0.2"
    )
    assert (done.code, done.out) == (10, "")


def test_init_in_a_missing_folder_is_refused(bare: SampleStore) -> None:
    reported = bare.screen("init", "no/such/runs.db", "-y", code=10)
    assert "the folder no/such does not exist" in reported
    assert "Traceback" not in reported


def test_migrate_of_a_current_store_does_nothing(sample: SampleStore) -> None:
    assert sample.screen("migrate") == f"holdfast.db has format {NEWEST}, which is current"
    assert json.loads(sample.pipe("migrate", "--json"))["format"] == NEWEST


def test_migrate_upgrades_an_old_store(bare: SampleStore) -> None:
    shutil.copyfile(OLD, bare.store)
    before = Path(bare.store).read_bytes()
    assert f"from format 1 to {NEWEST}" in bare.pipe("migrate", "--dry-run")
    assert bare.json("migrate", "--dry-run")["format"] == 1
    assert Path(bare.store).read_bytes() == before
    asked = Terminal("migrate", cwd=bare.folder).until("Go ahead?").type("n\n")
    assert asked.end() == 1
    assert Path(bare.store).read_bytes() == before
    assert bare.pipe("migrate", "-y") == f"upgraded holdfast.db to format {NEWEST}\n"
    assert bare.json("verify")["ok"] is True
    assert bare.json("runs")


def test_migrate_without_a_store_is_refused(bare: SampleStore) -> None:
    assert "holdfast init" in bare.screen("migrate", code=10).replace("\n", "")
    bare.pipe("migrate", code=10)
    assert not (bare.folder / STORE).exists()
