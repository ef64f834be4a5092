"""The inbox of the page: who is to answer by when, filters, pages."""

from __future__ import annotations

import page_sample_loops as samples
import page_sample_runs
from page_browser import Tab
from playwright.sync_api import expect

from holdfast import Holdfast
from patience import until


def test_question_is_assigned(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    page = looking.open("inbox")
    card = page.get_by_role("article")
    handling = card.get_by_role("list", name="Handling")
    expect(handling).to_contain_text("not assigned")
    expect(handling).to_contain_text("priority 0")
    card.get_by_role("button", name="Assign…").click()
    box = page.get_by_role("dialog", name="Assign the question")
    expect(box.get_by_role("button", name="Assign", exact=True)).to_be_disabled()
    box.get_by_label("assignee, a person or a group").fill("<b>ana")
    box.get_by_label("priority, from -100 to 100").fill("200")
    box.get_by_role("button", name="Assign", exact=True).click()
    assert store.inbox()[0].assignee is None  # the browser refuses the priority
    box.get_by_label("priority, from -100 to 100").fill("7")
    box.get_by_label("answer wanted").select_option("in 4 hours")
    box.get_by_label("escalate to").fill("bob")
    box.get_by_role("button", name="Assign", exact=True).click()
    expect(box.get_by_role("alert")).to_contain_text("escalate_after")
    box.get_by_label("escalation").select_option("in 1 day")
    box.get_by_role("button", name="Assign", exact=True).click()
    expect(box).to_have_count(0)
    expect(handling).to_contain_text("assigned to <b>ana")
    expect(handling).to_contain_text("priority 7")
    expect(handling).to_contain_text("due in 3 h")
    (question,) = store.inbox()
    assert (question.assignee, question.priority) == ("<b>ana", 7)
    card.get_by_role("button", name="Assign…").click()
    box.get_by_label("assignee, a person or a group").fill("")
    box.get_by_label("answer wanted").select_option("none")
    box.get_by_role("button", name="Assign", exact=True).click()
    expect(handling).to_contain_text("not assigned")
    expect(handling).not_to_contain_text("due")


def test_late_and_escalated_question_is_marked(store: Holdfast, looking: Tab) -> None:
    store.run(page_sample_runs.careful, "tides", run_id="tides")
    (question,) = store.inbox()
    store.assign(
        question.id, assignee="ana", due=0.001, remind_every=1, escalate_after=0.001, escalate_to="bob"
    )
    page = looking.open("inbox")
    handling = page.get_by_role("article").get_by_role("list", name="Handling")
    expect(handling.locator(".late").first).to_contain_text("overdue by")
    monitor = store.monitor(interval=0.05)

    def reminded() -> bool:
        monitor.look()
        return store.inbox()[0].reminders > 0

    until(reminded)
    expect(handling).to_contain_text("assigned to bob")
    expect(handling).to_contain_text("1 reminder sent")
    expect(handling).to_contain_text("escalated")


def test_questions_are_filtered(store: Holdfast, looking: Tab) -> None:
    for topic in ("tides", "kelp"):
        store.run(page_sample_runs.careful, topic, run_id=topic)
    store.run(page_sample_runs.curious, "eddies", run_id="eddies")
    engine = samples.engine_of(store)
    engine.save_loop_snapshot("report", {"loop_count": 1})
    samples.stall(engine, "report")
    store.assign(next(each.id for each in store.inbox() if each.run == "kelp"), assignee="ana")
    page = looking.open("inbox")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(4)
    page.get_by_label("Assignee").fill("ana")
    page.keyboard.press("Enter")
    expect(cards).to_have_count(1)
    expect(cards).to_contain_text("kelp")
    assert "assignee=ana" in page.url
    page.reload()
    expect(page.get_by_label("Assignee")).to_have_value("ana")
    expect(cards).to_have_count(1)
    page.get_by_label("Assignee").fill("")
    page.keyboard.press("Enter")
    page.get_by_label("Workflow").select_option("careful_study")
    expect(cards).to_have_count(2)
    page.get_by_label("Waiting longer than").select_option("longer than 1h")
    expect(page.get_by_text("No open question matches these filters")).to_be_visible()
    page.get_by_label("Waiting longer than").select_option("waiting any time")
    expect(cards).to_have_count(2)
    looking.open("runs")
    # The question of the loop is not one of a run.
    expect(page.get_by_role("button", name="Asking 3")).to_be_visible()


def test_questions_are_listed_in_pages(store: Holdfast, looking: Tab) -> None:
    for number in range(105):
        store.run(page_sample_runs.careful, f"topic {number:03}", run_id=f"run-{number:03}")
    page = looking.open("inbox")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(100)
    expect(page.get_by_role("link", name="Inbox 100+")).to_be_visible()
    page.get_by_role("button", name="Show more questions").click()
    expect(cards).to_have_count(105)
    expect(page.get_by_role("button", name="Show more questions")).to_have_count(0)
    (last,) = store.inbox(run_id="run-104")
    store.answer(last.id, False, resume=False)  # one of the second page
    expect(cards).to_have_count(104)
    expect(cards.last).to_contain_text("topic 103")
