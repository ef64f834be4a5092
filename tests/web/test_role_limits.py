"""Viewers leave enough capacity for operators and admins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from web_server import RUNS, Listener, Served, connect, request, serving

import holdfast
from holdfast import Holdfast
from holdfast.history.history import History
from holdfast.web import dispatch, service
from holdfast.web.auth import limit_reached, role_limits
from holdfast.web.operation import Role
from holdfast.web.service import BackgroundTasks
from patience import until

STREAM = "/api/v1/events/stream"


class Gate:
    """Holds all that come to it."""

    def __init__(self) -> None:
        self.came = 0
        self.opened = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> None:
        self.came += 1
        assert self.opened.wait(300)


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as opened:
        for number in range(40):
            opened.history(f"run-{number}").commit({"n": number})
        yield opened


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


def session(served: Served, url: str) -> Any:
    """A browser that has opened a link."""
    made = served.client(None, **{"sec-fetch-site": "same-origin"})
    assert made.get(url).status_code == 303
    return made


def test_role_limits_reserve_room_for_higher_roles() -> None:
    of = role_limits(8, viewer=4, operator=6)
    assert of == {Role.PUBLIC: 2, Role.VIEWER: 4, Role.OPERATOR: 6, Role.ADMIN: 8}
    assert set(role_limits(0, viewer=0, operator=0).values()) == {1}
    cases = [
        ({}, Role.PUBLIC, None),
        ({Role.PUBLIC: 2}, Role.PUBLIC, 2),
        ({Role.PUBLIC: 2}, Role.VIEWER, None),
        ({Role.VIEWER: 4}, Role.PUBLIC, 4),
        ({Role.VIEWER: 4}, Role.VIEWER, 4),
        ({Role.VIEWER: 4}, Role.OPERATOR, None),
        ({Role.VIEWER: 4, Role.OPERATOR: 2}, Role.OPERATOR, 6),
        ({Role.OPERATOR: 6}, Role.VIEWER, 6),
        ({Role.OPERATOR: 6}, Role.ADMIN, None),
        ({Role.ADMIN: 8}, Role.VIEWER, 8),
        ({Role.ADMIN: 8}, Role.ADMIN, 8),
    ]
    for held, role, limit in cases:
        assert limit_reached(of, held, role) == limit


def test_viewer_link_of_an_admin_does_not_use_the_admin_streams(hf: Holdfast) -> None:
    """The session of the link has the admin's name."""
    with serving(hf, streams=20) as served:
        admin = served.browser()
        made = admin.post("/api/v1/codes", json={"role": "viewer"}).json()
        viewer = session(served, made["url"])
        opened = [Listener(viewer) for _ in range(10)]
        for listener in opened:
            listener.until(listener.is_ready)
        found = viewer.get(STREAM)
        assert (found.status_code, found.json()["code"]) == (503, "too_many_streams")
        own = Listener(admin)
        own.until(own.is_ready)


def test_viewers_leave_tasks_to_higher_roles(
    hf: Holdfast, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(History, "verify", gate)
    with serving(hf) as served:
        viewer = served.client(Role.VIEWER)
        answers = [viewer.post("/api/v1/verify", json={"run": f"run-{number}"}) for number in range(32)]
        most = service.MAX_TASKS[Role.VIEWER]
        assert [each.status_code for each in answers] == [202] * most + [429] * (32 - most)
        assert answers[-1].json()["code"] == "too_many_tasks"
        # One that is under way is answered instead of another.
        assert viewer.post("/api/v1/verify", json={"run": "run-0"}).status_code == 202
        for role in (Role.OPERATOR, Role.ADMIN):
            found = served.client(role).post(f"{RUNS}/run-1/rollback", json={"to": 1, "wait": 30})
            assert found.status_code == 200
        gate.opened.set()
        assert served.tasks_are_over()


def test_tasks_of_viewers_are_removed_first() -> None:
    kept = BackgroundTasks()

    def begin(role: Role) -> str:
        task = kept.start("verify", lambda progress: None, role)
        task.future.result(60)
        return task.id

    first = begin(Role.ADMIN)
    viewers = [begin(Role.VIEWER) for _ in range(300)]
    known = {task.id for task in kept.all()}
    assert first in known
    assert viewers[-1] in known
    assert viewers[0] not in known


def test_slow_requests_of_viewers_leave_handlers_to_higher_roles(
    hf: Holdfast, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf, "stats", gate)
    with serving(hf) as served, ThreadPoolExecutor(40) as callers:
        for _ in range(40):
            callers.submit(served.client(Role.VIEWER).get, "/api/v1/stats")
        until(lambda: gate.came == dispatch.THREADS[Role.VIEWER], "all handlers that viewers may have")
        for role in (Role.OPERATOR, Role.ADMIN):
            assert served.client(role).get(RUNS).status_code == 200
        # Streams read the journal in other threads.
        listener = Listener(served.client(), params={"after": 0})
        listener.until(lambda: len(listener.messages) == 40)
        gate.opened.set()


def test_requests_of_viewers_leave_places_to_higher_roles(hf: Holdfast) -> None:
    """Requests that wait for something, here for the rest of their bodies, hold connections."""
    with serving(hf, streams=2, connections=16) as served:
        viewer = served.client(Role.VIEWER)
        halves = [
            connect(served.url, request(served, "POST", "content-length: 100", "expect: 100-continue"))
            for _ in range(8)
        ]
        for each in halves:
            assert each.recv(1000).startswith(b"HTTP/1.1 100 ")
        found = viewer.get(RUNS)
        assert (found.status_code, found.json()["code"]) == (429, "too_many_requests")
        assert "retry-after" in found.headers
        for role in (Role.OPERATOR, Role.ADMIN):
            assert served.client(role).get(RUNS).status_code == 200
        for each in halves:
            each.close()
        until(lambda: viewer.get(RUNS).status_code == 200, "a place for the viewer")
