"""Each screen of the page in a real browser, light and dark, wide and on a phone."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import page_sample_loops
import page_sample_runs
import pytest
from page_browser import Tab, tab
from playwright.sync_api import Browser, expect
from web_server import Served, serving

import holdfast
from holdfast.web.page import FOLDER


@pytest.fixture(scope="module")
def sample_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    where = str(tmp_path_factory.mktemp("samples") / "runs.db")
    with holdfast.open(where, durability="fast") as hf:
        page_sample_runs.create_runs(hf)
        with serving(hf, where=where) as served:
            yield served


@pytest.fixture(scope="module")
def loop_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("loops") / "runs.db"
    page_sample_loops.create_loops(path)
    with holdfast.open(path, durability="fast") as hf, serving(hf, where=str(path)) as served:
        yield served


@pytest.fixture
def looking(browser: Browser, sample_server: Served) -> Iterator[Tab]:
    with tab(browser, sample_server) as found:
        yield found
        found.check()


#: Each screen: its address, and a text on it.
SCREENS = {
    "runs": ("runs", "kelp-twin"),
    "run": ("run/kelp", "Steps to version 12"),
    "difference": ("run/kelp?version=4&show=difference", "plan.tasks[1].done"),
    "failed": ("run/broken", "the model answered with an empty text"),
    "compare": ("compare?a=kelp&b=kelp-twin", "kelp and light"),
    "inbox": ("inbox", "Publish the study on tides?"),
    "storage": ("storage", "Size by run"),
    "rollback": (
        "run/kelp?version=3&do=rollback",
        "These steps will run again: carry_out#2, carry_out#3, announce",
    ),
    "fork": ("run/kelp?version=3&do=fork", "A new run will start with the state of kelp@3"),
}
#: Those of a store with loops and a circuit breaker.
LOOP_SCREENS = {
    "loops": ("loops", "translations"),
    "loop": ("loops/nightly%20report", "read by ana"),
    "damaged-snapshot": ("loops/nightly%20report?snapshot=3", "fails its hash"),
    "restore": ("loops/nightly%20report?snapshot=2&do=restore", "Kept, because version 2 does not have it"),
    "configure": ("loops/nightly%20report?do=configure", "An empty field stands for the default."),
    "loop-question": ("inbox", "assigned to ana"),
    "breakers": ("storage", "lets a call through"),
    "open-breaker": ("runs", "A circuit breaker stops calls"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_shows_its_content(
    browser: Browser, sample_server: Served, screen: str, scheme: str
) -> None:
    _show(browser, sample_server, screen, SCREENS[screen], scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", LOOP_SCREENS)
def test_every_screen_of_loops_shows_its_content(
    browser: Browser, loop_server: Served, screen: str, scheme: str
) -> None:
    _show(browser, loop_server, screen, LOOP_SCREENS[screen], scheme)


def _show(browser: Browser, served: Served, screen: str, what: tuple[str, str], scheme: str) -> None:
    where, sign = what
    with tab(browser, served, scheme=scheme) as found:
        page = found.open(where)
        expect(page.get_by_text(sign).first).to_be_visible()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        found.shot(f"{screen}-{scheme}")
        found.check()


#: The address changes after the first render, just before the page starts to listen for changes.
CHANGES_EARLY = """
const listen = window.addEventListener;
window.addEventListener = (kind, ...rest) => {
  if (kind === "hashchange") history.replaceState(null, "", "#/storage");
  return listen.call(window, kind, ...rest);
};
"""


def test_view_follows_an_address_that_changed_before_the_page_listened(looking: Tab) -> None:
    looking.page.add_init_script(CHANGES_EARLY)
    looking.open("inbox")
    looking.page.reload()
    expect(looking.page.get_by_text("Size by run")).to_be_visible()


@pytest.mark.parametrize("screen", ["runs", "run", "inbox", "compare", "storage"])
def test_every_screen_fits_a_phone(browser: Browser, sample_server: Served, screen: str) -> None:
    _show_on_a_phone(browser, sample_server, screen, SCREENS[screen])


@pytest.mark.parametrize("screen", LOOP_SCREENS)
def test_every_screen_of_loops_fits_a_phone(browser: Browser, loop_server: Served, screen: str) -> None:
    _show_on_a_phone(browser, loop_server, screen, LOOP_SCREENS[screen])


def _show_on_a_phone(browser: Browser, served: Served, screen: str, what: tuple[str, str]) -> None:
    where, sign = what
    with tab(browser, served, phone=True) as found:
        page = found.open(where)
        # A phone shows one part of a run at a time.
        expect(page.get_by_text(sign).first).to_be_attached()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        found.shot(f"{screen}-phone")
        too_wide = page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not too_wide
        found.check()


def test_page_size_is_bounded() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    if not files:
        pytest.skip("the page is not built here")
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= 60_000


def test_page_loads_only_own_files() -> None:
    for path in Path(FOLDER).rglob("*.*"):
        found = re.findall(r"https?://[^\s\"'`)]+", path.read_text(errors="replace"))
        assert not [url for url in found if not url.startswith("http://www.w3.org/")], path


def test_status_chips_filter_runs(looking: Tab) -> None:
    page = looking.open("runs")
    expect(page.get_by_role("button", name="Asking 2")).to_be_visible()
    page.get_by_role("button", name="Asking 2").click()
    expect(page.get_by_role("link", name="circles")).to_be_visible()
    expect(page.get_by_role("link", name="tides")).to_be_visible()
    expect(page.get_by_role("link", name="kelp")).to_have_count(0)
    page.get_by_label("Search runs").fill("care")  # the name of a workflow
    expect(page.get_by_role("link", name="circles")).to_have_count(0)
    expect(page.get_by_role("link", name="tides")).to_be_visible()
    page.get_by_label("Search runs").fill("")
    page.get_by_role("button", name="Stopped 2").click()
    expect(page.get_by_role("link", name="broken")).to_be_visible()
    expect(page.get_by_role("link", name="tides")).to_have_count(0)
    assert "show=held" in page.url
    page.go_back()
    expect(page.get_by_role("link", name="tides")).to_be_visible()


def test_search_and_filters_are_in_the_address(looking: Tab) -> None:
    page = looking.open("runs")
    page.keyboard.press("/")
    page.get_by_label("Search runs").fill("twin")
    expect(page.get_by_role("link", name="broken")).to_have_count(0)
    expect(page.get_by_role("link", name="kelp-twin")).to_be_visible()
    assert "q=twin" in page.url
    page.reload()
    expect(page.get_by_label("Search runs")).to_have_value("twin")
    expect(page.get_by_role("link", name="kelp-twin")).to_be_visible()
    page.get_by_label("Search runs").fill("no such run")
    expect(page.get_by_text("No run matches these filters")).to_be_visible()
    page.get_by_role("button", name="Show all runs").click()
    page.get_by_label("Workflow").select_option("careful_study")
    expect(page.get_by_role("link", name="tides")).to_be_visible()
    expect(page.get_by_role("link", name="kelp-twin")).to_have_count(0)
    page.get_by_label("Since").select_option("1h")
    expect(page.get_by_role("link", name="tides")).to_be_visible()
    looking.open("runs")
    page.get_by_label("Tag").select_option("good")
    expect(page.get_by_role("link", name="broken")).to_have_count(0)
    expect(page.get_by_role("link", name="kelp")).to_be_visible()
    assert "tag=good" in page.url


def test_keyboard_reaches_every_view(looking: Tab) -> None:
    page = looking.open("runs")
    expect(page.get_by_role("link", name="circles")).to_be_visible()
    for key in "jjkj":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="by-hand")).to_be_visible()
    # The versions are read apart from the run, and a key moves among those that are there.
    expect(page.get_by_label("Timelines").locator(".version-row").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.get_by_text("version 11", exact=True)).to_be_visible()
    page.keyboard.press("k")
    page.keyboard.press("d")
    expect(page.get_by_text("numbers[11]")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    expect(page.get_by_role("dialog", name="Fork by-hand@12")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_slider_and_graph_choose_a_version(looking: Tab) -> None:
    page = looking.open("run/kelp")
    slider = page.get_by_label("Choose a version")
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("Steps to version 4")).to_be_visible()
    expect(
        page.get_by_label("Timelines").get_by_role("button", name="4 carry_out", exact=True)
    ).to_have_attribute("aria-current", "true")
    page.get_by_label("Timelines").get_by_role("button", name="2 outline", exact=True).click()
    expect(page.get_by_text("Steps to version 2")).to_be_visible()
    assert "version=2" in page.url
    page.get_by_role("tab", name="Before").click()
    expect(page.get_by_text("The state is empty.")).to_be_visible()


def test_abandoned_versions_are_dimmed(looking: Tab) -> None:
    page = looking.open("run/kelp")
    graph = page.get_by_label("Timelines")
    left = graph.locator(".version-row.left")
    expect(left).to_have_count(5)
    expect(graph.locator("svg.lanes circle")).to_have_count(12)


def test_blame_is_shown_on_hover(looking: Tab) -> None:
    page = looking.open("run/kelp")
    page.get_by_role("treeitem").filter(has_text="published").hover()
    blame = page.get_by_role("treeitem").filter(has_text="published").get_by_role("link")
    expect(blame).to_have_text("version 11, announce")
    page.get_by_role("treeitem").filter(has_text="topic").hover()
    page.get_by_role("treeitem").filter(has_text="topic").get_by_role("link").click()
    expect(page.get_by_text("Steps to version 2")).to_be_visible()


def test_path_field_shows_a_part_of_the_state(looking: Tab) -> None:
    page = looking.open("run/kelp?path=plan.tasks%5B1%5D")
    expect(page.get_by_role("treeitem").filter(has_text="name")).to_contain_text('"read"')
    page.get_by_label("A part of the state").fill("nowhere")
    page.keyboard.press("Enter")
    expect(page.get_by_label("State").get_by_text("nowhere").first).to_be_visible()


def test_failed_attempts_are_listed_at_their_step(looking: Tab) -> None:
    page = looking.open("run/broken")
    steps = page.get_by_role("list", name="Steps").get_by_role("listitem")
    expect(steps).to_have_count(6)
    expect(steps.nth(0)).to_contain_text("attempt 2 failed: carry_out#3")
    expect(steps.nth(1)).to_contain_text("attempt 1 failed: carry_out#3")
    expect(steps.nth(1)).to_contain_text("ValueError: the model answered with an empty text")
    expect(steps.nth(2)).to_contain_text("carry_out#2")
    page.get_by_label("Timelines").get_by_role("button", name="3 carry_out", exact=True).click()
    expect(steps).to_have_count(3)  # what failed later did not lead here
    expect(page.get_by_text("attempt 1 failed")).to_have_count(0)


def test_numbers_have_one_format(looking: Tab) -> None:
    page = looking.open("run/kelp-twin")
    expect(page.locator(".run-head")).to_contain_text("tokens · cost 0.")
    expect(page.get_by_role("list", name="Steps")).to_contain_text("1,200 tokens · cost 0.0102 · large-2")


def test_tree_shows_one_version(looking: Tab) -> None:
    page = looking.open("run/kelp?version=2")
    tasks = page.get_by_role("treeitem").filter(has_text="tasks")
    page.get_by_role("button", name="Open tasks").click()
    page.get_by_role("button", name="Open 0", exact=True).click()
    done = page.get_by_role("treeitem").filter(has=page.get_by_text("done", exact=True))
    expect(done).to_contain_text("false")
    page.get_by_label("Timelines").get_by_role("button", name="3 carry_out", exact=True).click()
    expect(page.get_by_text("Steps to version 3")).to_be_visible()
    expect(tasks).to_have_attribute("aria-expanded", "true")  # what was opened stays open
    expect(done).to_contain_text("true")  # and shows the version that is chosen


def test_tree_is_navigated_with_arrow_keys(looking: Tab) -> None:
    page = looking.open("run/kelp?version=2")
    tree = page.get_by_role("tree")
    expect(tree.get_by_role("treeitem").first).to_contain_text("topic")
    tree.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    here = page.locator("[role=treeitem]:focus")
    expect(here).to_contain_text("tasks")
    expect(here).to_have_attribute("aria-level", "2")
    expect(here).to_have_attribute("aria-expanded", "false")
    expect(here.get_by_role("link")).to_have_text("version 2, outline")  # blame comes with the focus, too
    page.keyboard.press("ArrowRight")
    expect(here).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowRight")
    expect(here).to_have_attribute("aria-level", "3")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(here).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Home")
    expect(here).to_contain_text("topic")


def test_tabs_are_navigated_with_arrow_keys(looking: Tab) -> None:
    page = looking.open("run/kelp?version=4")
    after = page.get_by_role("tab", name="After")
    expect(after).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tab", name="Difference")).to_be_enabled()
    after.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Difference")).to_be_focused()
    assert "show=difference" in page.url
    expect(page.get_by_text("plan.tasks[1].done")).to_be_visible()


def test_first_version_has_no_before(looking: Tab) -> None:
    page = looking.open("run/kelp?version=1&show=difference")
    expect(page.get_by_text("There is no version before the first.")).to_be_visible()


def test_dialog_returns_the_focus(looking: Tab) -> None:
    page = looking.open("run/kelp?version=3")
    button = page.get_by_role("button", name="Roll back…")
    button.focus()
    page.keyboard.press("Enter")
    box = page.get_by_role("dialog", name="Roll back kelp")
    expect(box.get_by_label("to version")).to_be_focused()
    box.get_by_role("button", name="Leave it").click()
    expect(button).to_be_focused()


def test_reduced_motion_is_respected(looking: Tab) -> None:
    page = looking.open("runs")
    moving = (
        "(() => { const each = document.body.appendChild(document.createElement('i'));"
        " each.className = 'spinner'; return getComputedStyle(each).animationName })()"
    )
    assert page.evaluate(moving) == "turn"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "none"


def test_question_shows_the_history_of_its_run(looking: Tab) -> None:
    page = looking.open("inbox?run=tides")
    card = page.get_by_role("article")
    expect(card).to_have_count(1)
    card.get_by_text("History", exact=True).click()
    expect(card).to_contain_text("careful_study · suspended")
    expect(card).to_contain_text("none before this one")
    card.get_by_text("After the answer").click()
    expect(card).to_contain_text("1 completed step will be replayed from history")
    card.get_by_role("link", name="version 2").click()
    expect(page.get_by_role("heading", name="Steps to version 2")).to_be_visible()


def test_keyboard_navigates_questions_and_differences(looking: Tab) -> None:
    page = looking.open("inbox")
    expect(page.get_by_role("article")).to_have_count(2)
    page.keyboard.press("j")
    expect(page.get_by_role("article").nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("article").nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(page.get_by_role("article").nth(0)).to_be_focused()
    looking.open("compare?a=kelp&b=kelp-twin")
    expect(page.locator(".change").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".change").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("First version")).to_be_focused()


def test_two_runs_are_compared(looking: Tab) -> None:
    page = looking.open("compare")
    expect(page.get_by_text("Name two versions")).to_be_visible()
    page.get_by_label("First version").fill("kelp@4")
    page.keyboard.press("Tab")
    page.get_by_label("Second version").fill("kelp-twin")
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="kelp@4")).to_be_visible()
    expect(page.get_by_text("only one side").first).to_be_visible()
    page.get_by_role("button", name="Swap").click()
    expect(page.get_by_label("First version")).to_have_value("kelp-twin")
    page.get_by_label("First version").fill("missing@3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("missing")
