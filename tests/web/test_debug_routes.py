"""The routes of the loop resume engine: over `LoopEngine`, changed by POST, by GET only where that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from web_server import Served, serving

import holdfast

LOOP = "/api/debug/loop"


@pytest.fixture(params=[False, True], ids=["post", "legacy"])
def loops(request: pytest.FixtureRequest) -> Iterator[Served]:
    with holdfast.open(":memory:") as hf, serving(hf, legacy_get=request.param) as served:
        yield served


def said(served: Served, method: str, path: str, status: int = 200, **more: Any) -> Any:
    found = served.client().request(method, f"{LOOP}{path}", **more)
    assert found.status_code == status, found.text
    return found.json()


def test_snapshots_are_saved_restored_and_listed(loops: Served) -> None:
    first = {"loop_count": 3, "plan": "kelp"}
    saved = said(loops, "POST", "/snapshot/save/my%2Fproject", json={"state": first, "note": "good"})
    assert (saved["status"], saved["project_id"]) == ("saved", "my/project")
    said(loops, "POST", "/snapshot/save/my%2Fproject", json={"state": {**first, "plan": "rock"}})
    history = said(loops, "GET", "/snapshot/history/my%2Fproject")
    assert [each["note"] for each in history["snapshots"]] == ["good", None]
    restored = said(loops, "POST", "/snapshot/restore/my%2Fproject", json={"version": saved["version"]})
    assert restored["status"] == "restored"
    state = loops.server.app.service.loops.get_project_state("my/project")["state"]
    assert state["plan"] == "kelp"


def test_loop_error_has_a_status(loops: Served) -> None:
    missing = said(loops, "POST", "/snapshot/save/none", 404)
    assert (missing["status"], missing["code"]) == ("error", "not_found")
    assert said(loops, "POST", "/snapshot/restore/none")["status"] == "no snapshot available"
    assert said(loops, "POST", "/agent/complete/none", 422)["code"] == "invalid"


def test_agents_start_complete_and_time_out(loops: Served) -> None:
    said(loops, "POST", "/snapshot/save/p", json={"state": {"n": 1}})
    started = said(loops, "POST", "/agent/start/p", json={"agent": "scout", "timeout": 100})
    assert started["status"] == "started"
    done = said(
        loops,
        "POST",
        "/agent/complete/p",
        json={"agent": "scout", "token": started["token"], "state": {"n": 2}},
    )
    assert done["snapshot"]["status"] == "saved"
    said(loops, "POST", "/agent/start/p", json={"agent": "scout"})
    asked = said(loops, "POST", "/agent/timeout/p", json={"agent": "scout"})
    assert asked["status"] == "question"
    assert said(loops, "POST", "/agent/timeout/p", 422, json={"agent": "scout"})["code"] == "not_running"
    assert said(loops, "POST", "/agent/timeout/p")["stalled"] == []
    loops.server.app.service.loops.configure("p", loop_autoresume=True)
    said(loops, "POST", "/agent/start/p", json={"agent": "scout"})
    assert said(loops, "POST", "/agent/timeout/p", json={"agent": "scout"})["status"] == "restored"


def test_legacy_get_changes_something_only_if_enabled(loops: Served) -> None:
    engine = loops.server.app.service.loops
    engine.set_project_state("p", {"n": 1})
    legacy = loops.server.app.service.settings.legacy_get
    for path in (
        "/snapshot/save/p",
        "/snapshot/restore/p",
        "/agent/start/p?agent=scout",
        "/agent/complete/p?agent=scout",
        "/agent/timeout/p",
    ):
        found = loops.client().get(LOOP + path)
        assert found.status_code == (200 if legacy else 405), found.text
    assert engine.get_snapshot_history("p")["snapshot_count"] == (2 if legacy else 0)
    # Even then, no link on another page does it.
    browser = loops.browser()
    for site in ("cross-site", "same-site", "none"):
        found = browser.get(f"{LOOP}/snapshot/save/p", headers={"sec-fetch-site": site})
        assert found.status_code in (403, 405)
    assert engine.get_snapshot_history("p")["snapshot_count"] == (2 if legacy else 0)
