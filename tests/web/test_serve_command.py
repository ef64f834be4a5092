"""`holdfast serve` and `holdfast ui` as people start them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import terminal
from serve_process import Process
from terminal import PROGRAM, Terminal, environment

import holdfast
from patience import until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "holdfast.db", durability="memory", redact=["password"]) as hf:
        hf.history("first").commit({"password": "hunter2-hunter2", "n": 1})
    return tmp_path


def test_serve_help_does_not_import_the_web(tmp_path: Path) -> None:
    code = (
        "import sys; from holdfast.cli.app import run; run(sys.argv[1:]); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('starlette','uvicorn','anyio','asyncio')))"
    )
    for arguments in (["--help"], ["serve", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]"


def test_serve_generates_a_token(folder: Path) -> None:
    with Process(folder) as process:
        assert httpx.get(f"{process.url}/api/v1/runs").status_code == 401
        found = httpx.get(f"{process.url}/api/v1/runs", headers=process.headers)
        assert [run["id"] for run in found.json()["runs"]] == ["first"]
        assert process.end() == 0


def test_serve_logs_no_secret(folder: Path) -> None:
    """Not the token, not a code, not a session, not what was redacted; whatever is called, and however wrong."""
    (folder / "tokens").write_text(
        "# who\nviewer viewer-0123456789-0123456789\noperator other-0123456789-012\n"
    )
    (folder / "tokens").chmod(0o600)
    secret = "environment-0123456789-0123456789"
    with Process(folder, "--token-file", "tokens", HOLDFAST_TOKEN=secret, PYTHONASYNCIODEBUG="1") as process:
        assert "token" not in process.reported
        code = process.reported["launch"].partition("code=")[2]
        with httpx.Client(base_url=process.url) as client:
            session = client.get(process.reported["launch"]).cookies
            for token in (secret, "viewer-0123456789-0123456789", "wrong-0123456789-0123456789"):
                client.cookies.clear()
                headers = {"authorization": f"Bearer {token}"}
                for path in (
                    "runs",
                    "runs/none",
                    "runs/first/versions/1/state",
                    f"runs/{token}",
                    "runs?limit=x",
                ):
                    found = client.get(f"/api/v1/{path}", headers=headers)
                    assert "hunter2" not in found.text
                client.post("/api/v1/runs/first/rollback", content=b"{", headers=headers)
        assert process.end() == 0
        logged = process.log.read_text()
        for each in (secret, code, "viewer-0123456789", "hunter2", *session.values()):
            assert each not in logged


def test_token_file_is_created_private(folder: Path) -> None:
    with Process(folder, "--token-file", "made") as process:
        path = folder / "made"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        role, token = path.read_text().split()
        assert role == "admin"
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{process.url}/api/v1/session", headers=headers).json()["role"] == "admin"
        assert "token" not in process.reported


@pytest.mark.parametrize(
    ("content", "mode", "reported"),
    [
        ("admin long-enough-0123456789", 0o644, "can be read by others"),
        ("admin short", 0o600, "at least 20"),
        ("root long-enough-0123456789", 0o600, "line 1: write the role"),
        ("\n# nothing\n", 0o600, "has no tokens"),
        ("admin long-enough-0123456789 launch", 0o600, "'launch' is taken"),
        (
            "admin long-enough-0123456789 x\nviewer long-enough-012345678 x",
            0o600,
            "line 2: the name 'x' is taken",
        ),
        ("admin long-enough-0123456789 a\tb", 0o600, "printable"),
        (
            "viewer long-enough-0123456789 x\n\nadmin long-enough-0123456789 y",
            0o600,
            "line 3: the token is the same as in line 1",
        ),
        (
            "viewer environment-long-enough-0123456789",
            0o600,
            "line 1: the token is the same as in HOLDFAST_TOKEN",
        ),
    ],
)
def test_invalid_token_file_is_refused(folder: Path, content: str, mode: int, reported: str) -> None:
    (folder / "tokens").write_text(content)
    (folder / "tokens").chmod(mode)
    done = terminal.call(
        "serve",
        "--port",
        "0",
        "--token-file",
        "tokens",
        cwd=folder,
        HOLDFAST_TOKEN="environment-long-enough-0123456789",
    )
    assert (done.code, done.out) == (2, "")
    assert reported in done.err
    assert "long-enough" not in done.err


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "is not a regular file"),
        ("folder", "is not a regular file"),
        ("latin-1", "is not UTF-8"),
    ],
)
def test_token_file_that_cannot_be_read_is_refused(folder: Path, kind: str, reason: str) -> None:
    path = folder / "tokens"
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes("viewer long-enough-0123456789 Zoë".encode("latin-1"))
        path.chmod(0o600)
    done = terminal.call("serve", "--port", "0", "--token-file", "tokens", cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
    assert "Traceback" not in done.err


def test_token_file_is_read_as_utf_8_in_any_locale(folder: Path) -> None:
    secret = "long-enough-0123456789"
    (folder / "tokens").write_text(f"viewer {secret} Zoë\n", encoding="utf-8")
    (folder / "tokens").chmod(0o600)
    with Process(
        folder, "--token-file", "tokens", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"
    ) as process:
        headers = {"authorization": f"Bearer {secret}"}
        assert httpx.get(f"{process.url}/api/v1/session", headers=headers).json()["name"] == "Zoë"


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--host", "0.0.0.0"], "--allowed-host"),
        (["--host", "0.0.0.0", "--allowed-host", "x.example"], "--token-file"),
        (["--host", "0.0.0.0", "--token-file", "made"], "--allowed-host"),
        (["--host", "no such host"], "--allowed-host"),
        (["--port", "70000"], "range"),
    ],
)
def test_serve_refuses_unsafe_options(folder: Path, arguments: list[str], reported: str) -> None:
    done = terminal.call("serve", *arguments, cwd=folder)
    assert done.code == 2
    assert reported in done.err


def test_serve_reports_a_taken_port_and_a_missing_store(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Process(folder) as process:
        port = process.url.rpartition(":")[2]
        done = terminal.call("serve", "--port", port, cwd=folder)
        assert (done.code, "--port 0" in done.err) == (2, True)
    done = terminal.call("serve", "--port", "0", cwd=tmp_path_factory.mktemp("empty"))
    assert (done.code, "holdfast init" in done.err) == (10, True)


def test_serve_on_a_terminal_prints_the_url(folder: Path) -> None:
    opened = Terminal("serve", "--port", "0", cwd=folder)
    opened.until("token")
    found = re.search(r"open +(http://127\.0\.0\.1:\d+/launch\?code=\S+)", opened.text)
    assert found, opened.text
    with httpx.Client() as client:
        assert client.get(found[1]).status_code == 303
    opened.type("\x03")
    assert opened.end() == 0
    assert "stopped" in opened.text


def test_serve_prints_no_secrets_to_a_log(folder: Path) -> None:
    with (folder / "out.log").open("wb") as log:
        popen = subprocess.Popen(
            [*PROGRAM, "serve", "--port", "0"],
            cwd=folder,
            env=environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: (folder / "out.log").read_text().count("\n") >= 3)
        text = (folder / "out.log").read_text()
        assert "serving holdfast.db at http://127.0.0.1:" in text
        assert "printed on a terminal, or with --json" in text
        assert "code=" not in text
        assert "token  " not in text
    finally:
        popen.terminate()
        assert popen.wait(20) == 0


def test_token_file_names_its_tokens(folder: Path) -> None:
    secret = "long-enough-0123456789"
    (folder / "tokens").write_text(f"viewer {secret} Ada Lovelace\n")
    (folder / "tokens").chmod(0o600)
    with Process(folder, "--token-file", "tokens") as process:
        headers = {"authorization": f"Bearer {secret}"}
        assert httpx.get(f"{process.url}/api/v1/session", headers=headers).json()["name"] == "Ada Lovelace"


def test_serve_names_unfinished_runs_when_it_stops(folder: Path) -> None:
    (folder / "stuck.py").write_text(
        "import holdfast, time\n"
        "@holdfast.step\ndef wait() -> None:\n    time.sleep(60)\n"
        "@holdfast.workflow\ndef stuck() -> None:\n    wait()\n"
    )
    (folder / "tokens").write_text("operator operator-0123456789-0123456789\n")
    (folder / "tokens").chmod(0o600)
    opened = Terminal(
        "serve", "--port", "0", "--token-file", "tokens", "--app", "stuck", cwd=folder, PYTHONPATH="."
    )
    opened.until("launch")
    found = re.search(r"(http://127\.0\.0\.1:\d+)/launch", opened.text)
    assert found, opened.text
    headers = {"authorization": "Bearer operator-0123456789-0123456789"}
    with httpx.Client(base_url=f"{found[1]}/api/v1", headers=headers) as client:
        assert client.post("/enqueue", json={"workflow": "stuck", "run": "stuck-1"}).status_code == 200
        assert client.post("/runs/stuck-1/resume", json={"wait": 0}).status_code == 202
    opened.type("\x03")
    assert opened.end() == 0
    assert "stuck-1 was running here: continue it with `holdfast resume stuck-1`" in opened.text


def test_ui_opens_a_browser(folder: Path) -> None:
    """With a browser that writes down what it is to open. The code is not in its command line, but in a file for its
    owner alone, which is removed when the code was used."""
    browser = folder / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened.txt\n')
    browser.chmod(0o755)
    popen = subprocess.Popen(
        [*PROGRAM, "ui", "--port", "0", "--json"],
        cwd=folder,
        env=environment(BROWSER=f"{browser} %s"),
        stdout=subprocess.PIPE,
    )
    try:
        assert popen.stdout is not None
        reported = json.loads(popen.stdout.readline())
        # It was opened before anything is answered; the line is there before it.
        while not (folder / "opened.txt").exists() or not (folder / "opened.txt").read_text():
            assert popen.poll() is None
        opened = (folder / "opened.txt").read_text().strip()
        assert opened.startswith("file://")
        assert "code" not in opened
        path = Path(opened.removeprefix("file://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        found = re.search(r"url=(\S+?)\"", path.read_text())
        assert found is not None
        assert found[1] != reported["launch"]
        assert httpx.get(found[1]).status_code == 303
        assert not path.parent.exists()
        assert httpx.get(reported["launch"]).status_code == 303
    finally:
        os.kill(popen.pid, 15)
        assert popen.wait(20) == 0
        if popen.stdout is not None:
            popen.stdout.close()


def test_ui_takes_another_port_if_its_own_is_taken(folder: Path) -> None:
    with socket.socket() as other:
        with suppress(OSError):  # the port is taken already
            other.bind(("127.0.0.1", 7433))
            other.listen()
        refused = terminal.call("serve", cwd=folder)
        assert (refused.code, "--port 0 takes a free one" in refused.err) == (2, True)
        popen = subprocess.Popen(
            [*PROGRAM, "ui", "--json"],
            cwd=folder,
            env=environment(BROWSER="true"),
            stdout=subprocess.PIPE,
        )
        try:
            assert popen.stdout is not None
            reported = json.loads(popen.stdout.readline())
            assert not reported["url"].endswith(":7433")
            assert httpx.get(reported["url"]).status_code == 200
        finally:
            os.kill(popen.pid, 15)
            assert popen.wait(20) == 0
            if popen.stdout is not None:
                popen.stdout.close()


def test_serve_resumes_with_the_code_of_an_app(folder: Path) -> None:
    (folder / "flows.py").write_text(
        "from holdfast import workflow\n\n@workflow(name='tide')\ndef tide():\n    return 'high'\n"
    )
    with holdfast.open(folder / "holdfast.db") as hf:
        hf.enqueue("tide", run_id="tide-1")
    with Process(folder, "--app", "flows") as process:
        found = httpx.get(f"{process.url}/api/v1/session", headers=process.headers).json()
        assert found["workflows"] == ["tide"]
        done = httpx.post(
            f"{process.url}/api/v1/runs/tide-1/resume", headers=process.headers, json={"wait": 20}
        )
        assert done.status_code == 200, done.text
        assert done.json()["result"] == {
            "run": "tide-1",
            "status": "completed",
            "version": 2,
            "timeline": 1,
            "result": "high",
        }


def test_serve_imports_no_code_unless_asked(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.holdfast]\napp = "trap"\n')
    (folder / "trap.py").write_text("import pathlib\npathlib.Path('sprung').touch()\n")
    with Process(folder) as process:
        assert httpx.get(f"{process.url}/api/v1/session", headers=process.headers).json()["workflows"] == []
    assert not (folder / "sprung").exists()
    opened = Terminal("serve", "--port", "0", cwd=folder)
    opened.until("token")
    opened.type("\x03")
    assert opened.end() == 0
    assert "is not imported: use --app trap" in " ".join(opened.text.split())
    with Process(folder, HOLDFAST_APP="trap"):
        assert (folder / "sprung").exists()


def test_serve_without_the_page_says_how_to_install_it(folder: Path) -> None:
    """On standard error, and to the browser that `ui` opens."""
    site = folder / "site"
    shutil.copytree(
        Path(holdfast.__file__).parent,
        site / "holdfast",
        ignore=shutil.ignore_patterns("page", "__pycache__"),
    )
    with Process(folder, PYTHONPATH=str(site)) as process:
        assert process.reported["page"] is False
        shown = httpx.get(process.reported["launch"], follow_redirects=True).text
        assert process.end() == 0
    opened = Terminal("serve", "--port", "0", cwd=folder, PYTHONPATH=str(site))
    opened.until("token")
    opened.type("\x03")
    assert opened.end() == 0
    # The terminal wraps lines anywhere.
    for text in (shown, opened.text):
        for part in ("does not include the web page", "install Node.js", "pip install"):
            assert "".join(part.split()) in "".join(text.split())
