"""The views of loops and circuit breakers, against a real server with real loops."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import page_sample_loops as samples
from page_browser import Tab, tab
from page_sample_loops import HOSTILE, REPORT
from playwright.sync_api import Browser, Page, expect
from web_server import serving

import holdfast
from holdfast import Holdfast

VIEW = f"loops/{quote(REPORT)}"


def _do(page: Page, dialog: str, verb: str) -> None:
    box = page.get_by_role("dialog", name=dialog)
    expect(box).to_be_visible()
    box.get_by_role("button", name=verb, exact=True).click()
    expect(box).to_have_count(0)


def test_empty_store_explains_the_first_loop(store: Holdfast, looking: Tab) -> None:
    page = looking.open("loops")
    expect(page.get_by_text("No loops yet")).to_be_visible()
    program = page.locator(".note pre").inner_text().replace('"runs.db"', '":memory:"')
    namespace: dict[str, object] = {}
    exec(program, namespace)  # the program on the page is run unchanged
    engine = samples.engine_of(store)
    engine.set_project_state("report", {"loop_count": 7})
    row = page.get_by_role("link", name="report")
    expect(row).to_contain_text("no running agents")  # without being asked
    engine.log_agent_start("report", "researcher", timeout=600)
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("researcher, deadline in 9 m")


def test_snapshot_is_restored_after_a_preview(store: Holdfast, looking: Tab) -> None:
    engine = samples.create_report(store)
    page = looking.open("loops")
    page.get_by_role("link", name=REPORT).click()
    expect(page.get_by_role("heading", name=REPORT, exact=True)).to_be_visible()
    rows = page.get_by_role("list", name="Snapshots").get_by_role("button")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("last good")
    expect(rows.nth(0)).to_contain_text("reviewed")
    expect(rows.nth(0)).to_contain_text("read by ana")
    expect(rows.nth(1)).to_have_class("snapshot-row left")  # a restore has left it behind
    expect(rows.nth(2)).to_contain_text("version 2 · loop 2")
    expect(rows.nth(2)).to_contain_text("completed: researcher")
    page.keyboard.press("j")
    expect(rows.nth(0)).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    changes = page.get_by_role("region", name="Changes since the snapshot")
    expect(changes).to_contain_text("Changes since version 2")
    expect(changes).to_contain_text('"half a page"')
    assert "snapshot=2" in page.url
    changes.get_by_role("button", name="Restore…").click()
    box = page.get_by_role("dialog", name=f"Restore {REPORT}")
    expect(box).to_contain_text("Kept, because version 2 does not have it: draft")
    expect(box.get_by_role("list", name="Differences")).not_to_contain_text("draft")
    keep = box.get_by_label("keep the keys that this version does not have")
    keep.uncheck()
    expect(box.get_by_role("list", name="Differences")).to_contain_text("draft")
    expect(box).to_contain_text("Removed, because version 2 does not have it: draft")
    keep.check()
    box.get_by_label("reason (recorded in the audit)").fill("nonsense in memory")
    _do(page, f"Restore {REPORT}", "Restore")
    expect(page.get_by_text("Version 2 was restored. Kept: draft.")).to_be_visible()
    state = engine.get_project_state(REPORT)["state"]
    assert (state["loop_count"], state["draft"]) == (2, "half a page")
    audit = page.get_by_role("region", name="Audit").get_by_role("row")
    expect(audit.nth(1)).to_contain_text("restored")
    expect(audit.nth(1)).to_contain_text("nonsense in memory")
    assert engine.get_audit(REPORT)["audit"][-1]["reason"] == "nonsense in memory"


def test_question_of_a_loop_is_answered_in_the_inbox(store: Holdfast, looking: Tab) -> None:
    engine = samples.create_report(store)
    samples.stall(engine, REPORT)
    page = looking.open("inbox")
    expect(page.get_by_role("link", name="Inbox 1")).to_be_visible()
    card = page.get_by_role("article")
    expect(card).to_contain_text(f"loop {REPORT} has stopped")
    expect(card.get_by_role("list", name="Handling")).to_contain_text("assigned to ana")
    expect(card.get_by_role("list", name="Handling")).to_contain_text("due in")
    expect(card.get_by_role("list", name="Handling")).to_contain_text("priority 2")
    card.get_by_text("History", exact=True).click()
    expect(card).to_contain_text("none before this one")
    card.get_by_role("button", name="Roll back…").click()
    box = page.get_by_role("dialog", name=f"Roll back: {REPORT}")
    expect(box).to_contain_text("Removed, because version 5 does not have it: draft")
    box.get_by_label("to version").fill("1")
    expect(box).to_contain_text("The state becomes that of version 1")
    expect(box.get_by_role("list", name="Differences")).to_contain_text('"finding 1"')
    _do(page, f"Roll back: {REPORT}", "Roll back")
    expect(page.get_by_text("No open questions")).to_be_visible()
    state = engine.get_project_state(REPORT)["state"]
    assert state == {"loop_count": 1, "completed_steps": ["planner"], "memory": ["finding 1"]}
    page.get_by_role("tab", name="Answered").click()
    expect(card).to_contain_text("rollback to version 1")
    card.get_by_role("link", name=f"loop {REPORT}").click()
    expect(page.get_by_role("heading", name=REPORT, exact=True)).to_be_visible()


def test_loop_is_reinitialized_with_selected_keys(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    engine.save_loop_snapshot(REPORT, {"loop_count": 3, "memory": ["kelp"], "a.b <b>": 1})
    samples.stall(engine, REPORT)
    page = looking.open("inbox")
    page.get_by_role("article").get_by_role("button", name="Reinitialize…").click()
    box = page.get_by_role("dialog", name=f"Reinitialize: {REPORT}")
    expect(box.get_by_role("checkbox")).to_have_count(3)
    box.get_by_text("a.b <b>").click()
    box.get_by_text("memory", exact=True).click()
    _do(page, f"Reinitialize: {REPORT}", "Reinitialize")
    expect(page.get_by_text("No open questions")).to_be_visible()
    assert engine.get_project_state(REPORT)["state"] == {"memory": ["kelp"], "a.b <b>": 1}


def test_question_of_a_loop_is_answered_in_its_view(store: Holdfast, looking: Tab) -> None:
    engine = samples.create_report(store)
    page = looking.open(VIEW)
    agents = page.get_by_role("region", name="Agents")
    expect(agents.get_by_role("listitem", name="researcher")).to_contain_text("deadline in 2 h")
    samples.stall(engine, REPORT)
    question = page.get_by_role("region", name="Open question")
    expect(question).to_contain_text("has stopped")  # without being asked
    expect(agents.get_by_role("list", name="Ended agents")).to_contain_text("writer")
    expect(question.get_by_role("link", name="Show in the inbox")).to_be_visible()
    question.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("dialog")).to_contain_text("All running agents of the loop are ended.")
    _do(page, f"Cancel: {REPORT}", "Cancel")
    expect(question).to_have_count(0)
    expect(agents).to_contain_text("No agent is running.")
    expect(agents.get_by_role("list", name="Ended agents")).to_contain_text("cancelled")
    assert engine.get_agents(REPORT)["running"] == {}


def test_agent_is_reset_and_snapshot_is_saved(store: Holdfast, looking: Tab) -> None:
    engine = samples.create_report(store)
    page = looking.open(VIEW)
    page.get_by_role("region", name="Agents").get_by_role("button", name="Reset…").click()
    box = page.get_by_role("dialog", name="Reset agent researcher")
    box.get_by_label("reason (recorded in the audit)").fill("its machine is gone")
    _do(page, "Reset agent researcher", "Reset")
    expect(page.get_by_role("region", name="Agents")).to_contain_text("No agent is running.")
    expect(page.get_by_role("region", name="Audit")).to_contain_text("its machine is gone")
    page.get_by_role("button", name="Save a snapshot…").click()
    box = page.get_by_role("dialog", name=f"Save a snapshot of {REPORT}")
    box.get_by_label("tag (a tagged snapshot is never pruned)").fill("before the merge")
    _do(page, f"Save a snapshot of {REPORT}", "Save")
    rows = page.get_by_role("list", name="Snapshots").get_by_role("button")
    expect(rows).to_have_count(5)
    expect(rows.nth(0)).to_contain_text("before the merge")
    assert engine.get_snapshot_history(REPORT)["snapshots"][-1]["tags"] == ["before the merge"]


def test_loop_is_configured(store: Holdfast, looking: Tab) -> None:
    engine = samples.create_report(store)
    page = looking.open(VIEW)
    facts = page.get_by_role("region", name="Configuration")
    expect(facts).to_contain_text("timeout of researcher2 m")
    expect(facts).to_contain_text("due 1 h")
    page.get_by_role("button", name="Configure…").click()
    box = page.get_by_role("dialog", name=f"Configure {REPORT}")
    expect(box.get_by_role("button", name="Configure", exact=True)).to_be_disabled()
    box.get_by_label("restore the last good snapshot").check()
    box.get_by_label("seconds between snapshots").fill("90")
    box.get_by_label("snapshots to keep").fill("10")
    _do(page, f"Configure {REPORT}", "Configure")
    expect(facts).to_contain_text("every 1 m 30 s")
    expect(facts).to_contain_text("restores the last good snapshot, at most 3 times an hour")
    config = engine.get_config(REPORT)["config"]
    assert (config["loop_autoresume"], config["every"]) == (True, 90)
    assert config["retention"] == {"last": 10}
    assert config["timeouts"] == {"researcher": 120, "writer": 600}


def test_overdue_agent_is_marked(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    engine.save_loop_snapshot(REPORT, {"loop_count": 1})
    engine.log_agent_start(REPORT, "writer", timeout=0.001)
    page = looking.open("loops")
    row = page.get_by_role("link", name=REPORT)
    expect(row.locator(".status.overdue")).to_have_text("overdue")
    expect(row).to_contain_text("writer, overdue by")
    row.click()
    expect(page.get_by_role("listitem", name="writer").locator(".overdue")).to_contain_text("overdue by")


def test_loops_are_listed_in_pages(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    for number in range(60):
        engine.set_project_state(f"project {number:02}", {"loop_count": number})
    page = looking.open("loops")
    expect(page.get_by_role("link", name="project 59")).to_be_visible()
    rows = page.get_by_role("list", name="Loops").get_by_role("listitem")
    expect(rows).to_have_count(50)
    page.get_by_role("button", name="Show more loops").click()
    expect(rows).to_have_count(60)
    expect(page.get_by_role("button", name="Show more loops")).to_have_count(0)
    engine.log_agent_start("project 00", "writer")  # on the second page
    expect(page.get_by_role("link", name="project 00")).to_contain_text("running")


def test_hostile_texts_of_a_loop_are_texts(store: Holdfast, looking: Tab) -> None:
    script = "<script>window.hacked=2</script><img src=x onerror='window.hacked=3'>"
    engine = samples.engine_of(store)
    engine.save_loop_snapshot(
        HOSTILE, {"loop_count": 1, script: script, "completed_steps": [script]}, note=script, tags=["<b>tag"]
    )
    engine.update_project_state(HOSTILE, {script: "changed", "<i>extra": 1})
    engine.configure(HOSTILE, timeouts={script: 5}, actor="<b>ana")
    engine.log_agent_start(HOSTILE, "agent/../<b>?#", timeout=6000, actor=script)
    samples.stall(engine, HOSTILE, script)
    page = looking.open("loops")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("list", name="Snapshots")).to_contain_text(script)
    expect(page.get_by_role("region", name="Open question")).to_contain_text("window.hacked=2")
    expect(page.get_by_role("list", name="Ended agents")).to_contain_text(script)
    expect(page.get_by_role("region", name="Changes since the snapshot")).to_contain_text("<i>extra")
    page.get_by_role("listitem", name="agent/../<b>?#").get_by_role("button", name="Reset…").click()
    _do(page, "Reset agent agent/../<b>?#", "Reset")
    expect(page.get_by_role("list", name="Ended agents")).to_contain_text("agent/../<b>?#")
    page.get_by_role("link", name="Show in the inbox").click()
    card = page.get_by_role("article")
    card.get_by_role("button", name="Roll back…").click()
    expect(page.get_by_role("dialog")).to_contain_text("<i>extra")
    _do(page, f"Roll back: {HOSTILE}", "Roll back")
    expect(page.get_by_role("article")).to_have_count(0)
    assert engine.get_project_state(HOSTILE)["state"][script] == script
    assert page.evaluate("window.hacked") is None


def test_damaged_snapshot_is_marked(tmp_path: Path, browser: Browser) -> None:
    where = tmp_path / "runs.db"
    with holdfast.open(where, durability="fast") as hf:
        engine = samples.engine_of(hf)
        for loop in (1, 2, 3):
            engine.save_loop_snapshot("report", {"loop_count": loop, "text": f"{loop} " * 30})
        engine.update_project_state("report", {"text": "after"})
    samples.damage(where, "loop/report", 3)
    with (
        holdfast.open(where, durability="fast") as hf,
        serving(hf, where=str(where)) as served,
        tab(browser, served) as found,
    ):
        page = found.open("loops/report")
        rows = page.get_by_role("list", name="Snapshots").get_by_role("button")
        expect(rows.nth(0)).to_contain_text("damaged")
        expect(rows.nth(1)).to_contain_text("last good")
        expect(rows.nth(1)).not_to_contain_text("damaged")
        rows.nth(0).click()
        changes = page.get_by_role("region", name="Changes since the snapshot")
        expect(changes.get_by_role("alert")).to_contain_text("version 3")
        expect(changes.get_by_role("button", name="Restore…")).to_be_disabled()
        rows.nth(1).click()
        changes.get_by_role("button", name="Restore…").click()
        _do(page, "Restore report", "Restore")
        expect(page.get_by_text("Version 2 was restored.")).to_be_visible()
        found.check()


def test_viewer_sees_no_actions_on_loops_and_breakers(store: Holdfast, browser: Browser) -> None:
    engine = samples.create_report(store)
    samples.stall(engine, REPORT)
    samples.open_breaker(store)
    with serving(store, where=str(store.where), read_only=True) as served, tab(browser, served) as found:
        page = found.open(VIEW)
        expect(page.get_by_role("list", name="Snapshots").get_by_role("button")).to_have_count(4)
        expect(page.get_by_role("region", name="Open question")).to_be_visible()
        expect(page.get_by_role("listitem", name="researcher")).to_be_visible()
        actions = (
            "Restore…",
            "Reset…",
            "Configure…",
            "Save a snapshot…",
            "Resume…",
            "Roll back…",
            "Cancel…",
        )
        for name in actions:
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        found.open("inbox")
        expect(page.get_by_role("article")).to_be_visible()
        expect(page.get_by_role("button", name="Assign…")).to_have_count(0)
        expect(page.get_by_role("button", name="Roll back…")).to_have_count(0)
        found.open("storage")
        expect(page.get_by_role("listitem", name="search index")).to_be_visible()
        expect(page.get_by_role("button", name="Reset…")).to_have_count(0)
        found.check()


def test_missing_loop_is_reported(looking: Tab) -> None:
    page = looking.open("loops/missing")
    expect(page.get_by_role("alert")).to_contain_text("there is no project 'missing'")


def test_breaker_is_shown_and_reset(store: Holdfast, looking: Tab) -> None:
    page = looking.open("storage")
    expect(page.get_by_text("Size by run")).to_be_visible()
    expect(page.get_by_role("region", name="Breakers")).to_have_count(0)
    looking.open("runs")
    samples.open_breaker(store)
    page.get_by_role("link", name="search index").click()  # the line above the runs
    entry = page.get_by_role("listitem", name="search index")
    expect(entry).to_contain_text("open")
    expect(entry).to_contain_text("2 failures in a row")
    expect(entry).to_contain_text("lets a call through in 59 m")
    expect(entry).to_contain_text("ConnectionError: the index answered with 503")
    entry.get_by_role("button", name="Reset…").click()
    expect(page.get_by_role("dialog")).to_contain_text("The breaker is closed")
    page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    assert [each.status for each in store.breakers()] == ["open"]
    entry.get_by_role("button", name="Reset…").click()
    _do(page, "Reset search index", "Reset")
    expect(entry).to_contain_text("closed")
    expect(entry.get_by_role("button", name="Reset…")).to_have_count(0)
    assert [each.status for each in store.breakers()] == ["closed"]
    looking.open("runs")
    expect(page.get_by_role("link", name="unlucky")).to_be_visible()
    expect(page.get_by_text("A circuit breaker stops calls")).to_have_count(0)
