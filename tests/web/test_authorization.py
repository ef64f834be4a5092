"""Who is let in: no route without a token, no other host, no other origin, no more than a role may."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from filled_store import STORE
from web_server import TOKENS, Served, serving

import holdfast
from holdfast import InvalidCall
from holdfast.web.app import table
from holdfast.web.auth import (
    CODE_SECONDS,
    MAX_CODES,
    MAX_SESSIONS,
    SESSION_SECONDS,
    Caller,
    Credentials,
    Token,
)
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Operation, Role
from holdfast.web.page import PageFiles
from holdfast.web.server import ServeOptions, Server, is_loopback

EVERY = table(legacy_get=True)
#: The public operations.
PUBLIC = {("GET", "/launch")}
RUNS = "/api/v1/runs"


@pytest.fixture(scope="module")
def legacy(filled: Path) -> Iterator[Served]:
    where = str(filled / STORE)
    with holdfast.open(where) as hf, serving(hf, where=where, legacy_get=True) as found:
        yield found


def path_of(operation: Operation) -> str:
    return re.sub(r"\{\w+\}", "report-1", operation.path)


def named(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


@pytest.mark.parametrize("operation", EVERY, ids=named)
def test_route_without_a_token_is_refused(legacy: Served, operation: Operation) -> None:
    if (operation.method, operation.path) in PUBLIC:
        assert operation.role is Role.PUBLIC
        return
    assert operation.role is not Role.PUBLIC
    for headers in (
        {},
        {"authorization": "Bearer wrong-0123456789-0123456789"},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {TOKENS[Role.ADMIN]}"},
        {"cookie": f"{legacy.server.app.service.settings.cookie}={TOKENS[Role.ADMIN]}"},
    ):
        # A stream would not end by itself if it were started.
        found = legacy.client(None).request(operation.method, path_of(operation), headers=headers)
        assert found.status_code == 401, found.text
        assert found.headers["www-authenticate"] == 'Bearer realm="holdfast"'
        assert found.json()["code"] == "unknown_caller"


@pytest.mark.parametrize("operation", EVERY, ids=named)
def test_route_for_another_host_is_refused(legacy: Served, operation: Operation) -> None:
    for host in ("evil.example", "127.0.0.1", f"{legacy.url[7:]}.evil.example", "localhost:1"):
        found = legacy.client().request(operation.method, path_of(operation), headers={"host": host})
        assert (found.status_code, found.json()["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_unknown_path_is_reported_to_authorized_callers_only(served: Served, method: str) -> None:
    for path in ("/api/v1/none", "/api", "/api/", "/api/v2/runs", "/api/v1/runs/"):
        assert served.client(None).request(method, path).status_code == 401
        assert served.client().request(method, path).status_code == 404
    assert served.client(None).request(method, RUNS).status_code == 401
    assert served.client(None).request(method, "/", headers={"host": "evil"}).status_code == 421


@pytest.mark.parametrize("operation", EVERY, ids=named)
def test_wrong_method_lists_the_allowed_ones(legacy: Served, operation: Operation) -> None:
    wrong = next(
        each
        for each in ("PATCH", "TRACE")
        if (each, operation.path) not in {(o.method, o.path) for o in EVERY}
    )
    found = legacy.client().request(wrong, path_of(operation))
    assert found.status_code == 405
    assert operation.method in found.headers["allow"]


def test_other_origin_never_reads_a_response(served: Served) -> None:
    client = served.client(None)
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    for path in ("/", RUNS, "/launch"):
        for method in ("OPTIONS", "GET"):
            found = client.request(method, path, headers=asked)
            assert not [name for name in found.headers if name.startswith("access-control")]


def test_request_needs_exactly_one_host(served: Served) -> None:
    host, port = served.url[7:].split(":")

    def status(*headers: bytes) -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as made:
            made.sendall(b"GET /api/v1/runs HTTP/1.1\r\n" + b"".join(headers) + b"connection: close\r\n\r\n")
            return made.makefile("rb").readline()

    own = f"host: {host}:{port}\r\n".encode()
    assert b"401" in status(own)
    assert b"400" in status()
    assert b"400" in status(own, b"host: evil.example\r\n")
    assert b"400" in status(b"host: \r\n")


# Browsers


def test_code_becomes_a_session_once(served: Served) -> None:
    client = served.client(None)
    url = served.server.launch()
    assert client.head(url).status_code == 401, "HEAD does not use the code"
    found = client.get(url)
    assert (found.status_code, found.headers["location"]) == (303, "/")
    cookie = found.headers["set-cookie"]
    assert re.search(r"HttpOnly", cookie)
    assert re.search(r"SameSite=strict", cookie, re.I)
    assert "Domain" not in cookie
    assert url.partition("code=")[2] not in cookie
    assert client.get("/api/v1/session").json()["role"] == "admin"
    again = served.client(None).get(url)
    assert again.status_code == 403
    assert "has been used already" in again.text
    assert served.client(None).get("/launch?code=guess").status_code == 403


def test_codes_and_sessions_expire() -> None:
    now = [100.0]
    keys = Credentials([], clock=lambda: now[0])
    late, early = keys.code(Role.VIEWER), keys.code(Role.VIEWER)
    session = keys.redeem(early)
    assert session is not None
    now[0] += CODE_SECONDS
    assert keys.redeem(late) is None
    caller = keys.browser(session)
    assert caller is not None
    assert keys.is_valid(caller)
    now[0] += SESSION_SECONDS
    assert keys.browser(session) is None
    assert not keys.is_valid(caller)


def test_caller_cannot_end_sessions_of_other_owners(served: Served) -> None:
    """However many codes and sessions a viewer makes."""
    admin = served.browser()
    url = served.server.launch()
    viewer = served.client(Role.VIEWER)
    for _ in range(MAX_SESSIONS + MAX_CODES):
        made = viewer.post("/api/v1/codes", json={}).json()["url"]
        with served.client(None) as browser:
            assert browser.get(made).status_code == 303
    for _ in range(MAX_CODES + 1):
        assert viewer.post("/api/v1/codes", json={}).status_code == 200
    assert admin.get("/api/v1/session").json()["role"] == "admin"
    assert served.client(None).get(url).status_code == 303


def test_codes_and_sessions_per_caller_are_limited() -> None:
    keys = Credentials([Token("token", Role.VIEWER)])
    caller = keys.program("token")
    assert caller is not None
    codes = [keys.code(Role.VIEWER, caller) for _ in range(MAX_CODES + 1)]
    assert keys.redeem(codes[0]) is None
    sessions = [keys.redeem(code) for code in codes[1:]]
    assert all(sessions)
    more = [keys.redeem(keys.code(Role.VIEWER, caller)) for _ in range(MAX_SESSIONS - MAX_CODES + 1)]
    assert keys.browser(sessions[0] or "") is None
    assert all(keys.browser(session or "") for session in sessions[1:] + more)


def test_sessions_do_not_outlive_the_session_they_came_from() -> None:
    now = [0.0]
    keys = Credentials([], clock=lambda: now[0])

    def opened(by: Caller | None = None) -> tuple[str, Caller]:
        session = keys.redeem(keys.code(Role.VIEWER, by))
        assert session is not None
        caller = keys.browser(session)
        assert caller is not None
        return session, caller

    first, caller = opened()
    now[0] = SESSION_SECONDS - 10
    second, _ = opened(caller)
    assert keys.seconds_left(second) == 10
    late = keys.code(Role.VIEWER, caller)
    now[0] += 10
    assert (keys.browser(first), keys.browser(second), keys.redeem(late)) == (None, None, None)
    # Nor is one that was ended.
    first, caller = opened()
    second, handed = opened(caller)
    code = keys.code(Role.VIEWER, caller)
    with pytest.raises(RequestRefused, match="ask that one"):
        keys.code(Role.VIEWER, handed)
    keys.end(caller)
    assert (keys.browser(first), keys.browser(second), keys.redeem(code)) == (None, None, None)
    with pytest.raises(RequestRefused, match="has ended"):
        keys.code(Role.VIEWER, caller)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.ADMIN])
def test_launch_url_has_the_highest_role_of_the_tokens(role: Role) -> None:
    tokens = [Token(TOKENS[each], each) for each in TOKENS if each <= role]
    with holdfast.open(":memory:") as hf, serving(hf, tokens=tokens) as served:
        found = served.browser().get("/api/v1/session").json()
        assert (found["role"], found["name"]) == (role.name.lower(), "launch")


def test_tokens_have_unique_names(served: Served) -> None:
    assert served.get("/session", role=Role.VIEWER)["name"] == "viewer"
    keys = Credentials([Token("a", Role.VIEWER), Token("b", Role.VIEWER, "ada"), Token("c", Role.VIEWER)])
    assert [caller.name for token in "abc" if (caller := keys.program(token))] == [
        "viewer",
        "ada",
        "viewer-2",
    ]


def test_tokens_of_the_same_text_are_refused() -> None:
    """The role of the last one would win."""
    with pytest.raises(InvalidCall, match="'ada' and 'admin' have the same text"):
        Credentials(
            [Token("same", Role.VIEWER, "ada"), Token("other", Role.VIEWER), Token("same", Role.ADMIN)]
        )


def test_session_is_ended_by_its_owner(served: Served) -> None:
    one, other = served.browser(), served.browser()
    assert one.delete("/api/v1/session").status_code == 204
    assert one.get(RUNS).status_code == 401
    assert other.get(RUNS).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"origin": "OWN"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "OWN"}, 200),
        ({}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "OWN"}, 403),
    ],
)
def test_change_with_a_session_needs_the_same_origin(
    served: Served, headers: dict[str, str], status: int
) -> None:
    client = served.browser()
    del client.headers["sec-fetch-site"]
    given = {name: served.url if value == "OWN" else value for name, value in headers.items()}
    for method, path in (("POST", "/api/v1/verify"), ("POST", "/api/v1/codes")):
        found = client.request(method, path, headers=given, json={})
        assert found.status_code in (status, 202 if status == 200 else status), found.text


def test_page_of_another_port_reads_nothing(served: Served) -> None:
    """Cookies know no ports: to them, all servers of this machine are one site."""
    client = served.browser()
    for site, status in (("same-site", 403), ("cross-site", 403), ("none", 200), ("same-origin", 200)):
        assert client.get(RUNS, headers={"sec-fetch-site": site}).status_code == status


def test_program_with_a_token_needs_no_origin(served: Served) -> None:
    client = served.client()
    assert client.post("/api/v1/codes", json={}).status_code == 200
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert client.post("/api/v1/codes", json={}, headers=headers).status_code == 403


def test_code_grants_no_higher_role(served: Served) -> None:
    for role in ("viewer", "operator", "admin"):
        found = served.client(Role.OPERATOR).post("/api/v1/codes", json={"role": role})
        assert found.status_code == (403 if role == "admin" else 200)
    made = served.post("/codes", role=Role.OPERATOR)
    client = served.client(None)
    assert client.get(made["url"]).status_code == 303
    assert client.get("/api/v1/session").json()["role"] == "operator"


# Roles


@pytest.mark.parametrize("operation", [each for each in EVERY if each.role > Role.VIEWER], ids=named)
def test_role_limits_operations(legacy: Served, operation: Operation) -> None:
    for role in (Role.VIEWER, Role.OPERATOR):
        found = legacy.client(role).request(operation.method, path_of(operation), content=b"no JSON")
        if role < operation.role:
            assert (found.status_code, found.json()["code"]) == (403, "wrong_role")
        else:
            assert found.status_code != 403


def test_every_change_needs_an_operator() -> None:
    """Looking, checking, and one's own session are for everybody."""
    looks = {operation.name for operation in EVERY if operation.changes and operation.role <= Role.VIEWER}
    assert looks == {"launch", "end_session", "make_code", "verify_store"}
    assert all(operation.changes for operation in EVERY if operation.method != "GET")


def test_read_only_server_refuses_all_changes(filled: Path) -> None:
    with holdfast.open(filled / STORE) as hf, serving(hf, read_only=True) as served:
        client = served.client()
        browser = served.browser()
        assert client.get("/api/v1/session").json()["role"] == "viewer"
        same = {**browser.get("/api/v1/session").json(), "name": "admin"}
        assert same == client.get("/api/v1/session").json()
        for operation in EVERY:
            if operation.role > Role.VIEWER and "by_get" not in operation.name:
                for each in (client, browser):
                    found = each.request(operation.method, path_of(operation), content=b"no JSON")
                    assert (found.status_code, found.json()["code"]) == (403, "wrong_role")
                    assert "read-only" in found.json()["detail"]


# Where it listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_other_addresses_need_a_token_and_a_host_name(host: str) -> None:
    tokens = [Token(TOKENS[Role.ADMIN], Role.ADMIN)]
    assert not is_loopback(host)
    with holdfast.open(":memory:") as hf:
        for options in (
            ServeOptions(host=host),
            ServeOptions(host=host, tokens=tokens),
            ServeOptions(host=host, allowed_hosts=["holdfast.example"]),
        ):
            with pytest.raises(InvalidCall, match="reachable from other machines"):
                Server(hf, options, store="", where="")


def test_allowed_host_name_is_the_only_one() -> None:
    name = "Holdfast.Example"
    with (
        holdfast.open(":memory:") as hf,
        serving(hf, host="0.0.0.0", allowed_hosts=[name], https=True) as served,
    ):
        assert served.url == "https://Holdfast.Example"
        port = served.server._socket.getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", verify=False) as client:
            token = {"authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
            assert client.get(RUNS, headers=token).status_code == 421
            token["host"] = "holdfast.example"
            assert client.get(RUNS, headers=token).status_code == 200
            code = served.server.credentials.code(Role.VIEWER)
            made = client.get(f"/launch?code={code}", headers=token).headers["set-cookie"]
            assert made.startswith("__Host-holdfast-")
            assert "Secure" in made


# What every answer carries


@pytest.mark.parametrize("path", ["/", "/none.js", RUNS, "/api/v1/none", "/launch?code=x", "/launch"])
def test_every_response_has_security_headers(served: Served, path: str) -> None:
    for client in (served.client(), served.client(None)):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
        if path.startswith("/api"):
            assert headers["cache-control"] == "no-store"


def test_page_or_how_to_install_it_is_served(tmp_path: Path) -> None:
    with holdfast.open(":memory:") as hf:
        with serving(hf, page=PageFiles(tmp_path / "none")) as served:
            found = served.client(None).get("/")
            assert "does not include the web page" in found.text
            assert found.headers["content-type"].startswith("text/plain")
        (tmp_path / "assets").mkdir()
        (tmp_path / "index.html").write_text("<!doctype html>hello")
        (tmp_path / "assets" / "index-1.js").write_text("1")
        (tmp_path.parent / "secret.txt").write_text("secret")
        with serving(hf, page=PageFiles(tmp_path)) as served:
            client = served.client(None)
            found = client.get("/")
            assert (found.text, found.headers["cache-control"]) == ("<!doctype html>hello", "no-cache")
            found = client.get("/assets/index-1.js")
            assert found.headers["content-type"].startswith("text/javascript")
            assert "immutable" in found.headers["cache-control"]
            for path in (
                "/../secret.txt",
                "/%2e%2e/secret.txt",
                "/assets/..%2f..%2fsecret.txt",
                "//etc/passwd",
                "/x",
            ):
                assert client.get(httpx.URL(served.url).copy_with(raw_path=path.encode())).status_code == 404
            assert client.post("/").status_code == 405
