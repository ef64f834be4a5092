"""Putting runs right through the API: each move does what its command does, and says how the run stands."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import web_workflows
from web_server import Listener, Served, serving

import holdfast
from database import Database
from holdfast import Holdfast, LimitExceeded, Limits
from holdfast.tree.portable import from_json, to_json
from holdfast.tree.values import Opaque
from holdfast.web.operation import Role


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    web_workflows.WORLD.clear()
    web_workflows.GO.clear()
    with holdfast.open(tmp_path / "holdfast.db", durability="memory") as found:
        yield found
    web_workflows.GO.set()


@pytest.fixture
def shop(hf: Holdfast) -> Iterator[Served]:
    hf.run(web_workflows.shop, run_id="shop")
    hf.run(web_workflows.shop, True, run_id="asks")
    web_workflows.WORLD.clear()
    with serving(hf) as found:
        yield found


def test_rollback_compensates_and_resumes(shop: Served) -> None:
    preview = shop.get("/runs/shop/preview", to=1)
    assert preview["undo"] == ["web_order#2", "web_order"]
    assert preview["description"][2] == "Compensations will run first, in this order: web_order#2, web_order."
    task = shop.post("/runs/shop/rollback", to=1, reason="once more", actor="ann")
    assert (task["status"], task["result"]["status"]) == ("done", "completed")
    assert web_workflows.WORLD == ["undo rock", "undo kelp", "order kelp", "order rock"]
    line = shop.get("/runs/shop/timelines")[-1]
    assert (line["reason"], line["actor"], line["parent"]) == ("once more", "admin", 1)


def test_rollback_without_resume_leaves_the_run_paused(shop: Served) -> None:
    task = shop.post("/runs/shop/rollback", to="~1", resume=False)
    assert task["result"]["status"] == "paused"
    assert task["result"]["timeline"] == 2
    assert shop.post("/runs/shop/resume")["result"]["status"] == "completed"


def test_answer_resumes_the_run(shop: Served) -> None:
    (question,) = shop.get("/inbox")
    refused = shop.problem("POST", "/inbox/asks%231/answer", 422, json={"value": "perhaps"})
    assert refused["code"] == "invalid_answer"
    task = shop.post("/inbox/asks%231/answer", value=True, actor="ann")
    assert task["result"] | {"result": True} == task["result"]
    assert web_workflows.WORLD == ["order rock"]
    late = shop.problem("POST", "/inbox/asks%231/answer", 409, json={"value": False})
    assert "admin" in late["detail"]
    answered = shop.get("/inbox/asks%231")
    assert (answered["id"], answered["actor"], answered["answer"]) == (question["id"], "admin", True)
    assert shop.get("/inbox", answered=True) == [answered]


def test_answer_to_an_outdated_question_is_refused(shop: Served, hf: Holdfast) -> None:
    text = "Delete staging?"

    @holdfast.workflow(name="web_changing", changed="allow")
    def changing() -> bool:
        return bool(holdfast.ask(text, schema=bool))

    hf.run(changing, run_id="changing")
    text = "Delete prod?"
    hf.resume("changing", answers={"ask": True})
    refused = shop.problem("POST", "/inbox/changing%231/answer", 409, json={"value": True})
    assert refused["code"] == "invalid_answer"
    assert "outdated" in refused["detail"]
    shop.problem("GET", "/inbox/changing%231", 404)
    assert shop.get("/inbox", run="changing")[0]["text"] == "Delete prod?"
    assert shop.post("/inbox/changing%232/answer", value=False)["result"]["result"] is False


def test_concurrent_answers_only_the_first_counts(shop: Served, hf: Holdfast) -> None:
    for number in range(6):
        hf.run(web_workflows.shop, True, run_id=f"race-{number}")
        start = threading.Barrier(6)

        def answer(path: str = f"/api/v1/inbox/race-{number}%231/answer", start: Any = start) -> int:
            client = shop.client()
            start.wait()
            return client.post(path, json={"value": True}).status_code

        with ThreadPoolExecutor(6) as people:
            codes = [each.result() for each in [people.submit(answer) for _ in range(6)]]
        assert sorted(codes) == [200, 409, 409, 409, 409, 409]


@pytest.mark.parametrize("move", ["pause", "cancel", "resume"])
def test_manual_run_is_not_stopped_or_resumed(shop: Served, hf: Holdfast, move: str) -> None:
    hf.history("notes").commit({"a": 1})
    assert shop.get("/runs/notes")["status"] == "manual"
    refused = shop.problem("POST", f"/runs/notes/{move}", 422, json={})
    assert "is a manual run" in refused["detail"]
    assert hf.get("notes").status == "running"


def test_fork_replaces_the_state(shop: Served) -> None:
    task = shop.post("/runs/shop/versions/2/fork", run="other", set={"orders[0]": "urchin"}, note="try")
    assert task["result"]["run"] == "other"
    assert shop.get("/runs/other/versions/head/state")["value"] == {"orders": ["urchin"]}
    assert shop.post("/runs/other/resume")["result"]["status"] == "completed"
    assert shop.get("/runs/other/versions/head/state")["value"] == {"orders": ["urchin", "rock"]}
    task = shop.post("/runs/shop/versions/2/fork", state={"orders": [{"$holdfast": "tuple", "value": [1]}]})
    made = task["result"]["run"]
    assert shop.server.app.service.hf.get(made).state == {"orders": [(1,)]}
    taken = shop.problem("POST", "/runs/shop/versions/2/fork", 409, json={"run": "other"})
    assert taken["code"] == "already_exists"
    wrong = shop.problem("POST", "/runs/shop/versions/2/fork", 404, json={"set": {"no.where": 1}})
    assert wrong["details"]["path"] == "no.where"


def test_long_action_is_a_task(hf: Holdfast, shop: Served) -> None:
    hf.enqueue("web_long", run_id="long")
    listener = Listener(shop.client(), params={"run": "long"})
    listener.until(listener.is_ready)
    task = shop.post("/runs/long/resume", 202, wait=0)
    assert (task["status"], task["run"], task["ended"]) == ("running", "long", None)
    listener.until(lambda: any(each["kind"] == "step.completed" for each in listener.messages))
    busy = shop.problem("POST", "/runs/long/resume", 423, json={})
    assert busy["code"] == "already_running"
    web_workflows.GO.set()
    listener.until(lambda: any(each["kind"] == "run.completed" for each in listener.messages))
    assert shop.tasks_are_over()
    found = shop.get(f"/tasks/{task['id']}")
    assert (found["status"], found["result"]["result"]) == ("done", "over")
    assert found in shop.get("/tasks")
    assert found["ended"] is not None


def test_enqueue_starts_a_run_with_a_state(hf: Holdfast, shop: Served) -> None:
    state = {"orders": [{"$holdfast": "tuple", "value": [1]}], "api_key": "hunter2"}
    assert shop.post("/enqueue", workflow="web_shop", run="stocked", state=state)["status"] == "queued"
    assert hf.get("stocked").state == {"orders": [(1,)], "api_key": "[redacted]"}
    shop.post("/enqueue", workflow="web_shop", run="empty")
    assert hf.get("empty").state == {}


def test_step_that_exits_does_not_end_the_server(hf: Holdfast, shop: Served) -> None:
    hf.enqueue("web_leaving", run_id="leaves")
    found = shop.client().post("/api/v1/runs/leaves/resume", json={"wait": 20})
    assert found.status_code == 500
    assert "SystemExit" in found.json()["detail"]
    assert shop.get("/session")["role"] == "admin"


def test_actor_is_the_token_name_and_a_claim_is_recorded(shop: Served, hf: Holdfast) -> None:
    """Whatever a client says, in every operation that names an actor."""
    operator: dict[str, Any] = {"role": Role.OPERATOR, "actor": "the boss"}
    shop.post("/runs/shop/rollback", to=1, resume=False, **operator)
    shop.post("/inbox/asks%231/answer", value=True, **operator)
    shop.post("/runs/shop/versions/2/fork", run="forked", resume=False, **operator)
    shop.post("/runs/shop/pause", **operator)
    shop.post("/enqueue", workflow="web_shop", run="queued", **operator)
    shop.post("/runs/shop/cancel", role=Role.OPERATOR)
    entries = [event.data for event in hf.events() if event.kind == "http.claimed_actor"]
    assert [entry["operation"] for entry in entries] == [
        "rollback_run",
        "answer_question",
        "fork_version",
        "pause_run",
        "enqueue_run",
    ]
    assert {(entry["actor"], entry["claimed_actor"]) for entry in entries} == {("operator", "the boss")}
    assert hf.history("forked").head.actor == "operator"
    assert hf.history("queued").versions()[-1].actor == "operator"
    assert hf.history("shop").head.actor == "operator"
    claims = [event.run for event in hf.events() if event.kind == "http.claimed_actor"]
    assert claims == ["shop", "asks", "shop", "shop", "queued"]
    others = [event.data.get("actor") for event in hf.events() if event.kind != "http.claimed_actor"]
    assert "the boss" not in others


def test_pause_and_cancel_stop_a_run(shop: Served) -> None:
    assert shop.post("/runs/asks/pause", reason="wait")["status"] == "paused"
    assert shop.post("/runs/asks/cancel", actor="ann")["status"] == "cancelled"
    refused = shop.problem("POST", "/runs/asks/resume", 422, json={})
    assert "cancelled" in refused["detail"]


def test_tags_and_pins_are_added_and_removed(shop: Served) -> None:
    client = shop.client()
    tagged = client.put("/api/v1/runs/shop/versions/2/tags/good%2Fone").json()
    assert tagged["tags"] == ["good/one"]
    assert shop.get("/runs/shop/versions/good%2Fone")["version"] == 2
    assert client.put("/api/v1/runs/shop/versions/head/pin").json()["pinned"] is True
    assert client.delete("/api/v1/runs/shop/versions/head/pin").json()["pinned"] is False
    assert client.delete("/api/v1/runs/shop/versions/2/tags/good%2Fone").json()["tags"] == []
    assert client.delete("/api/v1/runs/shop/versions/2/tags/good%2Fone").status_code == 404


def test_merge_combines_timelines(hf: Holdfast, shop: Served) -> None:
    hand = hf.history("hand")
    hand.commit({"a": 1})
    hand.commit({"a": 2, "b": 1})
    hand.rollback(1)
    hand.commit({"a": 3})
    conflict = shop.problem("POST", "/runs/hand/merge", 409, json={"timeline": 1})
    assert (conflict["code"], conflict["details"]["path"]) == ("merge_conflict", "a")
    assert shop.post("/runs/hand/merge", timeline=1, prefer="head", dry_run=True)["version"] == 3
    made = shop.post("/runs/hand/merge", timeline=1, prefer="head", note="both")
    assert (made["version"], made["merged"]) == (4, 2)
    assert hand.head.state == {"a": 3, "b": 1}
    assert "nothing to merge" in shop.problem("POST", "/runs/hand/merge", 422, json={"other": "2"})["detail"]


def test_action_without_code_is_refused(tmp_path: Path, hf: Holdfast, shop: Served) -> None:
    hf.enqueue("somewhere_else", run_id="far")
    for path, body in (("resume", {}), ("rollback", {"to": 1}), ("replay", {"mode": "validate"})):
        refused = shop.problem("POST", f"/runs/far/{path}", 422, json=body)
        assert "--app" in refused["detail"]
    assert shop.post("/runs/far/requeue", queue="other")["status"] == "queued"
    assert shop.get("/queues/other")["runs"] == {"queued": 1}


def test_queues_are_listed_limited_and_filled(shop: Served) -> None:
    made = shop.post("/enqueue", workflow="web_shop", kwargs={"question": True}, run="queued-1", priority=3)
    assert (made["run"], made["status"]) == ("queued-1", "queued")
    again = shop.problem("POST", "/enqueue", 409, json={"workflow": "web_shop", "run": "queued-1"})
    assert again["code"] == "already_exists"
    limits = shop.client().put("/api/v1/queues/default", json={"concurrency": 2, "rate": 5, "per": 60}).json()
    assert (limits["concurrency"], limits["rate"], limits["per"]) == (2, 5, 60)
    for name in ("queue", "if_exists", "self"):
        kwargs = {name: 1}
        wrong = shop.problem("POST", "/enqueue", 422, json={"workflow": "web_shop", "kwargs": kwargs})
        assert name in wrong["detail"]


def test_replay_validates_and_republishes(shop: Served) -> None:
    task = shop.post("/runs/shop/replay", mode="validate", wait=20)
    assert task["result"] == []
    assert web_workflows.WORLD == ["order kelp", "order rock"]


def test_delete_needs_the_complete_id(shop: Served) -> None:
    client = shop.client()
    assert client.delete("/api/v1/runs/sho").status_code == 404
    assert client.delete("/api/v1/runs/sho", params={"dry_run": True}).status_code == 404
    reported = client.delete("/api/v1/runs/shop", params={"dry_run": True}).json()
    assert reported == {"deleted": ["shop"], "children": [], "dry_run": True}
    assert client.get("/api/v1/runs/shop").status_code == 200
    assert client.delete("/api/v1/runs/shop").json()["dry_run"] is False
    assert client.get("/api/v1/runs/shop").status_code == 404


def test_store_is_verified_collected_and_pruned(hf: Holdfast, shop: Served) -> None:
    for number in range(8):
        hf.history("counted").commit({"n": number})
    plan = shop.post("/prune", runs=["counted"], last=3)["result"]
    assert (plan["dry_run"], plan["runs"][0]["prune"]) == (True, [1, 2, 3, 4, 5])
    assert len(shop.get("/runs/counted/versions")["versions"]) == 8
    gone = shop.post("/prune", all=True, last=4, dry_run=False)["result"]
    assert [each["run"] for each in gone["runs"]] == ["counted"]
    assert len(shop.get("/runs/counted/versions")["versions"]) == 4
    report = shop.post("/verify", wait=20)
    assert (report["result"]["ok"], report["done"]) == (True, report["total"])
    assert shop.post("/verify", run="shop", wait=20)["result"]["runs"] == 1
    assert shop.post("/gc", grace="0s", compact=True, wait=20)["result"]["artifacts"] == 0
    assert "keep" in shop.problem("POST", "/prune", 422, json={"all": True})["detail"].lower()


def test_damaged_version_is_found_and_never_served(hf: Holdfast, tmp_path: Path) -> None:
    for number in range(3):
        hf.history("hurt").commit({"n": number, "text": f"number {number}"})
    hf.close()
    with Database(tmp_path / "holdfast.db") as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(40) WHERE number = 2")
    with holdfast.open(tmp_path / "holdfast.db") as again, serving(again) as served:
        broken = served.problem("GET", "/runs/hurt/versions/2/state", 500)
        assert broken["code"] == "corrupt_version"
        assert "hurt" in broken["detail"]
        assert served.get("/runs/hurt/versions/3/state")["value"]["n"] == 2
        report = served.post("/verify", wait=20)["result"]
        assert not report["ok"]
        assert 2 in {each["version"] for each in report["problems"]}


def test_bundles_and_snapshots_are_exported_and_imported(hf: Holdfast, shop: Served) -> None:
    hf.history("loop/odd name").commit({"big": holdfast.artifact(b"x" * 100_000, "notes.html"), "b": b"\0\1"})
    client = shop.client()
    bundle = client.get("/api/v1/runs/shop/bundle")
    assert bundle.headers["content-disposition"] == "attachment; filename*=UTF-8''shop.holdfast"
    octets = {"content-type": "application/octet-stream"}
    made = client.post("/api/v1/imports", params={"run": "copy"}, content=bundle.content, headers=octets)
    assert made.json() == {"run": "copy"}
    assert shop.get("/runs/copy/versions")["versions"][0]["hash"]
    taken = client.post("/api/v1/imports", content=bundle.content, headers=octets)
    assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")
    snapshot = client.get("/api/v1/runs/shop/versions/2/snapshot").json()
    made = client.post("/api/v1/imports", params={"run": "second"}, json=snapshot)
    assert made.json() == {"run": "second"}
    for content in (b"", b"{}", b"[1", b"holdfast.bundle 1\nx", b"[" * 10_000):
        found = client.post("/api/v1/imports", content=content, headers=octets)
        assert found.status_code == 422, found.text
    at = "/runs/loop%2Fodd%20name/versions/head"
    (held,) = shop.get(f"{at}/artifacts")
    assert (held["path"], held["size"]) == ("big", 100_000)
    for path in (f"/api/v1/artifacts/{held['digest']}", f"/api/v1{at}/raw?path=big"):
        found = client.get(path)
        assert found.content == b"x" * 100_000
        # Whatever it is called, no browser shows it.
        assert found.headers["content-disposition"].startswith("attachment")
        assert found.headers["content-type"] == "application/octet-stream"
    assert client.get(f"/api/v1{at}/raw?path=b").content == b"\0\1"
    assert shop.get("/artifacts")["artifacts"][0]["digest"] == held["digest"]
    assert client.get("/api/v1/artifacts/00").status_code == 404
    assert client.get("/api/v1/artifacts/zz").status_code == 422


def test_artifact_is_put_into_a_state(hf: Holdfast, shop: Served) -> None:
    client = shop.client()
    octets = {"content-type": "application/octet-stream"}

    def put(run: str, path: str, content: bytes = b"x" * 200_000) -> httpx.Response:
        query = {"path": path, "name": "notes.txt"}
        return client.put(f"/api/v1/runs/{run}/artifacts", params=query, content=content, headers=octets)

    assert put("kept", "files.notes").json()["version"] == 1
    assert put("kept", "files.more", b"y").json()["step"] == "put"
    kept = hf.history("kept").head.state["files"]
    assert (kept["notes"].read(), kept["notes"].name) == (b"x" * 200_000, "notes.txt")
    assert put("shop", "files.notes").status_code == 422
    assert put("kept", "files.notes.deeper").status_code == 404
    assert put("kept", "").status_code == 422
    assert len(hf.history("kept").versions()) == 2


def test_task_ends_after_its_client_disconnects(hf: Holdfast, shop: Served) -> None:
    hf.enqueue("web_long", run_id="long")
    listener = Listener(shop.client(), params={"run": "long"})
    listener.until(listener.is_ready)
    with pytest.raises(httpx.ReadTimeout):
        shop.client().post("/api/v1/runs/long/resume", json={"wait": 30}, timeout=0.3)
    web_workflows.GO.set()
    listener.until(lambda: any(each["kind"] == "run.completed" for each in listener.messages))
    assert shop.tasks_are_over()


def test_invalid_snapshot_lists_its_problems(shop: Served) -> None:
    refused = shop.problem("POST", "/imports", 422, json={"a": 1})
    assert refused["details"] == {"problems": ["format is None, not 'holdfast.snapshot'"]}


def test_resume_with_a_higher_limit_continues(hf: Holdfast, shop: Served) -> None:
    with suppress(LimitExceeded):
        hf.run(web_workflows.shop, run_id="limited", limits=Limits(steps=1))
    found = shop.get("/runs/limited")
    assert (found["status"], found["limits"], found["spent"]["steps"]) == ("failed", {"steps": 1}, 1)
    assert shop.get("/runs/shop")["limits"] is None
    for bad in ({"steps": -1}, {"steps": True}, {"stops": 1}, {"cost": "1"}, 5):
        shop.problem("POST", "/runs/limited/resume", 422, json={"limits": bad})
    assert shop.post("/runs/limited/resume", limits={"steps": 9})["result"]["status"] == "completed"
    assert shop.get("/runs/limited")["limits"] == {"steps": 9}
    queued = shop.post("/enqueue", workflow="web_shop", run="queued", limits={"cost": 2.5})
    assert queued["status"] == "queued"
    assert hf.get("queued").limits == Limits(cost=2.5)


def test_values_of_requests_are_redacted(shop: Served, hf: Holdfast) -> None:
    secret = {"client_secret": "hush-hush", "n": 1}
    shop.post("/runs/shop/versions/1/fork", run="forked", state=secret, resume=False)
    assert hf.history("forked").head.state == {"client_secret": "[redacted]", "n": 1}
    shop.post("/runs/shop/versions/1/fork", run="set", set={"api_key": "hush", "db": secret}, resume=False)
    assert hf.history("set").head.state["api_key"] == "[redacted]"
    assert hf.history("set").head.state["db"] == {"client_secret": "[redacted]", "n": 1}
    hf.change_redaction(defaults=False)
    shop.post("/runs/shop/versions/1/fork", run="open", state=secret, resume=False)
    assert hf.history("open").head.state == secret
    hf.change_redaction(add=["N"])
    shop.post("/runs/shop/versions/1/fork", run="kept", state=secret, resume=False)
    assert hf.history("kept").head.state == {"client_secret": "hush-hush", "n": "[redacted]"}


@holdfast.workflow(name="web_form")
def form(*args: Any, **kwargs: Any) -> Any:
    return holdfast.ask("What?")


@pytest.mark.parametrize(
    "value",
    [
        {1: 2, "password": "hunter2"},
        {b"password": "hunter2"},
        ({"password": "hunter2"},),
        OrderedDict(password="hunter2"),
        deque([[{"password": {"is": "hunter2"}}]]),
        Opaque("gone", {"password": "hunter2"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_redacted_in_whatever_form_they_are_sent(shop: Served, hf: Holdfast, value: Any) -> None:
    sent = to_json(value)
    hf.run(form, run_id="form")
    shop.post("/runs/shop/versions/1/fork", run="state", state={"a": sent})
    shop.post("/runs/shop/versions/1/fork", run="set", set={"a": sent})
    shop.post("/runs/asks/signal", name="news", data=sent, resume=False)
    shop.post(
        "/enqueue", workflow="web_form", run="queued", args=[sent], kwargs={"a": sent, "password": "hunter2"}
    )
    assert shop.post("/inbox/form%231/answer", value=sent)["result"]["status"] == "completed"
    stored = [
        *(to_json(hf.get(run).state) for run in ("state", "set")),
        *(to_json(hf.history("queued").at(1).arguments)),
        to_json(hf.get("form").result),
        *(to_json(event.data) for event in hf.events(limit=1000)),
    ]
    assert "hunter2" not in repr(stored)
    assert repr(stored).count("[redacted]") >= 5
    # What is not a secret stays exactly as it was sent.
    plain = from_json(
        json.loads(json.dumps(sent).replace("password", "passage").replace("cGFzc3dvcmQ=", "cGFzcw=="))
    )
    shop.post("/runs/shop/versions/1/fork", run="plain", state={"a": to_json(plain)})
    assert to_json(hf.get("plain").state["a"]) == to_json(plain)


def test_every_segment_of_a_path_can_name_a_secret(shop: Served, hf: Holdfast) -> None:
    hf.history("own").commit({"secrets": {"db": ["old"]}, "plain": {"db": ["old"]}})
    for path in ("secrets.db", "secrets.db[0]", '["secrets"].db', "plain.db"):
        made = shop.post("/runs/own/versions/1/fork", set={path: "hunter2"})["result"]["run"]
        state = hf.get(made).state
        assert ("hunter2" in repr(state)) == (path == "plain.db")
        assert state != hf.get("own").state


def test_artifact_at_the_path_of_a_secret_is_refused(shop: Served, hf: Holdfast) -> None:
    hf.history("own").commit({"secrets": {"db": "old"}})
    client = shop.client()
    for path in ("password", "secrets.db", "a.client_secret"):
        found = client.put(
            "/api/v1/runs/own/artifacts",
            params={"path": path},
            content=b"hunter2",
            headers={"content-type": "application/octet-stream"},
        )
        assert found.status_code == 422
        assert "is the path of a secret" in found.json()["detail"]
    assert hf.history("own").head.number == 1
    assert not hf.artifacts()


def test_inbox_is_filtered_paged_and_assigned(hf: Holdfast) -> None:
    """Ids with `/` and `#` are percent-encoded in the path."""
    for number in range(5):
        hf.run(web_workflows.shop, True, run_id=f"team/{number}")
    web_workflows.WORLD.clear()
    with serving(hf) as shop:
        first = shop.get("/inbox", limit=2)
        assert [each["id"] for each in first] == ["team/0#1", "team/1#1"]
        rest = shop.get("/inbox", limit=1000, after=first[-1]["id"])
        assert [each["id"] for each in rest] == ["team/2#1", "team/3#1", "team/4#1"]
        assert shop.get("/inbox", after="team/4#1") == []
        found = shop.post(
            "/inbox/team%2F3%231/assign", assignee="ana", priority=7, due=3600, remind_every=60,
            escalate_after=120, escalate_to="boss", actor="chief",
        )  # fmt: skip
        assert (found["assignee"], found["priority"], found["kind"]) == ("ana", 7, "question")
        assert found["due"] > found["opened"]
        assert shop.get("/inbox", assignee="ana") == [found] == shop.get("/inbox", limit=1)
        assert shop.get("/inbox", assignee="ana", workflow="other") == []
        assert shop.get("/inbox", kind="stalled") == shop.get("/inbox", waiting_longer_than=3600) == []
        assert len(shop.get("/inbox", kind="question", waiting_longer_than=0)) == 5
        cleared = shop.post("/inbox/team%2F3%231/assign", due=None, assignee=None)
        assert (cleared["due"], cleared["assignee"], cleared["priority"]) == (None, None, 7)
        bad_queries: list[dict[str, Any]] = [
            {"kind": "odd"}, {"waiting_longer_than": "nan"}, {"waiting_longer_than": -1}, {"limit": 0},
            {"after": "nobody#1"}, {"limit": 10**9}, {"answered": True, "assignee": "ana"},
        ]  # fmt: skip
        for query in bad_queries:
            assert shop.client().get("/api/v1/inbox", params=query).status_code in (400, 422)
        for body in ({}, {"priority": True}, {"priority": 10**30}, {"priority": 101}, {"assignee": "a" * 10_000},
                     {"assignee": "a\0b"}, {"due": -1}, {"due": "2h"}, {"escalate_to": "a"}, {"odd": 1}):  # fmt: skip
            refused = shop.client().post("/api/v1/inbox/team%2F1%231/assign", json=body)
            assert refused.status_code in (400, 422)
        shop.problem("POST", "/inbox/team%2F9%231/assign", 404, json={"priority": 1})
        shop.post("/inbox/team%2F3%231/answer", value=True)
        shop.problem("POST", "/inbox/team%2F3%231/assign", 409, json={"priority": 1})
        assert len(shop.get("/inbox")) == 4
