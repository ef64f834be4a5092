"""The routes of agent loops: state, configuration, agents, questions and audit of a project, for every role, and
whatever its id."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from web_server import TOKENS, Served, serving

import holdfast
from holdfast import Holdfast, workflow
from holdfast.loops import LoopEngine
from holdfast.web.operation import Role
from holdfast.web.routes import debug, loops

pytest_plugins = ["postgres_fixtures"]

LOOP = "/api/v1/loops"
PROJECTS = [
    "p",
    "a/b",
    ".",
    "..",
    "../../etc/passwd",
    "%2e%2e",
    "\0",
    "a b?c#d",
    "ä-Ж-水",
    "😀",
    "x" * 10_000,
]


@workflow(name="loop_routes_ask")
def asks(text: str, options: dict[str, Any]) -> Any:
    return holdfast.ask(text, **options)


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as opened:
        yield opened


@pytest.fixture
def engine(hf: Holdfast) -> LoopEngine:
    return LoopEngine(hf, check_every=None)


@pytest.fixture
def served(hf: Holdfast) -> Iterator[Served]:
    with serving(hf) as found:
        yield found


def call(
    served: Served,
    method: str,
    path: str,
    status: int = 200,
    role: Role = Role.OPERATOR,
    **body: Any,
) -> Any:
    """Call a route below that of the loops, and return what it answers."""
    found = served.client(role).request(method, LOOP + path, json=body or None)
    assert found.status_code == status, (method, path[:200], found.text[:1000])
    return found.json()


def raw(served: Served, method: str, path: str, body: bytes = b"") -> int:
    """Send a request whose path no client library may normalize; return its status."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as made:
        made.sendall(
            f"{method} {path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {TOKENS[Role.ADMIN]}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
        )
        return int(made.makefile("rb").readline().split()[1])


# What a project is


def test_state_is_read_set_and_changed(served: Served) -> None:
    made = call(served, "PUT", "/p/state", state={"loop_count": 1, "memory": ["goal"]}, base=0)
    assert (made["status"], made["version"]) == ("set", 1)
    found = call(served, "GET", "/p/state", role=Role.VIEWER)
    assert (found["version"], found["state"]) == (1, {"loop_count": 1, "memory": ["goal"]})
    changed = call(served, "PATCH", "/p/state", changes={"loop_count": 2}, remove=["memory"])
    assert changed["version"] == 2
    merged = call(served, "PUT", "/p/state", state={"loop_count": 1, "memory": ["goal"], "new": 1}, base=1)
    assert merged["version"] == 3
    assert call(served, "GET", "/p/state")["state"] == {"loop_count": 2, "new": 1}
    conflict = call(served, "PUT", "/p/state", 409, state={"loop_count": 9}, base=1)
    assert conflict["code"] == "merge_conflict"
    assert conflict["details"]["paths"] == ["loop_count", "memory"]


def test_state_with_values_of_other_types_is_portable(served: Served, engine: LoopEngine) -> None:
    exact = {
        "bytes": b"x",
        "set": {1},
        "tuple": (1, 2),
        "big": 2**70,
        "inf": float("inf"),
        "keys": {1: 2, "$holdfast": 3},
    }
    engine.set_project_state("p", exact)
    shown = call(served, "GET", "/p/state")
    call(served, "PUT", "/copy/state", state=shown["state"], base=0)
    assert engine.get_project_state("copy")["state"] == exact
    assert call(served, "POST", "/p/snapshots")["status"] == "saved"
    engine.set_project_state("p", {"bytes": b"y"})
    assert call(served, "POST", "/p/restore")["diff_count"] == 6


def test_secrets_in_a_state_are_redacted(served: Served) -> None:
    call(served, "PUT", "/p/state", state={"api_key": "sk-1", "n": {"password": "x"}}, base=0)
    assert call(served, "GET", "/p/state")["state"] == {
        "api_key": "[redacted]",
        "n": {"password": "[redacted]"},
    }


def test_snapshots_are_saved_listed_and_restored(served: Served) -> None:
    call(served, "PUT", "/p/state", state={"loop_count": 1}, base=0)
    saved = call(served, "POST", "/p/snapshots", tags=["good"], note="fine")
    call(served, "PATCH", "/p/state", changes={"loop_count": 2, "new": 1})
    (listed,) = call(served, "GET", "/p/snapshots?limit=5", role=Role.VIEWER)["snapshots"]
    assert (listed["version"], listed["tags"], listed["note"]) == (saved["version"], ["good"], "fine")
    for version in (saved["version"], "good", None):
        how: dict[str, Any] = {} if version is None else {"version": version}
        restored = call(served, "POST", "/p/restore", reason="odd", keep_unknown=False, **how)
        assert (restored["status"], restored["version"], restored["kept"]) == ("restored", 2, [])
    assert call(served, "GET", "/p/state")["state"] == {"loop_count": 1}
    stale = call(served, "PUT", "/p/state", 409, state={}, base=3)
    assert stale["code"] == "stale_version"
    assert call(served, "POST", "/p/restore", 404, version="no such tag")["code"] == "not_found"


def test_configuration_is_read_and_changed(served: Served, engine: LoopEngine) -> None:
    call(served, "PUT", "/p/state", state={}, base=0)
    given: dict[str, Any] = {
        "loop_autoresume": True,
        "timeout": 60,
        "timeouts": {"writer": 9.5},
        "retention": {"last": 20, "within": "7d"},
        "every": 300,
        "keep_unknown": True,
        "max_restores": 1,
        "audit_retention": 100,
        "question": {"assignee": "ana", "priority": 3, "due": 60, "escalate_after": 90, "escalate_to": "bo"},
    }
    changed = call(served, "POST", "/p/config", **given)["config"]
    assert changed == call(served, "GET", "/p/config", role=Role.VIEWER)["config"]
    assert changed["retention"] == {"last": 20, "within": "P7D"}
    assert (changed["max_restores"], changed["question"]["escalate_to"]) == (1, "bo")
    cleared = call(
        served, "POST", "/p/config", timeout=None, retention=None, question=None, timeouts={"writer": None}
    )["config"]
    assert (cleared["timeout"], cleared["retention"], cleared["question"], cleared["timeouts"]) == (
        None,
        None,
        None,
        {},
    )
    assert (cleared["every"], cleared["loop_autoresume"]) == (300, True), "what is not given stays"


def test_state_that_is_sent_back_does_not_undo_the_configuration(served: Served, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"n": 1, "loop_autoresume": False})
    read = call(served, "GET", "/p/state")
    assert read["state"] == {"n": 1}
    call(served, "POST", "/p/config", loop_autoresume=True)
    call(served, "PUT", "/p/state", state={**read["state"], "n": 2}, base=read["version"])
    assert call(served, "GET", "/p/config")["config"]["loop_autoresume"] is True
    call(served, "PATCH", "/p/state", changes={"loop_autoresume": False})
    assert call(served, "GET", "/p/config")["config"]["loop_autoresume"] is False


def test_agents_are_listed_kept_alive_and_reset(served: Served, engine: LoopEngine) -> None:
    token = engine.log_agent_start("p", "a/b ä", timeout=60)["token"]
    listed = call(served, "GET", "/p/agents", role=Role.VIEWER)
    assert listed["running"]["a/b ä"]["token"] == token
    agent = quote("a/b ä", safe="")
    assert call(served, "POST", f"/p/agents/{agent}/heartbeat", token=token)["status"] == "ok"
    assert call(served, "POST", f"/p/agents/{agent}/heartbeat")["status"] == "ok"
    assert call(served, "POST", f"/p/agents/{agent}/heartbeat", 422, token=token + 1)["code"] == "not_running"
    assert call(served, "POST", f"/p/agents/{agent}/reset", reason="enough")["status"] == "reset"
    assert call(served, "POST", f"/p/agents/{agent}/heartbeat", 422)["code"] == "not_running"
    assert call(served, "POST", f"/p/agents/{agent}/reset", 422)["code"] == "not_running"
    assert call(served, "GET", "/p/agents")["ended"]["a/b ä"]["how"] == "reset"
    assert call(served, "POST", f"/p/agents/{'x' * 501}/reset", 422)["code"] == "invalid"


def test_audit_has_the_name_of_the_token(served: Served, engine: LoopEngine) -> None:
    engine.log_agent_start("p", "writer")
    call(served, "POST", "/p/config", every=5, actor="someone else")
    audit = call(served, "GET", "/p/audit", role=Role.VIEWER)["audit"]
    assert [(each["action"], each["actor"]) for each in audit] == [
        ("agent.started", None),
        ("configured", "operator"),
    ]
    assert len(call(served, "GET", "/p/audit?limit=1")["audit"]) == 1


def test_projects_are_listed_by_pages(served: Served, engine: LoopEngine) -> None:
    for number in range(7):
        engine.set_project_state(f"p/{number}", {"loop_count": number})
    engine.log_agent_start("p/3", "writer")
    engine.auto_restore_if_configured("p/4", "crash")
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        start = f"&after={quote(after, safe='')}" if after else ""
        page = call(served, "GET", f"?limit=3{start}", role=Role.VIEWER)
        assert len(page["projects"]) <= 3
        found, after = [*found, *page["projects"]], page["next"]
    assert [each["project_id"] for each in found] == [f"p/{number}" for number in range(6, -1, -1)]
    assert [each["status"] for each in found] == [
        "idle",
        "idle",
        "waiting",
        "running",
        "idle",
        "idle",
        "idle",
    ]
    one = call(served, "GET", "/p%2F4", role=Role.VIEWER)
    assert one["project"]["question_id"] == one["question"]["question_id"] == "loop/p%2F4/control#1"
    run = one["project"]["run"]
    assert served.get(f"/runs/{quote(run, safe='')}/versions/head/state")["value"] == {"loop_count": 4}
    assert call(served, "GET", "?after=unknown", 404)["code"] == "not_found"
    listed = {each["id"] for each in served.get("/runs")["runs"]}
    assert listed == {f"loop/p%2F{number}" for number in range(7)}, "no control runs"


def test_project_is_deleted_by_an_admin(served: Served, engine: LoopEngine) -> None:
    engine.log_agent_start("p", "writer")
    engine.auto_restore_if_configured("p", "crash")
    assert call(served, "DELETE", "/p", 403)["code"] == "wrong_role"
    assert call(served, "DELETE", "/p", 423, Role.ADMIN)["code"] == "already_running"
    assert call(served, "DELETE", "/p?force=true", role=Role.ADMIN)["status"] == "deleted"
    assert call(served, "GET", "")["projects"] == []
    assert served.get("/inbox") == []


# Questions


def test_question_is_answered_in_the_inbox(served: Served, engine: LoopEngine) -> None:
    for choice, how, status in (
        ("resume", {}, 2),
        ("rollback", {}, 1),
        ("rollback", {"to": 2}, 2),
        ("reinitialize", {"keep": ["loop_count"]}, 2),
        ("cancel", {}, 2),
    ):
        project = f"{choice} {len(how)}"
        engine.save_loop_snapshot(project, {"loop_count": 1, "memory": []})
        engine.set_project_state(project, {"loop_count": 2})
        engine.log_agent_start(project, "writer")
        asked = engine.auto_restore_if_configured(project, "crash")["question_id"]
        (listed,) = call(served, "GET", f"/{quote(project)}/questions", role=Role.VIEWER)["questions"]
        assert listed["question_id"] == asked
        path = f"/inbox/{quote(asked, safe='')}"
        assert served.get(path, role=Role.VIEWER)["project"] == project
        served.post(f"{path}/answer", 403, Role.VIEWER, value=choice)
        task = served.post(f"{path}/answer", value=choice, wait=30, **how)
        assert task["status"] == "done", task
        assert engine.get_project_state(project)["state"]["loop_count"] == status
        assert served.post(f"{path}/answer", 409, value="resume")["code"] == "invalid_answer"
        assert call(served, "GET", f"/{quote(project)}/questions")["questions"] == []
    assert served.get("/inbox") == []
    assert {each["actor"] for each in served.get("/inbox", answered=True)} == {"admin"}


def test_wrong_answers_are_refused(served: Served, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_count": 2})
    asked = quote(engine.auto_restore_if_configured("p", "crash")["question_id"], safe="")
    for body in (
        {"value": "yes"},
        {"value": 7},
        {"value": None},
        {"value": "rollback"},
        {"value": "rollback", "to": 99},
        {"value": "resume", "to": 1},
        {"value": "reinitialize", "keep": ["nothing"]},
        {"value": "reinitialize", "keep": "loop_count"},
        {"value": "reinitialize", "keep": ["x" * 10_001]},
        {"value": "rollback", "to": 0},
        {},
    ):
        found = served.client(Role.OPERATOR).post(f"/api/v1/inbox/{asked}/answer", json=body)
        assert found.status_code in (409, 422), (body, found.text)
    (question,) = served.get("/inbox", kind="loop")
    assert quote(question["id"], safe="") == asked


def test_inbox_has_questions_of_runs_and_loops(served: Served, hf: Holdfast, engine: LoopEngine) -> None:
    hf.run(asks, "run?", {"priority": 5, "assignee": "ana"}, run_id="run")
    for name, priority in (("low", 0), ("high", 9)):
        engine.configure(name, question=holdfast.QuestionPolicy(priority=priority, assignee="ana"))
        engine.auto_restore_if_configured(name, "crash")
    ids = ["loop/high/control#1", "run#1", "loop/low/control#1"]
    assert [each["id"] for each in served.get("/inbox", assignee="ana")] == ids
    paged = served.get("/inbox", limit=2) + served.get("/inbox", limit=2, after=ids[1])
    assert [each["id"] for each in paged] == ids
    assert [each["id"] for each in served.get("/inbox", kind="loop")] == [ids[0], ids[2]]
    moved = served.post(f"/inbox/{quote(ids[2], safe='')}/assign", assignee="bo", priority=50, due=60)
    assert (moved["assignee"], moved["priority"]) == ("bo", 50)
    assert [each["id"] for each in served.get("/inbox")] == [ids[2], *ids[:2]]
    assert served.get("/inbox", waiting_longer_than=3600) == []


# Hostile requests


def test_project_id_may_be_any_text(served: Served, engine: LoopEngine) -> None:
    for project in PROJECTS:
        path = f"{LOOP}/{''.join(f'%{byte:02X}' for byte in project.encode())}"
        assert raw(served, "GET", f"{path}/state") == 404, project[:50]
        assert raw(served, "PUT", f"{path}/state", b'{"state": {"n": 1}, "base": 0}') == 200, project[:50]
        assert raw(served, "GET", f"{path}/state") == 200
        assert raw(served, "POST", f"{path}/config", b'{"every": 5}') == 200
        for part in ("", "/snapshots", "/config", "/agents", "/questions", "/audit"):
            assert raw(served, "GET", path + part) == 200, (project[:50], part)
        assert engine.get_project_state(project)["state"] == {"n": 1}
    assert sorted(engine.get_projects()["projects"]) == sorted(PROJECTS)
    assert raw(served, "GET", f"{LOOP}/{'x' * 10_001}") == 422
    assert raw(served, "GET", f"{LOOP}/%ED%A0%80/state") == 422
    assert raw(served, "GET", f"{LOOP}/a/../p/state") == 404, "a path is not normalized"


#: Operations that create a project.
_CREATING = ("set_loop_state", "change_loop_state", "configure_loop")
_OF_A_PROJECT = [
    each for each in loops.TABLE if "{project_id}" in each.path and each.handler.__name__ not in _CREATING
]


@pytest.mark.parametrize("operation", _OF_A_PROJECT, ids=lambda each: each.name)
def test_unknown_project_is_not_found(served: Served, engine: LoopEngine, operation: Any) -> None:
    path = operation.path.replace("{project_id}", "none").replace("{agent}", "writer")
    found = served.client().request(operation.method, path)
    assert (found.status_code, found.json()["code"]) == (404, "not_found"), found.text
    assert engine.get_projects()["projects"] == []


@pytest.mark.parametrize("operation", [*loops.TABLE, *debug.TABLE, *debug.LEGACY], ids=lambda each: each.name)
def test_role_below_that_of_an_operation_is_refused(hf: Holdfast, engine: LoopEngine, operation: Any) -> None:
    engine.set_project_state("p", {})
    before = hf.stats()
    path = operation.path.replace("{project_id}", "p").replace("{agent}", "writer")
    with serving(hf, legacy_get=True) as served:
        for role in Role:
            if Role.VIEWER <= role < operation.role:
                found = served.client(role).request(operation.method, path)
                assert (found.status_code, found.json()["code"]) == (403, "wrong_role")
    assert (operation.role > Role.VIEWER) is operation.changes
    assert hf.stats().versions == before.versions


_WRONG: dict[str, list[Any]] = {
    "PUT /p/state": [
        None, [], {}, {"state": {}}, {"base": 0}, {"state": [], "base": 0}, {"state": "x", "base": 0},
        {"state": {}, "base": -1}, {"state": {}, "base": "0"}, {"state": {}, "base": 1.5}, {"state": {}, "base": 2**60},
        {"state": {}, "base": 0, "note": 7}, {"state": {}, "base": 0, "note": "x" * 10_001},
        {"state": {}, "base": 0, "unknown": 1}, {"state": {}, "base": None},
        {"state": {"a": {"$holdfast": "nonsense", "value": 1}}, "base": 0},
        {"state": {"$holdfast": "tuple"}, "base": 0}, {"state": {"$holdfast": "tuple", "value": []}, "base": 0},
    ],
    "PATCH /p/state": [
        [], {"changes": []}, {"changes": None}, {"remove": "memory"}, {"remove": [7]}, {"remove": ["x"] * 1001},
    ],
    "POST /p/snapshots": [
        [], {"tags": "good"}, {"tags": [7]}, {"tags": ["head"]}, {"tags": [""]}, {"note": []}, {"state": {}},
    ],
    "POST /p/restore": [
        [], {"version": 0}, {"version": -1}, {"version": ""}, {"version": 1.5}, {"version": True},
        {"version": "x" * 1001}, {"keep_unknown": "no"}, {"reason": 7}, {"reason": "x" * 5001},
    ],
    "POST /p/config": [
        [], {"loop_autoresume": "true"}, {"loop_autoresume": None}, {"timeout": 0}, {"timeout": "60"},
        {"timeout": 1e300}, {"timeouts": []}, {"timeouts": {"a": -1}}, {"timeouts": {"": 1}}, {"retention": -1},
        {"retention": 0}, {"retention": {"last": -1}}, {"retention": {"within": "soon"}}, {"retention": {"all": True}},
        {"every": -5}, {"max_restores": -1}, {"max_restores": 1.5}, {"keep_unknown": 1}, {"question": "ana"},
        {"question": {"assignee": "a\0"}}, {"question": {"priority": 101}}, {"question": {"due": -1}},
        {"question": {"remind_every": 0}}, {"question": {"escalate_to": "bo"}}, {"audit_retention": "all"},
    ],
    "POST /p/agents/writer/heartbeat": [[], {"token": 0}, {"token": "1"}, {"token": True}, {"unknown": 1}],
    "POST /p/agents/writer/reset": [[], {"reason": 7}, {"reason": "x" * 5001}],
}  # fmt: skip


@pytest.mark.parametrize("route", _WRONG)
def test_wrong_bodies_are_refused(served: Served, engine: LoopEngine, hf: Holdfast, route: str) -> None:
    engine.save_loop_snapshot("p", {"memory": []})
    engine.log_agent_start("p", "writer")
    before = hf.stats().versions
    method, _, path = route.partition(" ")
    for body in _WRONG[route]:
        found = served.client(Role.OPERATOR).request(method, LOOP + path, json=body)
        assert found.status_code == 422, (body, found.text)
        assert found.headers["content-type"] == "application/problem+json"
    for text in (b"{", b'{"a": NaN}', b"\xff", b"[" * 5000):
        found = served.client(Role.OPERATOR).request(
            method, LOOP + path, content=text, headers={"content-type": "application/json"}
        )
        assert found.status_code in (400, 422), (text[:20], found.text)
    assert hf.stats().versions == before


def test_wrong_queries_are_refused(served: Served, engine: LoopEngine) -> None:
    engine.set_project_state("p", {})
    for path in (
        "?limit=0", "?limit=1001", "?limit=x", "?unknown=1", "?limit=1&limit=2", "?after=" + "x" * 10_001,
        "/p/snapshots?limit=0", "/p/audit?limit=-1", "/p/audit?after=1", "/p?force=true",
    ):  # fmt: skip
        assert call(served, "GET", path, 422)["code"] in ("invalid", "invalid_reference"), path
    for path in ("/p?force=maybe", "/p?force="):
        assert call(served, "DELETE", path, 422, Role.ADMIN)["code"] == "invalid"


def test_routes_work_on_postgres(url: str) -> None:
    with holdfast.open(url) as hf, serving(hf, where=url) as served:
        for project in ("p", "a/b", "..", "\0", "x" * 10_000):
            path = f"/{''.join(f'%{byte:02X}' for byte in project.encode())}"
            assert raw(served, "PUT", f"{LOOP}{path}/state", b'{"state": {"n": 1}, "base": 0}') == 200
            assert raw(served, "GET", f"{LOOP}{path}") == 200
        engine = LoopEngine(hf, check_every=None)
        asked = engine.auto_restore_if_configured("a/b", "crash")["question_id"]
        assert [each["project"] for each in served.get("/inbox", kind="loop")] == ["a/b"]
        served.post(f"/inbox/{quote(asked, safe='')}/answer", value="resume", wait=30)
        assert served.get("/inbox") == []
        assert json.dumps(call(served, "GET", "?limit=2")["projects"])
        assert len(call(served, "GET", "")["projects"]) == 5
