"""macOS and Windows, simulated at the system calls; dead processes; open files."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import operating_system
from holdfast.atomic_file import write_atomically
from holdfast.errors import StoreUnavailable
from holdfast.execution.lease import is_alive
from holdfast.model.records import RunRecord
from holdfast.operating_system import UNKNOWN, process_start
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import digest, history
from holdfast.tree.pack import Upload
from holdfast.web.server import ServeOptions, Server

_SOURCES = Path(holdfast.__file__).parent


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "SYSTEM", "darwin")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(*_: object) -> None:
        raise AssertionError("os.kill sends Ctrl-C on Windows")

    monkeypatch.setattr(operating_system, "SYSTEM", "win32")
    monkeypatch.setattr(os, "kill", ctrl_c)


def test_only_one_module_checks_the_system() -> None:
    asking = (
        "sys.platform",
        "os.name",
        "platform.system",
        "import fcntl",
        "import resource",
        "os.kill(",
        "signal.SIGKILL",
    )
    found = [
        path.name
        for path in sorted(_SOURCES.rglob("*.py"))
        if any(word in path.read_text(encoding="utf-8") for word in asking)
    ]
    assert found == ["operating_system.py"]


# macOS


class _FullSyncs:
    """Takes the place of `fcntl.fcntl`."""

    def __init__(self, answer: int) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, descriptor: int, command: int) -> int:
        assert command == 51
        self.asked.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        if self.answer:
            raise OSError(self.answer, os.strerror(self.answer))
        return 0


def test_files_and_folders_are_synced_to_the_medium_on_macos(
    tmp_path: Path, macos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise AssertionError("fsync does not reach the medium on macOS")

    syncs = _FullSyncs(0)
    monkeypatch.setattr(fcntl, "fcntl", syncs)
    monkeypatch.setattr(os, "fsync", refuse)
    with write_atomically(tmp_path / "file", overwrite=False) as file:
        file.write(b"content")
    content = b"large"
    ArtifactFolder(tmp_path / "artifacts").put(
        Upload(digest(content), len(content), lambda: iter((content,)))
    )
    synced = {Path(path).parent.name for path in syncs.asked if path.endswith(".part")}
    assert synced == {tmp_path.name, digest(content).hex()[:2]}
    assert {str(tmp_path), str(tmp_path / "artifacts")} < set(syncs.asked)


def test_file_systems_without_full_sync_are_synced_as_elsewhere(
    tmp_path: Path, macos: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for number, code in enumerate((errno.ENOTSUP, errno.EINVAL, errno.ENOTTY), 1):
        monkeypatch.setattr(fcntl, "fcntl", _FullSyncs(code))
        operating_system.sync(7)
        assert synced == [7] * number
    monkeypatch.setattr(fcntl, "fcntl", _FullSyncs(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        operating_system.sync(7)
    assert synced == [7] * 3


@pytest.mark.parametrize(("durability", "full"), [("durable", 1), ("fast", 0)])
def test_sqlite_syncs_fully_on_every_connection_on_macos(
    tmp_path: Path, macos: None, durability: str, full: int
) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db", durability=durability)) as store:
        history(store, 1)
        store.wait_for_change(0)
        connections = store._database._open
        assert len(connections) == 3
        for connection in connections:
            assert connection.value("PRAGMA fullfsync") == full
            assert connection.value("PRAGMA checkpoint_fullfsync") == full
            assert connection.value("PRAGMA synchronous") == 1 + full


def test_sqlite_does_not_sync_fully_elsewhere(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db")) as store, store._database.reader() as connection:
        assert connection.value("PRAGMA fullfsync") == 0


class _Darwin:
    """Takes the place of `ctypes.CDLL(None)` on macOS, with these processes: status, seconds, microseconds."""

    def __init__(self, processes: dict[int, tuple[int, int, int] | None]) -> None:
        def proc_pidinfo(pid: int, flavor: int, arg: int, buffer: Any, size: int) -> int:
            assert (flavor, arg, size) == (3, 0, 136)
            found = processes.get(pid, ())
            if not found:
                ctypes.set_errno(errno.ESRCH if found == () else errno.EPERM)
                return 0
            status, seconds, microseconds = found
            numbers = [0, status, 0, pid, *[0] * 8]
            buffer.raw = struct.pack(
                "=12I16s32s5Ii2Q", *numbers, b"python", b"python", *[0] * 6, seconds, microseconds
            )
            return 136

        self.proc_pidinfo = proc_pidinfo


def test_start_of_a_process_is_known_on_macos(macos: None, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {7: (2, 1_700_000_000, 42), 8: (5, 1_700_000_000, 42), 9: None}
    monkeypatch.setattr(ctypes, "CDLL", lambda name, use_errno: _Darwin(processes))
    assert process_start(7) == "1700000000.000042"
    assert process_start(8) == ""  # a zombie
    assert process_start(9) == UNKNOWN  # another user's
    assert process_start(10) == ""


# Windows


class _Kernel:
    """Takes the place of kernel32.dll, with these processes: exit code and creation time; None if it may not be
    opened."""

    def __init__(self, processes: dict[int, tuple[int, int] | None]) -> None:
        self.open: list[int] = []
        self.error = 0

        def open_process(access: int, inherit: int, pid: int) -> int | None:
            assert (access, inherit) == (0x1000, 0)
            if processes.get(pid) is None:
                self.error = 5 if pid in processes else 87
                return None
            self.open.append(pid)
            return pid

        def get_exit_code(handle: int, code: Any) -> int:
            code._obj.value = (processes[handle] or (0, 0))[0]
            return 1

        def get_times(handle: int, *times: Any) -> int:
            times[0]._obj.value = (processes[handle] or (0, 0))[1]
            return 1

        def close_handle(handle: int) -> int:
            self.open.remove(handle)
            return 1

        self.OpenProcess: Callable[..., Any] = open_process
        self.GetExitCodeProcess: Callable[..., Any] = get_exit_code
        self.GetProcessTimes: Callable[..., Any] = get_times
        self.CloseHandle: Callable[..., Any] = close_handle

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load(name: str, *, use_last_error: bool) -> _Kernel:
            assert (name, use_last_error) == ("kernel32", True)
            return self

        monkeypatch.setattr(ctypes, "WinDLL", load, raising=False)
        monkeypatch.setattr(ctypes, "get_last_error", lambda: self.error, raising=False)


def test_start_of_a_process_is_known_on_windows(windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _Kernel({7: (259, 133_800_000_000_000_000), 8: (1, 133_800_000_000_000_000), 9: None})
    kernel.install(monkeypatch)
    assert process_start(7) == "133800000000000000"
    assert process_start(8) == ""  # it has ended, and a handle to it is open somewhere
    assert process_start(9) == UNKNOWN  # may not be asked
    assert process_start(10) == ""
    assert kernel.open == []


def test_owner_lives_as_long_as_its_process_on_windows(
    windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Kernel({7: (259, 11), 8: (0, 11), 9: None}).install(monkeypatch)
    run = _owned(7, "11")
    assert is_alive(run, 0)
    assert not is_alive(run, 10)
    assert not is_alive(_owned(7, "10"), 0)  # the id was given to another process
    assert not is_alive(_owned(8, "11"), 0)
    assert is_alive(_owned(9, "11"), 0)  # not known: until the lease ends
    assert is_alive(_owned(7, UNKNOWN), 0)


def _owned(pid: int, started: str) -> RunRecord:
    run = RunRecord(key=1, id="run", created=0, updated=0)
    return msgspec.structs.replace(run, owner=f"{operating_system.machine()}|{pid}|{started}|abc", until=10)


@pytest.mark.slow
def test_package_works_without_what_windows_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ON_WINDOWS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "6\n"), done.stderr


_ON_WINDOWS = """
import importlib, os, pkgutil, signal, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1"):
    delattr(signal, name)
for name in ("fork", "register_at_fork", "uname", "getuid", "O_NOFOLLOW", "O_DIRECTORY"):
    delattr(os, name)
import ctypes
from types import SimpleNamespace
import holdfast, holdfast.operating_system
holdfast.operating_system.SYSTEM = "win32"
names = ("OpenProcess", "GetExitCodeProcess", "GetProcessTimes", "CloseHandle")
kernel = SimpleNamespace(**{name: lambda *_, name=name: None for name in names})
ctypes.WinDLL = lambda *_, **__: kernel
ctypes.get_last_error = lambda: 5
loaded = ("cli.app", "cli.commands.demo", "web.server", "fleet.worker", "fleet.monitor.monitor", "integrations.mcp")
for each in ("doctor", *loaded):
    importlib.import_module(f"holdfast.{each}")

@holdfast.step
def double(number):
    return 2 * number

@holdfast.workflow
def work(number):
    return double(number)

with holdfast.open(os.path.join(sys.argv[1], "runs.db"), artifacts=os.path.join(sys.argv[1], "artifacts")) as hf:
    print(hf.run(work, 3).result)
    hf.history("kept").commit({"large": b"x" * 100_000})
    hf.export_run("kept", os.path.join(sys.argv[1], "kept.bundle"))
    hf.backup(os.path.join(sys.argv[1], "copy.db"), artifacts=os.path.join(sys.argv[1], "copies"))
    hf.gc(grace=0)
    hf.import_run(os.path.join(sys.argv[1], "kept.bundle"), run_id="again")
    assert hf.history("again").head.state["large"] == b"x" * 100_000
"""


def test_file_that_a_reader_has_open_is_replaced_when_it_is_closed(
    tmp_path: Path, windows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = 3

    def refuse(*_: object) -> None:
        nonlocal busy
        if busy:
            busy -= 1
            raise PermissionError(errno.EACCES, "The process cannot access the file")

    def replace(*names: Any, real: Callable[..., None] = os.replace) -> None:
        refuse()
        real(*names)

    def unlink(*names: Any, real: Callable[..., None] = os.unlink) -> None:
        refuse()
        real(*names)

    path = tmp_path / "file"
    path.write_bytes(b"one")
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "unlink", unlink)
    with write_atomically(path, overwrite=True) as file:
        file.write(b"two")
    assert (busy, path.read_bytes()) == (0, b"two")
    busy = 3
    operating_system.remove(path)
    assert (busy, path.exists()) == (0, False)
    content = b"large"
    folder = ArtifactFolder(tmp_path / "artifacts")
    monkeypatch.setattr(operating_system, "_PATIENCE", 0.01)
    busy = 1_000
    with pytest.raises(StoreUnavailable, match=r"cannot be written to .*: The process cannot access"):
        folder.put(Upload(digest(content), len(content), lambda: iter((content,))))


def test_refused_rights_are_raised_at_once_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def refuse(*names: Any) -> None:
        calls.append(names)
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        operating_system.replace(tmp_path / "one", tmp_path / "other")
    assert len(calls) == 1


def test_file_of_another_process_is_opened_to_be_written_before_it_is_synced_on_windows(
    tmp_path: Path, windows: None
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    descriptor = operating_system.open_to_sync(path)
    try:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    finally:
        os.close(descriptor)


def test_listening_port_is_held_exclusively_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    taken = [8000]

    class Socket(socket.socket):
        def setsockopt(self, level: int, name: int, value: Any, *_: Any) -> None:
            options.append((name, value))

        def bind(self, address: Any) -> None:
            if address[1] in taken:
                raise PermissionError(
                    errno.EACCES, "An attempt was made to access a socket in a way forbidden"
                )
            super().bind(address)

    with holdfast.open(":memory:") as hf:
        monkeypatch.setattr(operating_system, "SYSTEM", "win32")
        monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
        monkeypatch.setattr(socket, "socket", Socket)
        server = Server(hf, ServeOptions(port=8000, any_port=True), store="memory", where=":memory:")
        server._socket.close()
    assert options == [(-5, 1)]
    assert not server.origin.endswith(":8000")


def test_signals_that_end_a_process_include_ctrl_break(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operating_system.stop_signals() == (signal.SIGTERM, signal.SIGINT)
    monkeypatch.setattr(signal, "SIGBREAK", 21, raising=False)
    assert operating_system.stop_signals() == (signal.SIGTERM, signal.SIGINT, 21)


def test_signals_reach_an_event_loop_without_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()

        def refuse(*_: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(loop, "add_signal_handler", refuse)
        came = asyncio.Event()
        before = signal.getsignal(signal.SIGTERM)
        try:
            operating_system.call_on_signal(loop, signal.SIGTERM, came.set)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(came.wait(), 60)
        finally:
            signal.signal(signal.SIGTERM, before)

    asyncio.run(wait())


# Here


def test_process_of_this_system_is_known_by_its_start() -> None:
    here = process_start(os.getpid())
    assert here not in ("", UNKNOWN)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process_start(process.pid) not in ("", UNKNOWN, here)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(process.pid) == ""  # a zombie
    process.communicate()
    assert process_start(process.pid) == ""
    assert process_start(0) == process_start(2**40) == ""


def test_process_that_proc_hides_may_be_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> str:
        raise FileNotFoundError(path)

    def other_user(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", read)
    assert process_start(os.getpid()) == UNKNOWN
    monkeypatch.setattr(os, "kill", other_user)
    assert process_start(1) == UNKNOWN
