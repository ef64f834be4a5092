"""Differences between operating systems: syncing, processes, signals, sockets, and open files.

Linux runs the whole test suite. The branches for macOS and Windows are tested by simulation: the tests set `SYSTEM` and
replace the system calls (`ctypes`, `fcntl`, `os`).

Invariant: no other module checks which system it runs on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from asyncio import AbstractEventLoop

#: "linux", "darwin", "win32", or another name, which is treated as a POSIX system.
SYSTEM = sys.platform
#: The start of an existing process, if the system does not report it.
UNKNOWN = "?"

#: macOS: a sync that reaches the medium; `fsync` only reaches the drive's cache.
_F_FULLFSYNC = 51
#: Errors of file systems without it.
_CANNOT_FULL_SYNC = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
#: macOS: `proc_pidinfo` with PROC_PIDTBSDINFO fills a `struct proc_bsdinfo`: its size, and the offsets of the state of
#: the process and of its start (seconds, microseconds).
_BSD_INFO, _BSD_INFO_SIZE, _BSD_STATUS, _BSD_START = 3, 136, 4, 120
_BSD_ZOMBIE = 5
#: Windows: the right to query a process's times; the exit code of a running process; the error for a missing one.
_QUERY_LIMITED_INFORMATION, _STILL_ACTIVE, _INVALID_PARAMETER = 0x1000, 259, 87
#: The largest process id.
_LAST_PID = 2**31 - 1
#: Windows: seconds to wait for readers of a file that is to be replaced or removed.
_PATIENCE = 2.0


# Syncing


def sync(descriptor: int) -> None:
    """Sync a file or folder, so that its content survives a power failure."""
    if SYSTEM == "darwin":
        import fcntl

        try:
            fcntl.fcntl(descriptor, _F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _CANNOT_FULL_SYNC:
                raise
    os.fsync(descriptor)


def open_to_sync(path: Path) -> int:
    """Open a file only to sync it. Windows cannot sync a file that is open for reading only."""
    return os.open(path, os.O_RDWR if SYSTEM == "win32" else os.O_RDONLY)


def can_sync_folders() -> bool:
    """Return whether folders can be opened to be synced."""
    return SYSTEM != "win32"


def sync_settings() -> tuple[str, ...]:
    """Return the statements that make SQLite sync as `sync` does."""
    if SYSTEM == "darwin":
        return ("PRAGMA fullfsync=1", "PRAGMA checkpoint_fullfsync=1")
    return ()


# Processes


@cache
def machine() -> str:
    """Return a name of this machine, its boot, and its namespace of process ids."""
    try:
        # The start of a process on Linux counts from the boot.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = space = ""
    return f"{_node()}/{boot}/{space}".replace("|", "/")


def _node() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()


def fork_safe_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child, even if a thread of the parent held it. Only for locks
    that exist as long as the process: each is registered permanently."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        # CPython's locks have this method for this purpose; the type stubs lack it.
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # noqa: SLF001
    return lock


def process_start(pid: int) -> str:
    """Return the start of a process, in a form of the system, or `UNKNOWN`; empty if the process does not exist or is a
    zombie."""
    if not 0 < pid <= _LAST_PID:
        return ""
    if SYSTEM == "win32":
        return _start_on_windows(pid)
    if SYSTEM == "darwin":
        return _start_on_macos(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZXx" else fields[19]
    except (OSError, IndexError):
        return _exists(pid)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by Ctrl-Z or a debugger; False if the system does not report it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _exists(pid: int) -> str:
    """Return `UNKNOWN` if the process exists, otherwise empty. Not for Windows, where this would send Ctrl-C."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return UNKNOWN


def _start_on_macos(pid: int) -> str:
    import ctypes

    try:
        ask = ctypes.CDLL(None, use_errno=True).proc_pidinfo
    except (OSError, AttributeError):
        return _exists(pid)
    ask.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int)
    ask.restype = ctypes.c_int
    found = ctypes.create_string_buffer(_BSD_INFO_SIZE)
    if ask(pid, _BSD_INFO, 0, found, _BSD_INFO_SIZE) != _BSD_INFO_SIZE:
        # A dead process is not found; a process of another user may not be queried.
        return "" if ctypes.get_errno() == errno.ESRCH else UNKNOWN
    (status,) = struct.unpack_from("=I", found, _BSD_STATUS)
    seconds, microseconds = struct.unpack_from("=QQ", found, _BSD_START)
    return "" if status == _BSD_ZOMBIE else f"{seconds}.{microseconds:06}"


def _start_on_windows(pid: int) -> str:
    import ctypes

    # These names exist on Windows only.
    windows: Any = ctypes
    kernel = windows.WinDLL("kernel32", use_last_error=True)
    kernel.OpenProcess.argtypes = (ctypes.c_uint32, ctypes.c_int, ctypes.c_uint32)
    kernel.OpenProcess.restype = ctypes.c_void_p
    kernel.GetExitCodeProcess.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    kernel.GetProcessTimes.argtypes = (ctypes.c_void_p,) * 5
    kernel.CloseHandle.argtypes = (ctypes.c_void_p,)
    handle = kernel.OpenProcess(_QUERY_LIMITED_INFORMATION, 0, pid)
    if not handle:
        return "" if windows.get_last_error() == _INVALID_PARAMETER else UNKNOWN
    try:
        exit_code = ctypes.c_uint32()
        if not kernel.GetExitCodeProcess(handle, ctypes.byref(exit_code)):
            return UNKNOWN
        if exit_code.value != _STILL_ACTIVE:
            # A handle that another process holds keeps the id of a dead process.
            return ""
        # Each is a FILETIME: creation, exit, kernel, user.
        times = [ctypes.c_uint64() for _ in range(4)]
        if not kernel.GetProcessTimes(handle, *map(ctypes.byref, times)):
            return UNKNOWN
        return str(times[0].value)
    finally:
        kernel.CloseHandle(handle)


# Signals


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a process to end: SIGTERM, Ctrl-C, and Ctrl-Break if it exists."""
    names = ("SIGTERM", "SIGINT", "SIGBREAK")
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


def call_on_signal(loop: AbstractEventLoop, number: signal.Signals, callback: Callable[[], None]) -> None:
    """Call a function in an event loop on a signal; to be called in the main thread."""
    try:
        loop.add_signal_handler(number, callback)
    except NotImplementedError:
        # Event loops on Windows do not have it.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback))


# Sockets and files


def own_port(listening: socket.socket) -> None:
    """Reserve the port of a socket that is about to listen, and make the port reusable as soon as it is closed."""
    import socket

    if SYSTEM == "win32":
        # SO_REUSEADDR would let any program listen on the same port.
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", -5)
        listening.setsockopt(socket.SOL_SOCKET, exclusive, 1)
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def is_port_taken(error: OSError) -> bool:
    """Return whether `bind` failed because another program has the port."""
    # Windows reports an exclusively used port as a missing permission.
    return error.errno == errno.EADDRINUSE or (SYSTEM == "win32" and error.errno == errno.EACCES)


def most_open_files() -> int | None:
    """Return the maximum number of open files of this process; None if it is unlimited or unknown."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if most == resource.RLIM_INFINITY else most


def has_file_modes() -> bool:
    """Return whether the mode of a file determines who can read it."""
    return SYSTEM != "win32"


def replace(source: Path, target: Path) -> None:
    """Rename a file; an existing target is replaced."""
    _retry_while_open(lambda: os.replace(source, target))


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    _retry_while_open(lambda: path.unlink(missing_ok=True))


def _retry_while_open(change: Callable[[], None]) -> None:
    """Rename or remove a file. Windows refuses that while a process, perhaps a virus scanner, has the file open: retry,
    and raise the `PermissionError` if that takes too long."""
    until = time.monotonic() + (_PATIENCE if SYSTEM == "win32" else 0.0)
    pause = 0.001
    while time.monotonic() < until:
        with contextlib.suppress(PermissionError):
            return change()
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return change()
