"""Large states by parts, and limits on what is sent and asked."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import web_workflows
from starlette.requests import Request
from web_server import TOKENS, Served, serving

import holdfast
from growth import growth
from holdfast.operator_view.truncate import TruncationLimits, value_node
from holdfast.tree.artifact import artifact
from holdfast.tree.values import Opaque
from holdfast.web.operation import Role
from holdfast.web.request import check_depth, read_cookie

STATE: dict[Any, Any] = {
    "messages": [{"n": number, "text": f"message {number}"} for number in range(5000)],
    "long": "x" * 1_000_000,
    "wide": {f"key {number}": number for number in range(3000)},
    "<script>alert(1)</script>": "</script>",
    (1, 2): "a tuple for a key",
    dt.date(2026, 11, 16): "a key that no path can name",
    "none": None,
    "odd": {1, 2},
    "bytes": b"\0" * 5000,
}
AT = "/runs/large/versions/head/state"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("large") / "holdfast.db"
    with holdfast.open(path, durability="memory") as hf:
        hf.history("large").commit(STATE)
        with serving(hf) as served:
            yield served


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Steps that gave much."""
    path: Path = tmp_path_factory.mktemp("given") / "holdfast.db"
    with holdfast.open(path, durability="memory") as hf:
        hf.run(web_workflows.report, 3_000_000, run_id="long")
        with serving(hf) as served:
            yield served


def entries(node: Any) -> dict[str, Any]:
    return {entry["label"]: entry for entry in node["entries"]}


def test_containers_are_truncated_with_counts(large: Served) -> None:
    found = large.get(AT, depth=1)
    assert (found["ref"], found["path"]) == ("large@1", "")
    node = found["node"]
    assert (node["kind"], node["count"], node["more"]) == ("dict", len(STATE), 0)
    parts = entries(node)
    assert parts["messages"]["node"] == {"kind": "list", "count": 5000}
    assert parts["wide"]["node"] == {"kind": "dict", "count": 3000}
    assert parts["none"]["node"] == {"kind": "none", "value": None}
    assert parts["bytes"]["node"] == {"kind": "bytes", "count": 5000}
    long = parts["long"]["node"]
    assert (long["count"], len(long["value"]), long["more"]) == (1_000_000, 1000, 999_000)
    assert [entry["path"] for entry in node["entries"]][4:6] == ["[(1, 2)]", None]
    assert len(json.dumps(found)) < 5000


def test_every_part_is_readable_by_its_path(large: Served) -> None:
    for entry in large.get(AT, depth=1)["node"]["entries"]:
        if entry["path"] is not None:
            found = large.get(AT, path=entry["path"], depth=0)
            assert found["path"] == entry["path"]
            assert found["node"]["kind"] == entry["node"]["kind"]
            assert found["node"].get("count") == entry["node"].get("count")


def test_list_is_read_by_pages(large: Served) -> None:
    got: list[int] = []
    while True:
        node = large.get(AT, path="messages", depth=2, limit=700, offset=len(got))["node"]
        got += [entry["node"]["entries"][0]["node"]["value"] for entry in node["entries"]]
        assert node["more"] == 5000 - len(got)
        if not node["more"]:
            break
    assert got == list(range(5000))
    assert large.get(AT, path="messages", depth=1, offset=9999)["node"]["entries"] == []


def test_text_is_read_by_pieces(large: Served) -> None:
    node = large.get(AT, path="long", depth=0, offset=999_990, text=100)["node"]
    assert (node["value"], node["more"]) == ("x" * 10, 0)


def test_response_size_is_bounded(large: Served) -> None:
    found = large.get(AT, depth=20, limit=1000, text=100_000)
    assert len(json.dumps(found)) < 5_000_000
    deep: Any = "x" * 100
    for _ in range(100):
        deep = [deep] * 3
    node = value_node(deep, TruncationLimits(levels=20, entries=1000, text=1000))
    assert len(json.dumps(node)) < 5_000_000


def test_cached_state_is_of_the_same_version(tmp_path: Path) -> None:
    """A run of the same name that took the place of another is another."""
    with holdfast.open(tmp_path / "holdfast.db") as hf, serving(hf) as served:
        for number in range(3):
            hf.history("one").commit({"n": number})
            found = served.get("/runs/one/versions/1/state", depth=1)["node"]
            assert found["entries"][0]["node"]["value"] == number
            hf.delete("one")
        for number in range(6):
            hf.history("two").commit({"n": number})
            served.get("/runs/two/versions/head/state", depth=1)
        assert len(served.server.app.service.recent._parts) == 4


def test_part_is_returned_completely(large: Served) -> None:
    assert large.get(AT, path="messages[3]")["value"] == {"n": 3, "text": "message 3"}
    missing = large.problem("GET", AT, 404, params={"path": "messages[5000]"})
    assert "5000 items" in missing["detail"]
    assert large.problem("GET", AT, 422, params={"path": "a["})["code"] == "invalid_reference"


#: Values that can be stored and that Python cannot write: it refuses integers of more than 4,300 digits.
HUGE = 10**5000
UNWRITABLE: list[Any] = [
    Fraction(HUGE, 3),
    HUGE,
    (HUGE, {HUGE}),
    range(HUGE),
    deque([HUGE]),
    Opaque("gone", [HUGE]),
    {HUGE: {-HUGE: 1}},
    {(HUGE, 1): 1, Fraction(HUGE, 3): 2},
    {"\ud800": "\udfff"},
    artifact(b"content", "lone \ud800 surrogate"),
]


@pytest.mark.parametrize("value", UNWRITABLE, ids=lambda value: type(value).__name__)
def test_values_without_a_text_form_are_shown(value: Any) -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("odd")
        for state in ({"a": 1}, {"a": value}, {"a": [value]}):
            log.commit(state)
        with log.edit() as changed:
            changed["a"].append(2)
        with serving(hf) as served:
            client = served.client()
            for path in (
                *(
                    f"/diff{query}"
                    for query in ("?a=odd@1&b=@2", "/patch?a=odd@1&b=@3", "/patch?a=odd@3&b=@4")
                ),
                *(f"/diff?a=odd@{number}&b=@4&cut=true" for number in (1, 2, 3)),
                "/compare?a=odd@1&b=@4&cut=true",
                *(
                    f"/runs/odd/versions/{version}{part}"
                    for version in (2, 3, 4)
                    for part in (
                        "",
                        "?cut=true",
                        "/state",
                        "/state?depth=0",
                        "/state?depth=5",
                        "/state?path=a&depth=5&text=5",
                        "/blame?depth=5&values=true",
                        "/raw",
                        "/raw?path=a",
                        "/artifacts",
                        "/snapshot",
                    )
                ),
            ):
                found = client.get(f"/api/v1{path}")
                assert found.status_code == 200, (path, found.text)


def test_text_is_returned_as_a_file(large: Served) -> None:
    found = large.client().get("/api/v1/runs/large/versions/1/raw", params={"path": "long"})
    assert found.text == "x" * 1_000_000
    assert found.headers["content-type"] == "text/plain; charset=utf-8"
    assert found.headers["content-disposition"].startswith("attachment; ")


# Limits


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/runs", {"limit": 1001}),
        ("/runs", {"limit": 0}),
        ("/runs", {"limit": "x"}),
        ("/runs", {"status": "none"}),
        ("/runs", {"nothing": 1}),
        ("/runs", {"limit": [1, 2]}),
        ("/runs", {"since": "whenever"}),
        ("/runs", {"tag": [f"tag-{number}" for number in range(51)]}),
        ("/runs", {"status": ["failed"] * 51}),
        ("/events", {"kind": ["x"] * 51}),
        ("/events", {"after": -1}),
        ("/events", {"after": 10**30}),
        ("/diff", {}),
        (AT, {"depth": 21}),
        (AT, {"text": 10**6}),
        (AT, {"path": "x" * 10_001}),
    ],
)
def test_query_is_checked(large: Served, path: str, query: dict[str, Any]) -> None:
    assert large.problem("GET", path, 422, params=query)["code"] == "invalid"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"[1]", 422, "invalid"),
        (b'{"to": 1, "more": 2}', 422, "invalid"),
        (b'{"resume": true}', 422, "invalid"),
        (b'{"to": 1, "wait": 31}', 422, "invalid"),
        (b'{"to": 1, "resume": "yes"}', 422, "invalid"),
        (b"{", 400, "no_json"),
        (b"\xff", 400, "no_json"),
        (b'{"to": "\\ud800"}', None, None),
        (b"[" * 700, 422, "too_deep"),
        (b'{"to": "' + b"[" * 700 + b'"}', 422, "invalid_reference"),
        (b" " * ((1 << 20) + 1), 413, "too_large"),
    ],
)
def test_body_is_checked(large: Served, body: bytes, status: int | None, code: str | None) -> None:
    headers = {"content-type": "application/json"}
    found = large.client().post("/api/v1/runs/large/rollback", content=body, headers=headers)
    assert status is None or (found.status_code, found.json()["code"]) == (status, code)
    assert found.status_code < 500


@pytest.mark.parametrize("piece", [b'\\"', b'"a', b'"', b"\\", b'["', b"[]", b'{"a\\'], ids=repr)
def test_check_of_a_body_takes_linear_time(piece: bytes) -> None:
    """Eight times the length costs about eight times; a quadratic search would cost 64 times."""
    assert growth(check_depth, lambda size: b'"' + piece * size, 20_000 // len(piece)) < 30


@pytest.mark.parametrize("piece", [r"\0", r"\"", r"\1", ";", "=", "; a="], ids=repr)
def test_reading_a_cookie_takes_linear_time(piece: str) -> None:
    def read(cookie: bytes) -> str | None:
        # A request remembers its cookies.
        return read_cookie(Request({"type": "http", "headers": [(b"cookie", cookie)]}), "own")

    def made(size: int) -> bytes:
        return f'a="{piece * size}"; own=value'.encode()

    assert read(made(10)) == "value"
    assert growth(read, made, 4000) < 30


@pytest.mark.parametrize(
    ("cookies", "found"),
    [
        (["own=value"], "value"),
        (["a=1;own=value ; b"], "value"),
        (["own=other; own=value"], "value"),
        (['own="a\\073b"'], '"a\\073b"'),
        (["a=own=value", "b=2"], None),
        (["a=1", "own=value"], "value"),
        ([], None),
    ],
)
def test_cookie_is_found_by_its_name(cookies: list[str], found: str | None) -> None:
    headers = [(b"cookie", cookie.encode()) for cookie in cookies]
    assert read_cookie(Request({"type": "http", "headers": headers}), "own") == found


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
def test_form_of_another_page_is_not_parsed_as_json(large: Served, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    found = large.client().post("/api/v1/runs/large/rollback", content=b'{"to": 1}', headers=headers)
    assert (found.status_code, found.json()["code"]) == (415, "wrong_type")


def test_endless_body_is_refused(large: Served) -> None:
    """No length is reported, and no end comes: what is too much is refused while it is coming."""
    host, port = large.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as made:
        made.sendall(
            f"POST /api/v1/runs/large/rollback HTTP/1.1\r\nhost: {host}:{port}\r\n"
            f"authorization: Bearer {TOKENS[Role.ADMIN]}\r\ncontent-type: application/json\r\n"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        sent = 0
        try:
            while sent < 64 << 20:
                made.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 65536
        except OSError:
            pass
        assert sent < 32 << 20
        # Where the server has closed it, the answer may be lost with what was still being sent.
        with suppress(ConnectionError):
            assert b" 413 " in made.makefile("rb").readline()


@pytest.mark.parametrize(
    "run", ["a%00b", "%ff", "..%2F..%2Fetc", "%20", "x" * 5000, "%F0%9F%90%99", "a%0d%0ab", "~1", "@"]
)
def test_hostile_names_are_served(large: Served, run: str) -> None:
    for path in (f"/runs/{run}", f"/runs/{run}/versions/1", f"/runs/large/versions/{run}", f"/inbox/{run}"):
        found = large.client().get(f"/api/v1{path}")
        assert found.status_code in (404, 422), (path, found.text)
        assert "Traceback" not in found.text


def test_step_result_is_truncated_on_request(given: Served) -> None:
    whole = given.get("/runs/long/versions/2")
    assert len(whole["result"]["text"]) == 3_000_000
    cut = given.get("/runs/long/versions/2", cut=True)
    parts = {"arguments": None, "result": None, "annotations": None}
    assert {**cut, **parts} == {**whole, **parts}
    text = entries(cut["result"])["text"]["node"]
    assert (text["count"], len(text["value"]), text["more"]) == (3_000_000, 10_000, 2_990_000)
    assert cut["annotations"] == {"kind": "none", "value": None}
    assert len(json.dumps(cut)) < 12_000


def test_run_result_is_truncated_on_request(given: Served) -> None:
    assert len(given.get("/runs/long")["result"]["text"]) == 3_000_000
    assert len(json.dumps(given.get("/runs/long", cut=True))) < 12_000


def test_step_result_is_returned_as_a_file(given: Served) -> None:
    file = given.client().get("/api/v1/runs/long/versions/2/raw", params={"of": "result"})
    assert file.headers["content-disposition"].startswith("attachment")
    assert file.json() == {"text": "y" * 3_000_000}
    at = "/runs/long/versions/2/raw?of=result&path=text"
    assert "a path refers to the state" in given.problem("GET", at, 422)["detail"]


def test_step_arguments_are_returned_by_parameter(given: Served) -> None:
    whole = given.get("/runs/long/versions/2")
    assert whole["arguments"] == {"length": 3_000_000}
    cut = given.get("/runs/long/versions/2", cut=True)
    assert entries(cut["arguments"])["length"]["node"] == {"kind": "int", "value": 3_000_000}
    file = given.client().get("/api/v1/runs/long/versions/2/raw", params={"of": "arguments"})
    assert file.json() == whole["arguments"]
    assert given.get("/runs/long/versions/3")["arguments"] is None
