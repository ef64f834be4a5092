"""Problems with a store, a reference or a stream: one line that says what to do, and the right exit code."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import flows
import project_folder
import pytest
import terminal
from project_folder import STORE, ProjectFolder, one_line

from database import Database

project = project_folder.project

#: Every command that works on a run, or on the store, and changes nothing.
READING = [
    ["runs"], ["log", "shop-1"], ["show", "shop-1"], ["diff", "shop-1@1", "shop-1@2"],
    ["compare", "shop-1", "wait-1"], ["blame", "shop-1"], ["events", "shop-1"], ["inbox"],
    ["verify"], ["stats"], ["artifacts", "ls"], ["resume", "wait-1", "--dry-run"],
    ["rollback", "shop-1", "--to", "1", "--dry-run"],
]  # fmt: skip
#: And those that write.
WRITING = [
    ["resume", "fail-1", "--app", "flows"], ["rollback", "shop-1", "--to", "4", "--no-resume"], ["fork", "shop-1@2"],
    ["merge", "plan-1", "2"], ["pause", "wait-1"], ["cancel", "wait-1"], ["answer", "ask-1", "true"],
    ["signal", "wait-1", "x"], ["tag", "shop-1@2", "good"], ["pin", "shop-1@2"], ["delete", "shop-1", "--yes"],
]  # fmt: skip
OF_RUNS = [
    ["log"], ["show"], ["blame"], ["events"], ["watch"], ["resume"], ["rollback", "--to", "1"], ["fork"],
    ["merge", "--timeline", "1"], ["replay", "--validate"], ["pause"], ["cancel"], ["verify"], ["delete", "--yes"],
    ["export"],
]  # fmt: skip
_ID = " ".join


@pytest.fixture
def full(project: ProjectFolder) -> ProjectFolder:
    """A store with runs of several kinds."""
    project.run(flows.shop, run_id="shop-1", state={"n": 0})
    project.run(flows.sleeping, 3600, run_id="wait-1")
    project.run(flows.asking, {"type": "boolean"}, run_id="ask-1")
    broken = project.touch("broken")
    project.run(flows.failing, run_id="fail-1")
    broken.unlink()
    with project.open() as hf:
        log = hf.history("plan-1")
        log.commit({})
        log.commit({"left": True})
        log.rollback(to=1)
        log.commit({"right": True})
    return project


# References


@pytest.mark.parametrize("command", OF_RUNS, ids=_ID)
def test_missing_run_exits_with_3(full: ProjectFolder, command: list[str]) -> None:
    line = one_line(full.call(command[0], "shpo-1", *command[1:]), 3)
    assert "there is no run 'shpo-1'" in line
    assert "did you mean 'shop-1'?" in line


@pytest.mark.parametrize("command", OF_RUNS, ids=_ID)
def test_ambiguous_prefix_is_refused(full: ProjectFolder, command: list[str]) -> None:
    full.run(flows.shop, run_id="shop-2")
    found = full.json(command[0], "shop", *command[1:], code=2)
    assert found["code"] == "invalid_reference"
    assert found["details"] == {"runs": ["shop-1", "shop-2"]}
    assert "'shop' could be any of shop-1, shop-2: write more of it" in found["message"]


def test_unknown_command_is_refused(project: ProjectFolder) -> None:
    assert "did you mean 'rollback'?" in one_line(project.call("rolback"), 2)
    assert project.json("rolback", code=2)["code"] == "usage"


# Stores


def damaged(path: str, change: Callable[[bytearray], Any]) -> None:
    with open(path, "rb") as file:
        data = bytearray(file.read())
    changed = change(data)
    with open(path, "wb") as file:
        file.write(data if changed is None else changed)


@pytest.mark.parametrize("command", [*READING, *WRITING], ids=_ID)
def test_missing_store_exits_with_10(project: ProjectFolder, command: list[str]) -> None:
    line = one_line(project.call(*command), 10)
    assert "there is no store at holdfast.db (the default)" in line
    assert "--store" in line
    assert "holdfast init" in line
    assert not (project.folder / STORE).exists()


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (b"", 10, "there is no store"),
        (b"x", 6, "not a Holdfast store"),
        (
            b"hello, this is a text and not a database\n" * 50,
            6,
            "not a Holdfast store (not a SQLite database)",
        ),
    ],
)
def test_file_that_is_not_a_store_is_refused(
    project: ProjectFolder, content: bytes, code: int, text: str
) -> None:
    (project.folder / STORE).write_bytes(content)
    for command in (["runs"], ["verify"], ["resume", "x"]):
        assert text in one_line(project.call(*command), code)
    assert (project.folder / STORE).read_bytes() == content


def test_database_of_another_program_is_refused(project: ProjectFolder) -> None:
    with Database(STORE) as connection:
        connection.execute("CREATE TABLE other (a)")
    connection.close()
    before = project.bytes()
    for command in (["runs"], ["init", "--yes"]):
        assert "not a Holdfast store: open another file" in one_line(project.call(*command), 6)
    assert project.bytes() == before


def test_newer_store_format_is_refused(full: ProjectFolder) -> None:
    with Database(STORE) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = full.bytes()
    for command in (["runs"], ["migrate", "--dry-run"], ["migrate"], ["resume", "fail-1", "--app", "flows"]):
        line = one_line(full.call(*command), 6)
        assert "has format 99" in line
        assert "upgrade Holdfast" in line
    assert full.json("runs", code=6)["code"] == "incompatible_format"
    assert full.bytes() == before


def test_flipped_bit_is_never_served(full: ProjectFolder) -> None:
    damaged(STORE, lambda data: data.__setitem__(data.rindex(b"rock"), data[data.rindex(b"rock")] ^ 1))
    found = full.json("verify", code=6)
    (problem,) = found["problems"]
    assert problem["run"] == "shop-1"
    ref = f"shop-1@{problem['version']}"
    for command in (["show", ref], ["fork", ref, "--yes"], ["diff", "shop-1@1", ref], ["export", ref]):
        done = full.call(*command)
        assert (done.code, done.out) == (6, ""), done
        assert f"version {problem['version']} of run 'shop-1' fails its hash" in done.err
        assert "Traceback" not in done.err
    # The rest stays usable.
    assert full.call("show", "shop-1@1").code == 0
    assert full.call("resume", "fail-1", "--app", "flows").code == 0


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9])
def test_truncated_store_is_reported(full: ProjectFolder, part: float) -> None:
    damaged(STORE, lambda data: data[: int(len(data) * part)])
    for command in (["runs"], ["verify"], ["log", "shop-1"], ["resume", "fail-1", "--app", "flows"]):
        done = full.call(*command)
        assert "Traceback" not in done.err, done
        assert done.code in (0, 3, 6), done
    assert full.call("verify").code == 6


# Locks


@pytest.fixture
def locked(full: ProjectFolder) -> Iterator[ProjectFolder]:
    """Another holds the file, for readers too."""
    connection = Database(STORE)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("UPDATE run SET revision = revision")
    yield full
    connection.execute("ROLLBACK")
    connection.close()


@pytest.mark.parametrize(
    "command", [["runs"], ["verify"], ["pause", "wait-1"], ["resume", "fail-1"]], ids=_ID
)
def test_locked_store_exits_with_11(locked: ProjectFolder, command: list[str]) -> None:
    line = one_line(locked.call(*command, HOLDFAST_PATIENCE="0.1"), 11)
    assert "was locked by another writer for 0.1 s: try again" in line
    assert locked.json(*command, code=11, HOLDFAST_PATIENCE="0.1")["code"] == "store_busy"


def test_lock_timeout_is_configurable(locked: ProjectFolder) -> None:
    started = time.monotonic()
    assert "for 5 s" in one_line(locked.call("runs"), 11)
    assert 5 <= time.monotonic() - started < 60
    assert "HOLDFAST_PATIENCE must be a number" in one_line(locked.call("runs", HOLDFAST_PATIENCE="long"), 2)


def test_writer_does_not_block_readers(full: ProjectFolder) -> None:
    connection = Database(STORE)
    connection.execute("BEGIN EXCLUSIVE")
    try:
        assert full.call("runs").code == 0
        done = full.call("pause", "wait-1", HOLDFAST_PATIENCE="0.1")
        assert done.code == 11, done
    finally:
        connection.close()


# Rights and room


def bound_by_rights() -> None:
    """Drop, in the child, the capability of the superuser to ignore permission bits."""
    if os.geteuid() == 0:
        prctl = ctypes.CDLL(None).prctl
        for capability in (1, 2, 3):
            prctl(24, capability, 0, 0, 0)


def limited(project: ProjectFolder, before: Callable[[], None], *arguments: str) -> terminal.Done:
    done = subprocess.run(
        [*terminal.PROGRAM, *arguments],
        cwd=project.folder,
        env=terminal.environment(PYTHONDONTWRITEBYTECODE="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        preexec_fn=before,
        timeout=60,
        check=False,
    )
    return terminal.Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def guarded(full: ProjectFolder) -> Iterator[ProjectFolder]:
    """A folder in which nothing may be written."""
    (full.folder / STORE).chmod(0o444)
    full.folder.chmod(0o555)
    yield full
    full.folder.chmod(0o755)


@pytest.mark.parametrize("command", READING, ids=_ID)
def test_read_only_store_can_be_read(guarded: ProjectFolder, command: list[str]) -> None:
    done = limited(guarded, bound_by_rights, *command)
    assert (done.code, done.err.replace("nothing was changed (--dry-run)\n", "")) == (0, ""), done
    assert done.out or command[0] in ("artifacts", "inbox")


@pytest.mark.parametrize("command", WRITING, ids=_ID)
def test_read_only_store_refuses_changes(guarded: ProjectFolder, command: list[str]) -> None:
    before = guarded.bytes()
    done = limited(guarded, bound_by_rights, *command)
    assert done.code == 10, done
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1] == "holdfast: holdfast.db is read-only: make it and its folder writable"
    assert guarded.bytes() == before


def test_unreadable_store_is_reported(full: ProjectFolder) -> None:
    (full.folder / STORE).chmod(0)
    done = limited(full, bound_by_rights, "runs")
    assert "check its folder and your permissions" in one_line(done, 10)


def test_full_disk_during_a_run_is_reported(full: ProjectFolder) -> None:
    full.rewrite(
        'did("fragile")',
        'did("fragile")\n    holdfast.state()["big"] = [os.urandom(60_000) for _ in range(10)]',
    )
    full.rewrite("import asyncio", "import asyncio\nimport os")
    size = (full.folder / STORE).stat().st_size

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, size + 20_000))

    done = limited(full, small, "resume", "fail-1", "--app", "flows")
    assert done.code in (1, 10), done
    assert "Traceback" not in done.err, done
    assert full.json("verify")["ok"]
    done = full.call("resume", "fail-1", "--app", "flows")
    assert (done.code, done.out.split(": ")[1]) == (0, '"whole"\n'), done


# Streams


def shell(project: ProjectFolder, line: str) -> terminal.Done:
    program = " ".join(terminal.PROGRAM)
    done = subprocess.run(
        ["bash", "-c", line.replace("holdfast ", f"{program} ")],
        cwd=project.folder,
        env=terminal.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return terminal.Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("holdfast log many | head -1; exit ${PIPESTATUS[0]}", 0, "2001\t", ""),
        ("holdfast runs --json | true; exit ${PIPESTATUS[0]}", 0, "", ""),
        ("holdfast show nope 2>&1 | true; exit ${PIPESTATUS[0]}", 3, "", ""),
        ("holdfast runs >&-", 0, "", ""),
        ("holdfast runs 2>&- | head -1", 0, "many\t", ""),
        ("holdfast runs <&- | head -1", 0, "many\t", ""),
        ("holdfast pause wait-1 >&- 2>&- <&-", 0, "", ""),
        ("holdfast show nope >&- 2>&- <&-", 3, "", ""),
        (
            "holdfast runs > /dev/full",
            74,
            "",
            "holdfast: the output cannot be written: No space left on device",
        ),
        ("holdfast show nope 2> /dev/full", 3, "", ""),
        ("holdfast resume fail-1 --app flows 2>&1 | true; exit ${PIPESTATUS[0]}", 0, "", ""),
    ],
)
def test_closed_and_full_streams_are_handled(
    full: ProjectFolder, line: str, code: int, out: str, err: str
) -> None:
    with full.open() as hf:
        log = hf.history("many")
        for number in range(2001 if "many" in line else 1):
            log.commit({"n": number})
    done = shell(full, line)
    assert (done.code, done.out[: len(out)], done.err[: len(err)]) == (code, out, err), done
    assert bool(done.err) == bool(err), done
    if "resume" in line:
        assert full.look("fail-1")[0] == "completed"
