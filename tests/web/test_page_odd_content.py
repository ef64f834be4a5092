"""Views with content that is damaged, deleted, long or not valid Unicode: the rest of the view stays usable."""

from __future__ import annotations

from pathlib import Path

import page_sample_loops as samples
from page_browser import Tab, tab
from playwright.sync_api import Browser, Page, expect
from web_server import serving

import holdfast
from holdfast import Breaker, Holdfast, step, workflow
from holdfast.testing import isolated_definitions

#: A name that no URL and no UTF-8 text can have.
LONE = "lone \ud800 surrogate"
LONG = "x" * 10_000


def _is_narrow(page: Page) -> bool:
    """Return whether nothing is wider than the window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_project_whose_state_is_damaged_is_listed_with_the_others(tmp_path: Path, browser: Browser) -> None:
    where = tmp_path / "runs.db"
    with holdfast.open(where, durability="fast") as hf:
        engine = samples.engine_of(hf)
        engine.save_loop_snapshot("fine", {"loop_count": 7})
        engine.save_loop_snapshot("broken", {"loop_count": 1, "text": "good " * 30})
        engine.update_project_state("broken", {"text": "bad " * 30})
        engine.auto_restore_if_configured("broken", "crash")
    samples.damage(where, "loop/broken", 2)
    with (
        holdfast.open(where, durability="fast") as hf,
        serving(hf, where=str(where)) as served,
        tab(browser, served) as found,
    ):
        page = found.open("loops")
        expect(page.get_by_role("link", name="fine")).to_contain_text("7")
        page.get_by_role("link", name="broken").click()
        expect(page.get_by_text("the state cannot be read")).to_be_visible()
        page.get_by_role("region", name="Open question").get_by_role("button", name="Roll back…").click()
        box = page.get_by_role("dialog")
        expect(box.get_by_role("alert")).to_contain_text("Damaged data")
        box.get_by_role("button", name="Roll back", exact=True).click()
        expect(box).to_have_count(0)
        expect(page.get_by_text("loop 1 · version 3")).to_be_visible()
        assert samples.engine_of(hf).get_project_state("broken")["loop"] == 1
        found.check()


def test_question_of_a_project_that_no_url_can_name_is_answered(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    for project in ("fine", LONE):
        engine.save_loop_snapshot(project, {"loop_count": 1})
        engine.auto_restore_if_configured(project, "crash")
    page = looking.open("loops")
    expect(page.get_by_role("link", name="fine")).to_be_visible()
    expect(page.get_by_role("link", name=r"lone \ud800 surrogate")).to_be_visible()
    page = looking.open("inbox")
    cards = page.get_by_role("article")
    expect(cards).to_have_count(2)
    cards.filter(has_text="surrogate").get_by_role("button", name="Resume…").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    expect(cards).to_have_count(1)
    assert [question.project for question in store.inbox()] == ["fine"]


def test_view_that_cannot_be_drawn_says_so(looking: Tab) -> None:
    page = looking.page
    reply = '{"status": "ok", "projects": [{"project_id": "p", "status": "idle"}], "next": null}'
    page.route("**/api/v1/loops?*", lambda route: route.fulfill(content_type="application/json", body=reply))
    looking.open("loops")
    note = page.get_by_role("alert")
    expect(note).to_contain_text("Something went wrong in this page")
    page.unroute("**/api/v1/loops?*")
    note.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("No loops yet")).to_be_visible()
    looking.errors.clear()


def test_deleted_project_is_not_shown_any_more(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    engine.save_loop_snapshot("report", {"loop_count": 1})
    page = looking.open("loops/report")
    expect(page.get_by_role("heading", name="report", exact=True)).to_be_visible()
    engine.delete_project("report")
    expect(page.get_by_text("Not found")).to_be_visible()  # without being asked
    expect(page.get_by_role("button", name="Restore…")).to_have_count(0)


def test_long_names_stay_within_the_window(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    engine.save_loop_snapshot(LONG, {"loop_count": 1})
    engine.auto_restore_if_configured(LONG, "crash")
    with isolated_definitions():

        @step(name="call", breaker=Breaker(failures=1, name="b" * 300), retry=None)
        def call() -> None:
            raise ConnectionError("down")

        @workflow(name="calls")
        def calls() -> None:
            call()

        store.run(calls, raises=False)
    page = looking.open("runs")
    expect(page.get_by_text("A circuit breaker stops calls")).to_be_visible()
    assert _is_narrow(page)
    page = looking.open(f"loops/{LONG}")
    question = page.get_by_role("region", name="Open question")
    for place in (question.get_by_text("has stopped"), question.get_by_role("button", name="Resume…")):
        expect(place).to_be_in_viewport(ratio=0.9)
    restore = page.get_by_role("button", name="Restore…")
    expect(restore).to_be_in_viewport()
    restore.click()
    title = page.get_by_role("dialog").get_by_role("heading")
    expect(title).to_be_visible()
    assert title.evaluate("(title) => title.scrollWidth <= title.clientWidth")
    assert _is_narrow(page)


def test_name_that_reverses_text_reverses_only_itself(store: Holdfast, looking: Tab) -> None:
    engine = samples.engine_of(store)
    engine.log_agent_start("report", "\u202ewriter", timeout=6000)
    page = looking.open("loops")
    row = page.get_by_role("link", name="report")
    expect(row).to_contain_text("deadline in 1 h")
    expect(row.locator("bdi")).to_have_text("\u202ewriter")


def test_more_questions_than_are_counted(store: Holdfast, looking: Tab) -> None:
    with isolated_definitions():

        @workflow(name="asks")
        def asks() -> None:
            holdfast.ask("Continue?")

        for number in range(101):
            store.run(asks, run_id=f"run-{number:03}")
        engine = samples.engine_of(store)
        engine.configure("report", question=holdfast.QuestionPolicy(priority=9))
        engine.save_loop_snapshot("report", {"loop_count": 1})
        engine.auto_restore_if_configured("report", "crash")
        page = looking.open("runs")
        expect(page.get_by_role("button", name="Asking")).to_have_text("Asking100+")
        expect(page.get_by_role("link", name="Inbox")).to_have_text("Inbox100+")
        expect(page).to_have_title("(100+) Runs · Holdfast")
        for question in store.inbox(kind="question", limit=99):
            store.answer(question.id, "yes", actor="ana")
        expect(page.get_by_role("button", name="Asking")).to_have_text("Asking2")
        expect(page.get_by_role("link", name="Inbox")).to_have_text("Inbox3")
