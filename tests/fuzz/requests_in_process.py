"""Requests to the real application, in this process, on a store with runs of every kind."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_from_bytes, urlencode

import msgspec

import holdfast
from holdfast import Holdfast, Retention, step, workflow
from holdfast.loops import LoopEngine
from holdfast.web.app import WebApp, table
from holdfast.web.auth import Credentials, Token
from holdfast.web.operation import Operation, Role, Stream
from holdfast.web.page import PageFiles
from holdfast.web.service import ServerSettings

#: What a request consists of. `path` has `{…}` where the `parts` go; `query` is pairs or the text itself; `body` is any
#: value, to be sent as JSON, or bytes, to be sent as they are; `media` is the media type, None for the right one.
PARTS = ("role", "method", "path", "parts", "query", "body", "media")
ROLES = [None, Role.VIEWER, Role.OPERATOR, Role.ADMIN]

_HOST = "fuzz.test"
_PROBLEM = {"type", "title", "status", "detail", "code", "details"}


@step(name="fuzz_plan")
def plan(topic: str) -> int:
    holdfast.state().update(topic=topic, tasks=[{"name": "read", "done": False}])
    holdfast.annotate(tokens=3, cost=0.5, model="small")
    return 1


@step(name="fuzz_publish", compensate=lambda result: None)
def publish(topic: str) -> str:
    if topic == "bad":
        raise ValueError("no")
    holdfast.state()["published"] = True
    return topic


@workflow(name="fuzz_study")
def study(topic: str) -> str:
    plan(topic)
    if topic == "ask" and not holdfast.ask("Publish?", schema={"type": "boolean"}):
        return "no"
    if topic == "wait":
        holdfast.wait_for("go")
    return publish(topic)


def stock(hf: Holdfast) -> None:
    """Make runs of every kind."""
    for topic in ("good", "bad", "ask", "wait"):
        hf.run(study, topic, run_id=topic, raises=False)
    hf.enqueue(study, "later", run_id="queued", queue="q")
    log = hf.history("hand")
    for number in range(4):
        log.commit({"n": number, "file": holdfast.artifact(b"content"), "api_key": "x"}, tags=[f"t{number}"])
    log.rollback(to=2, reason="why")
    log.commit({"n": 9})
    log.prune(Retention(last=4))
    hf.fork("good", "fork", at=2)
    loops = LoopEngine(hf)
    loops.log_agent_start("project", "agent")
    loops.save_loop_snapshot("project", {"a": 1})


OPERATIONS: list[Operation] = [
    operation for operation in table(legacy_get=True) if operation.answer is not Stream
]


class Served:
    """The application on a copy of the store, which is replaced when a request has changed it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
        with holdfast.open(self._folder / "stock.db", durability="fast") as hf:
            stock(hf)
        self._runner = asyncio.Runner()
        self._hf: Holdfast | None = None
        self._app: WebApp | None = None

    def close(self) -> None:
        self.change()
        self._runner.close()
        shutil.rmtree(self._folder)

    def change(self) -> None:
        """Have the next request find the store as it was at first."""
        if self._hf is not None and self._app is not None:
            for task in self._app.service.tasks.all():
                task.future.exception(60)
            self._hf.close()
        self._hf = self._app = None

    def verify(self) -> None:
        """Assert that nothing is wrong with the store."""
        assert self._hf is not None
        report = self._hf.verify()
        assert report.ok, report.problems

    def send(self, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._app is None:
            for end in ("", "-wal", "-shm"):
                (self._folder / f"used.db{end}").unlink(missing_ok=True)
            shutil.copy(self._folder / "stock.db", self._folder / "used.db")
            self._hf = holdfast.open(self._folder / "used.db", durability="fast")
            keys = Credentials([Token(_secret(role), role) for role in ROLES if role is not None])
            settings = ServerSettings(
                store="used.db", where="used.db", hosts=[_HOST], origin=f"http://{_HOST}", legacy_get=True
            )
            self._app = WebApp(self._hf, keys, settings, PageFiles(self._folder))
        return self._runner.run(_call(self._app, scope, body))


async def _call(app: WebApp, scope: dict[str, Any], body: bytes) -> tuple[int, dict[str, str], bytes]:
    asked: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not asked:
            await asyncio.Event().wait()
        return asked.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


def _secret(role: Role) -> str:
    return f"{role.name}-0123456789-0123456789"


def check(request: dict[str, Any]) -> None:
    """Send a request, and assert that its answer is one of those that there may be."""
    served = _served()
    role = ROLES[request["role"] % len(ROLES)] if isinstance(request["role"], int) else None
    method = (
        request["method"] if isinstance(request["method"], str) and request["method"].isupper() else "POST"
    )
    body, media = _body(request)
    raw_path, query = _address(request)
    headers = [(b"host", _HOST.encode()), (b"content-length", str(len(body)).encode())]
    if media:
        headers.append((b"content-type", media.encode("latin-1", "replace")))
    if role is not None:
        headers.append((b"authorization", f"Bearer {_secret(role)}".encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": raw_path, "raw_path": raw_path.encode("latin-1"), "query_string": query, "root_path": "",
        "headers": headers, "client": ("127.0.0.1", 1), "server": (_HOST, 80),
    }  # fmt: skip
    try:
        if raw_path.rstrip("/") != "/api/v1/events/stream":
            status, found, answer = served.send(scope, body)
            _assert_answer(method, status, found, answer)
            operation = _operation(request, method)
            if operation is not None and operation.role > (role or Role.PUBLIC) and status != 404:
                assert status in (401, 403), (status, answer)
            if status < 300 and (operation is None or operation.changes):
                served.verify()
                served.change()
    except BaseException:
        served.change()
        raise


def _assert_answer(method: str, status: int, headers: dict[str, str], answer: bytes) -> None:
    assert 200 <= status < 500, (status, answer)
    media = headers.get("content-type", "")
    if method == "HEAD":
        return
    if media.endswith("json"):
        document = msgspec.json.decode(answer)
        is_problem = media.startswith("application/problem")
        assert status < 400 or not is_problem or set(document) == _PROBLEM, document
        # What a loop engine says of an error that it did not expect.
        assert not isinstance(document, dict) or document.get("code") != "unexpected", document
    else:
        assert status < 400 or not answer or media.startswith("text/"), (status, media, answer)


def _operation(request: dict[str, Any], method: str) -> Operation | None:
    return next((each for each in OPERATIONS if (each.method, each.path) == (method, request["path"])), None)


def _body(request: dict[str, Any]) -> tuple[bytes, str | None]:
    body, media = request["body"], request["media"]
    if body is None:
        return b"", media if isinstance(media, str) else None
    is_raw = isinstance(body, bytes)
    if not isinstance(media, str):
        media = "application/octet-stream" if is_raw else "application/json"
    if is_raw:
        return bytes(body), media
    try:
        return json.dumps(body, default=str).encode(), media
    except (TypeError, ValueError):
        return repr(body).encode(errors="replace"), media
    except RecursionError:
        # Deeper than Python writes, and perhaps than it shows.
        return b"[" * 5000, media


def _address(request: dict[str, Any]) -> tuple[str, bytes]:
    path = request["path"] if isinstance(request["path"], str) else "/"
    parts = request["parts"] if isinstance(request["parts"], list) else []
    for name in [piece.partition("}")[0] for piece in path.split("{")[1:]]:
        part, parts = (parts[0], parts[1:]) if parts else ("", [])
        written = (
            quote_from_bytes(part, "") if isinstance(part, bytes) else quote(str(part), "", errors="replace")
        )
        path = path.replace(f"{{{name}}}", written, 1)
    query = request["query"]
    if isinstance(query, dict):
        query = urlencode({str(name): str(value) for name, value in query.items()}, errors="replace")
    if not isinstance(query, bytes):
        query = str(query or "").encode(errors="replace")
    return quote(path, "/%", errors="replace"), query


_all: list[Served] = []


def _served() -> Served:
    if not _all:
        _all.append(Served())
    return _all[0]


def close() -> None:
    """Remove what requests have left behind."""
    while _all:
        _all.pop().close()
