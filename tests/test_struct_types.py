"""Threads that decode to one type for the first time at the same moment. With `READY = lambda kind: kind`, the program
below ends with a segmentation fault within a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys, threading, types
import msgspec
from holdfast.struct_types import resolve, resolved

SOURCE = '''
from __future__ import annotations
import msgspec
from typing import Any
class Inner(msgspec.Struct):
    name: str = ""
    due: int | None = None
    more: dict[str, Any] = {}
class Outer(msgspec.Struct):
    all: list[Inner] = []
    data: bytes = b""
    numbers: list[int] = []
    by_name: dict[str, Inner] = {}
    facts: dict[str, Any] | None = None
    note: str | None = None
    rest: dict[str, Any] = {}
'''
sys.setswitchinterval(1e-6)
for number in range(300):
    module = sys.modules[f"made_{number}"] = types.ModuleType(f"made_{number}")
    exec(SOURCE, module.__dict__)
    kinds = [module.Outer] * 5 + [dict[str, module.Inner]]
    start = threading.Barrier(6)

    def decode(kind):
        start.wait()
        msgspec.convert({"all": [{"name": "a", "due": 1}], "note": "b"} if kind is module.Outer else {}, READY(kind))

    threads = [threading.Thread(target=decode, args=[kind]) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
_READY = {
    "ours": "READY = resolved",
    "the application's": "def READY(kind):\n    resolve(kind)\n    return kind",
}


def _ends_with(ready: str) -> int:
    program = _PROGRAM.replace("sys.setswitchinterval", f"{_READY[ready]}\nsys.setswitchinterval", 1)
    return subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize("ready", ["ours", "the application's"])
def test_type_is_resolved_by_one_thread_at_a_time(ready: str) -> None:
    assert _ends_with(ready) == 0
