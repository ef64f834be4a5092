"""Each button of the page against a real server with real runs: what the dialog said has happened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import page_sample_runs
from page_browser import Tab, tab
from playwright.sync_api import Browser, Page, expect
from web_server import serving

import holdfast
from holdfast import Holdfast
from patience import until


def _do(page: Page, dialog: str, verb: str) -> None:
    box = page.get_by_role("dialog", name=dialog)
    expect(box).to_be_visible()
    box.get_by_role("button", name=verb, exact=True).click()
    expect(box).to_have_count(0)


def test_rollback_dialog_describes_and_rolls_back(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?version=3")
    page.get_by_role("button", name="Roll back…").click()
    box = page.get_by_role("dialog", name="Roll back kelp")
    expect(box).to_contain_text("will be rolled back to version 3, on a new timeline")
    expect(box).to_contain_text("4 later versions will stay readable")
    expect(box).to_contain_text("Compensations will run first, in this order: announce")
    expect(box).to_contain_text("These steps will run again: carry_out#2, carry_out#3, announce")
    expect(box).to_contain_text("Nothing is deleted.")
    box.get_by_label("reason (recorded in the history)").fill("the third draft was dull")
    _do(page, "Roll back kelp", "Roll back")
    expect(page.get_by_text("2 timelines")).to_be_visible()
    assert store.history("kelp").timelines()[-1].reason == "the third draft was dull"
    until(lambda: store.get("kelp").status == "completed")
    assert store.history("kelp").at(7).state  # what was left is still there


def test_closed_dialog_changes_nothing(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?version=3")
    for name in ("Roll back…", "Fork…", "Tag…"):
        page.get_by_role("button", name=name).click()
        page.get_by_role("button", name="Leave it").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
    assert len(store.history("kelp").timelines()) == 1
    assert [run.id for run in store.runs()] == ["kelp"]


def test_fork_dialog_edits_the_state(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?version=3")
    page.get_by_role("button", name="Fork…").click()
    box = page.get_by_role("dialog", name="Fork kelp@3")
    box.get_by_label("its id").fill("twin")
    box.get_by_label("part of the state").fill("topic")
    editor = box.get_by_label("State, as JSON")
    expect(editor).to_have_value('"kelp"')
    editor.fill('"kelp')
    box.get_by_role("button", name="Fork", exact=True).click()
    expect(box.get_by_role("alert")).to_contain_text("This is not JSON")
    editor.fill('"kelp and light"')
    expect(box).to_contain_text("changed as you wrote")
    box.get_by_label("resume at once").check()
    _do(page, "Fork kelp@3", "Fork")
    expect(page.get_by_role("heading", name="twin")).to_be_visible()
    expect(page.get_by_text("forked from kelp@3")).to_be_visible()
    until(lambda: store.get("twin").status == "completed")
    assert store.get("twin").state["topic"] == "kelp and light"
    assert store.get("kelp").state["topic"] == "kelp"


def test_version_shows_its_key_and_the_names_of_its_attachments(store: Holdfast, looking: Tab) -> None:
    log = store.history("thread")
    log.commit({"messages": []}, key="checkpoint-1")
    log.attach("checkpoint-1", {"task-1": [1, 2], "<b>task-2</b>": 3})
    page = looking.open("run/thread?version=1")
    facts = page.get_by_role("region", name="Version 1")
    expect(facts).to_contain_text("checkpoint-1")
    expect(facts).to_contain_text("<b>task-2</b>, task-1")


def test_fork_dialog_refuses_a_taken_id(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?do=fork")
    box = page.get_by_role("dialog", name="Fork kelp@7")
    box.get_by_label("its id").fill("kelp")
    box.get_by_role("button", name="Fork", exact=True).click()
    expect(box.get_by_role("alert")).to_contain_text("kelp")


def test_failed_run_is_resumed(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "broken", run_id="broken", raises=False)
    page = looking.open("run/broken")
    expect(page.get_by_role("alert")).to_contain_text("ValueError: the model answered with an empty text")
    page.get_by_text("traceback", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("page_sample_runs.py")
    page_sample_runs.FAILING.discard("broken")
    try:
        page.get_by_role("button", name="Resume…").click()
        expect(page.get_by_role("dialog")).to_contain_text("3 completed steps will be replayed from history")
        _do(page, "Resume broken", "Resume")
    finally:
        page_sample_runs.FAILING.add("broken")
    expect(page.locator(".run-head .status")).to_have_text("completed")


def test_failed_attempts_stay_on_their_timeline(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "broken", run_id="broken", raises=False)
    page_sample_runs.FAILING.discard("broken")
    try:
        store.resume("broken")
    finally:
        page_sample_runs.FAILING.add("broken")
    page = looking.open("run/broken")
    steps = page.get_by_role("list", name="Steps").get_by_role("listitem")
    expect(steps).to_have_count(9)
    expect(steps.nth(2)).to_contain_text("carry_out#3")  # what they led to
    expect(steps.nth(3)).to_contain_text("attempt 2 failed: carry_out#3")
    expect(steps.nth(4)).to_contain_text("attempt 1 failed: carry_out#3")
    page.get_by_role("list", name="Steps").get_by_role("button", name="5 carry_out#3").click()
    facts = page.get_by_role("region", name="Version 5")
    expect(facts).to_contain_text("attempt 1 at carry_out#3: ValueError")
    # It fails again: of four failures, two are of this timeline.
    store.rollback("broken", to=3, raises=False)
    page.get_by_role("slider").press("End")
    expect(page.get_by_text("2 timelines")).to_be_visible()
    expect(page.get_by_text("(head)")).to_be_visible()
    expect(steps.filter(has_text="failed: carry_out#3")).to_have_count(2)


def test_tags_and_pins_are_added_and_removed(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?version=3&do=tag")
    box = page.get_by_role("dialog", name="Tag kelp@3")
    box.get_by_role("button", name="Pin").click()
    expect(box.get_by_role("button", name="Unpin")).to_be_visible()
    box.get_by_label("tag", exact=True).fill("good")
    _do(page, "Tag kelp@3", "Tag")
    expect(page.get_by_label("Timelines").get_by_text("good")).to_be_visible()
    assert store.history("kelp").at(":good").number == 3
    assert store.history("kelp").at(3).pinned
    page.get_by_role("button", name="Tag…").click()
    page.get_by_role("button", name="Remove the tag").click()
    expect(page.get_by_role("button", name="Remove the tag")).to_have_count(0)
    assert store.history("kelp").at(3).tags == ()


def test_many_tags_do_not_hide_the_step(store: Holdfast, looking: Tab) -> None:
    log = store.history("notes")
    log.commit({"n": 1}, step="one", tags=[f"a tag of several words {number}" for number in range(9)])
    log.pin(1)
    row = looking.open("run/notes").get_by_label("Timelines").get_by_role("button", name="one")
    expect(row).to_contain_text("pinned")
    expect(row).to_have_attribute("title", re.compile("pinned, a tag of several words 0, .*words 8"))
    name = row.get_by_text("one", exact=True).bounding_box()
    assert name
    assert name["width"] > 40


def test_suspended_run_is_paused_and_cancelled(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    page = looking.open("run/tides")
    page.get_by_role("button", name="Pause…").click()
    _do(page, "Pause tides", "Pause the run")
    expect(page.locator(".run-head .status")).to_have_text("paused")
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("dialog")).to_contain_text("Its history stays")
    _do(page, "Cancel tides", "Cancel the run")
    expect(page.locator(".run-head .status")).to_have_text("cancelled")
    until(lambda: store.get("tides").status == "cancelled")


def test_question_is_answered(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    page = looking.open("inbox")
    expect(page.get_by_role("link", name="Inbox 1")).to_be_visible()
    page.get_by_role("article").get_by_role("button", name="Yes").click()
    expect(page.get_by_text("No open questions")).to_be_visible()
    until(lambda: store.get("tides").status == "completed")
    assert store.get("tides").result == "published"
    page.get_by_role("tab", name="Answered").click()
    expect(page.get_by_role("article")).to_contain_text(re.compile("Answered .*: true"))


def test_question_shows_earlier_questions(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.curious, "tides", run_id="tides")
    (question,) = store.inbox()
    store.answer(question.id, True, actor="ann", resume=False)
    store.resume("tides")
    page = looking.open("inbox")
    card = page.get_by_role("article")
    expect(card).to_contain_text("How long may the study on tides be?")
    card.get_by_text("History", exact=True).click()
    expect(card).to_contain_text("Is tides worth a study?")
    expect(card).to_contain_text("by ann: true")
    card.get_by_label("Answer").fill("many")
    card.get_by_role("button", name="Answer").click()
    expect(card.get_by_role("alert")).to_contain_text("This needs a number")
    card.get_by_label("Answer").fill("12")
    card.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("No open questions")).to_be_visible()
    assert store.get("tides").result == "12"


def test_stalled_run_is_rolled_back_from_the_inbox(store: Holdfast, looking: Tab) -> None:
    page_sample_runs.stall_run(store)
    page = looking.open("inbox")
    page.get_by_role("article").get_by_role("button", name="Roll back…").click()
    box = page.get_by_role("dialog", name="Roll back: circles")
    box.get_by_label("to version").fill("2")
    expect(box).to_contain_text("will be rolled back to version 2, on a new timeline")
    expect(box).to_contain_text("These steps will run again: chew")
    page_sample_runs.stop_circling()
    _do(page, "Roll back: circles", "Roll back")
    expect(page.get_by_text("No open questions")).to_be_visible()
    assert store.history("circles").timelines()[-1].parent == 2
    page.get_by_role("tab", name="Answered").click()
    card = page.get_by_role("article")
    expect(card).to_contain_text("rollback to version 2")
    expect(card).not_to_contain_text("last good version")


def test_second_answer_names_the_first_actor(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    # A page without live events: it is authenticated, and connects again only when it is reloaded.
    looking.page.route("**/events/stream*", lambda route: route.abort())
    page = looking.open("inbox")
    page.reload()
    expect(page.get_by_role("status")).to_have_text("not connected")
    expect(page.get_by_role("button", name="No")).to_be_visible()
    (question,) = store.inbox()
    store.answer(question.id, True, actor="ann")
    page.get_by_role("button", name="No").click()
    expect(page.get_by_role("article").get_by_role("alert")).to_contain_text("ann")


def test_stalled_run_is_reinitialised_with_selected_parts(store: Holdfast, looking: Tab) -> None:
    page_sample_runs.stall_run(store)
    page = looking.open("inbox")
    card = page.get_by_role("article")
    expect(card).to_contain_text("looping")
    card.get_by_role("button", name="Reinitialize…").click()
    box = page.get_by_role("dialog", name="Reinitialize: circles")
    expect(box).to_contain_text("nothing is deleted")
    box.get_by_text("topic", exact=True).click()
    expect(box.get_by_role("checkbox").nth(0)).to_be_visible()
    assert box.get_by_role("checkbox").count() == 2
    looking.shot("reinitialise-light")
    page_sample_runs.stop_circling()
    _do(page, "Reinitialize: circles", "Reinitialize")
    expect(page.get_by_text("No open questions")).to_be_visible()
    first = store.history("circles").versions(timeline=2)[-1]
    assert first.state == {"topic": "eddies"}


def test_verify_card_shows_the_report(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("storage")
    page.get_by_role("button", name="Verify everything").click()
    expect(page.get_by_role("status").filter(has_text="No problems")).to_contain_text("1 run, 7 versions")


def test_prune_card_previews_before_it_prunes(store: Holdfast, looking: Tab) -> None:
    log = store.history("hand")
    for number in range(30):
        log.commit({"number": number})
    store.history("other").commit({})
    page = looking.open("storage")
    page.get_by_role("row", name="hand").get_by_role("button", name="Prune…").click()
    expect(page.get_by_text("Enter a rule to see")).to_be_visible()
    card = page.get_by_role("region", name="Retention")
    card.get_by_label("the last").fill("10")
    expect(card.get_by_text("would remove 20 versions")).to_be_visible()
    assert "run=hand" in page.url
    assert "last=10" in page.url
    card.get_by_label("the last").fill("5")
    expect(card.get_by_text("would remove 25 versions")).to_be_visible()
    card.get_by_label("not older than").fill("1d")
    page.keyboard.press("Enter")
    expect(card.get_by_text("would remove 0 versions")).to_be_visible()
    expect(card.get_by_role("button", name="Prune…")).to_be_disabled()
    page.reload()
    expect(card.get_by_label("not older than")).to_have_value("1d")
    card.get_by_label("not older than").fill("")
    page.keyboard.press("Enter")
    card.get_by_role("button", name="Prune…").click()
    expect(page.get_by_role("dialog")).to_contain_text("25 versions of hand are pruned")
    assert len(log.versions(limit=100)) == 30
    _do(page, "Prune versions", "Prune")
    expect(card.get_by_text("removed 25 versions")).to_be_visible()
    assert len(log.versions(limit=100)) == 5


def test_prune_card_lists_all_runs(store: Holdfast, looking: Tab) -> None:
    for name, versions in (("much", 9), ("little", 2), ("some", 5)):
        for number in range(versions):
            store.history(name).commit({"number": number})
    page = looking.open("storage?last=3")
    card = page.get_by_role("region", name="Retention")
    expect(card.get_by_text("would remove 8 versions")).to_be_visible()
    expect(card.get_by_role("row")).to_have_count(3)
    expect(card.get_by_role("row", name="much")).to_contain_text("6")
    looking.shot("retention-light")


def test_export_is_saved_as_a_file(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.study, "kelp", run_id="kelp")
    page = looking.open("run/kelp?version=3")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Export").click()
    assert saved.value.suggested_filename.startswith("kelp")
    assert holdfast.validate(json.loads(Path(saved.value.path()).read_bytes()))


def test_viewer_sees_no_action_buttons(store: Holdfast, browser: Browser) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    with serving(store, where=str(store.where), read_only=True) as served, tab(browser, served) as found:
        page = found.open("run/tides")
        expect(page.get_by_text("read only")).to_be_visible()
        expect(page.get_by_role("link", name="Compare", exact=True).last).to_be_visible()
        expect(page.get_by_role("button", name="Roll back…")).to_have_count(0)
        found.open("inbox")
        expect(page.get_by_role("article")).to_be_visible()
        expect(page.get_by_role("button", name="Yes")).to_have_count(0)
