"""`holdfast mcp` as a program: what it says where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project_folder import ProjectFolder, one_line, project
from terminal import PROGRAM, environment

__all__ = ["project"]

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


class Server:
    """The program, and the raw protocol."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def say(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, str]:
        """Return the exit code, and the text on standard error."""
        code = self.process.wait(30)
        assert self.process.stderr is not None
        return code, self.process.stderr.read().decode()


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*PROGRAM, "mcp"], cwd=folder, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        found = Server(process)
        found.say(HELLO)
        assert found.hear()["result"]["serverInfo"]["name"] == "holdfast"
        try:
            yield found
        finally:
            process.kill()


def test_mcp_ignores_invalid_messages_and_ends_with_its_input(project: ProjectFolder) -> None:
    with server(project.folder) as found:
        found.say(b"not json", b"[1", b"", b"\xff\xfe\x00", b'{"jsonrpc": "1.0"}', PING)
        assert found.hear() == {"jsonrpc": "2.0", "id": 2, "result": {}}
        assert found.process.stdin is not None
        assert found.process.stdout is not None
        found.process.stdin.close()
        assert found.end() == (0, "")
        assert found.process.stdout.read() == b""
    assert list(project.folder.glob("holdfast.db*")) == [], "no store was made"


def test_mcp_answers_a_lone_surrogate(project: ProjectFolder) -> None:
    with server(project.folder) as found:
        for number, params in enumerate(
            ({"name": "show", "arguments": {"ref": "\ud800"}}, {"name": "\udfff", "arguments": {}})
        ):
            found.say({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
            answer = found.hear()
            assert answer["id"] == number
            assert "surrogate" in answer["error"]["message"]
        found.say(PING)
        assert found.hear() == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_mcp_ends_when_its_output_is_closed(project: ProjectFolder) -> None:
    with server(project.folder) as found:
        assert found.process.stdout is not None
        found.process.stdout.close()
        found.say(PING)
        assert found.end() == (0, "")


@pytest.mark.parametrize(
    ("sign", "code", "said"),
    [(signal.SIGINT, 130, "holdfast: interrupted; nothing is lost\n"), (signal.SIGTERM, 0, "")],
)
def test_mcp_ends_by_a_signal(project: ProjectFolder, sign: signal.Signals, code: int, said: str) -> None:
    with server(project.folder) as found:
        found.process.send_signal(sign)
        assert found.end() == (code, said)


def test_mcp_writes_only_the_protocol_to_standard_output(project: ProjectFolder) -> None:
    """Neither what an application prints, nor what programs print that it starts."""
    (project.folder / "loud.py").write_text(
        "import os, subprocess, sys\n"
        "print('print')\nos.write(1, b'write\\n')\nsubprocess.run(['echo', 'echo'])\n"
        "assert sys.stdin.read() == '' and os.read(0, 9) == b''\n"
    )
    call = {"name": "runs", "arguments": {}}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*PROGRAM, "mcp", "--app", "loud"],
        cwd=project.folder,
        env=environment(),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    ) as process:
        found = Server(process)
        found.say(HELLO, {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call})
        assert [found.hear()["id"], found.hear()["id"]] == [1, 3]
        assert process.stdin is not None
        process.stdin.close()
        code, said = found.end()
    assert code == 0
    assert sorted(said.split()) == ["echo", "print", "write"]


def test_mcp_on_a_terminal_explains_itself(project: ProjectFolder) -> None:
    shown = project.terminal("mcp")
    shown.until("serving MCP on standard input and output")
    shown.interrupt()
    assert shown.end() == 130


def test_mcp_without_its_package_is_refused(project: ProjectFolder) -> None:
    hidden = project.folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['mcp'] = None\n")
    line = one_line(project.process("mcp", PYTHONPATH=str(hidden)), 2)
    assert "pip install 'holdfast[mcp]'" in line


def test_mcp_help_does_not_import_the_package(project: ProjectFolder) -> None:
    reported = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom holdfast.cli.app import run\nrun(['--help']), run(['mcp', '--help'])\n"
            "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'anyio', 'pydantic')])",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=project.folder,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert "Serve the store to agents" in reported.stdout
    assert reported.stdout.splitlines()[-1] == "[]"
