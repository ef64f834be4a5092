"""The routes of the loop resume engine: over `LoopEngine`, changed by POST, by GET only where that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from web_server import Served, serving

import holdfast
from holdfast.agent_loops.project import Project

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
    said(loops, "POST", "/snapshot/save/my%2Fproject", json={"state": {**first, "plan": "rock"}, "base": 1})
    history = said(loops, "GET", "/snapshot/history/my%2Fproject")
    assert [each["note"] for each in history["snapshots"]] == ["good", None]
    restored = said(loops, "POST", "/snapshot/restore/my%2Fproject", json={"version": saved["version"]})
    assert restored["status"] == "restored"
    state = loops.server.app.service.loops.get_project_state("my/project")["state"]
    assert state["plan"] == "kelp"


def test_state_without_its_version_is_refused(loops: Served) -> None:
    """The server cannot know which version the client read: others may have read and changed the state since."""
    engine = loops.server.app.service.loops
    engine.set_project_state("p", {"n": 1})
    engine.log_agent_start("p", "scout")
    engine.update_project_state("p", {"paid": True})
    for path, more in (("/snapshot/save/p", {}), ("/agent/complete/p", {"agent": "scout"})):
        refused = said(loops, "POST", path, 422, json={"state": {"n": 2}, **more})
        assert refused["code"] == "invalid"
        assert "base is missing" in refused["detail"]
    assert engine.get_project_state("p")["state"] == {"n": 1, "paid": True}
    assert list(engine.get_agents("p")["running"]) == ["scout"]
    said(loops, "POST", "/agent/complete/p", json={"agent": "scout", "state": {"n": 2}, "base": 1})
    assert engine.get_project_state("p")["state"] == {"n": 2, "paid": True}
    engine.restore_snapshot("p", 1)
    late = said(loops, "POST", "/snapshot/save/p", 409, json={"state": {"n": 9}, "base": 2})
    assert late["code"] == "stale_version"


def test_loop_error_has_a_status(loops: Served) -> None:
    missing = said(loops, "POST", "/snapshot/save/none", 404)
    assert (missing["status"], missing["code"]) == ("error", "not_found")
    for path in ("/snapshot/restore/none", "/agent/timeout/none"):
        assert said(loops, "POST", path, 404)["code"] == "not_found"
    assert said(loops, "POST", "/agent/complete/none", 404, json={"agent": "scout"})["code"] == "not_found"
    assert said(loops, "POST", "/agent/complete/none", 422)["code"] == "invalid"
    engine = loops.server.app.service.loops
    assert engine.get_projects()["projects"] == []
    engine.set_project_state("p", {})
    assert said(loops, "POST", "/snapshot/restore/p")["status"] == "no snapshot available"


def test_replies_have_values_of_a_state_in_their_portable_form(loops: Served) -> None:
    engine = loops.server.app.service.loops
    done = [b"x", 2**70, float("inf"), {1, 2}, (1,)]
    engine.set_project_state("p", {"completed_steps": done})
    saved = said(loops, "POST", "/snapshot/save/p")
    assert len(saved["agents_completed"]) == len(done)
    completed = said(loops, "POST", "/agent/complete/p", json={"agent": "scout"})
    assert completed["snapshot"]["agents_completed"] == saved["agents_completed"]
    history = said(loops, "GET", "/snapshot/history/p")
    assert history["snapshots"][0]["agents_completed"] == saved["agents_completed"]
    assert said(loops, "POST", "/snapshot/restore/p")["agents_completed"] == saved["agents_completed"]


def test_unexpected_failure_is_a_server_error(loops: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(Project, "check_exists", fail)
    failed = said(loops, "GET", "/snapshot/history/p", 500)
    assert (failed["status"], failed["code"]) == ("error", "unexpected")
    assert loops.problem("GET", "/loops/p", 500)["code"] == "unexpected"


def test_agents_start_complete_and_time_out(loops: Served) -> None:
    said(loops, "POST", "/snapshot/save/p", json={"state": {"n": 1}, "base": 0})
    started = said(loops, "POST", "/agent/start/p", json={"agent": "scout", "timeout": 100})
    assert started["status"] == "started"
    done = said(
        loops,
        "POST",
        "/agent/complete/p",
        json={"agent": "scout", "token": started["token"], "state": {"n": 2}, "base": 1},
    )
    assert done["snapshot"]["status"] == "saved"
    said(loops, "POST", "/agent/start/p", json={"agent": "scout"})
    asked = said(loops, "POST", "/agent/timeout/p", json={"agent": "scout"})
    assert (asked["status"], asked["agents"]) == ("question", ["scout"])
    assert said(loops, "POST", "/agent/timeout/p", 422, json={"agent": "scout"})["code"] == "not_running"
    assert said(loops, "POST", "/agent/timeout/p")["stalled"] == []
    engine = loops.server.app.service.loops
    assert engine.get_agents("p")["ended"]["scout"]["how"] == "stalled"
    engine.configure("p", loop_autoresume=True)
    said(loops, "POST", "/agent/start/p", json={"agent": "scout"})
    again = said(loops, "POST", "/agent/timeout/p", json={"agent": "scout"})
    assert again["question_id"] == asked["question_id"], "nothing is restored while a question is open"
    engine.answer_question(asked["question_id"], "resume")
    said(loops, "POST", "/agent/start/p", json={"agent": "scout"})
    restored = said(loops, "POST", "/agent/timeout/p", json={"agent": "scout"})
    assert (restored["status"], restored["auto_restored"]) == ("restored", True)


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
