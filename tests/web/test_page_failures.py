"""The page in unusual situations: an empty store, a killed server, huge states, hostile names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from page_browser import Tab, tab
from playwright.sync_api import Browser, Page, Route, expect
from web_server import DEADLINE, Served, serving

import holdfast
from database import Database
from holdfast import Holdfast


def test_empty_store_explains_the_first_run(store: Holdfast, looking: Tab) -> None:
    page = looking.open("runs")
    expect(page.get_by_text("No runs yet")).to_be_visible()
    looking.shot("empty-light")
    namespace: dict[str, object] = {}
    program = page.locator(".note pre").inner_text().replace('"runs.db"', '":memory:"')
    exec(program, namespace)  # the program on the page is run unchanged
    store.history("first").commit({"hello": "world"})
    expect(page.get_by_role("link", name="first")).to_be_visible()  # without being asked


def test_empty_store_shows_its_other_pages(looking: Tab) -> None:
    page = looking.open("inbox")
    expect(page.get_by_text("No open questions")).to_be_visible()
    looking.open("loops")
    expect(page.get_by_text("No loops yet")).to_be_visible()
    looking.open("storage")
    expect(page.get_by_text("No runs yet")).to_be_visible()
    looking.open("run/missing")
    expect(page.get_by_role("alert")).to_contain_text("missing")
    looking.open("no-such-view")
    expect(page.get_by_text("Page not found")).to_be_visible()


def test_steps_appear_live(store: Holdfast, looking: Tab) -> None:
    log = store.history("loop")
    log.commit({"n": 1}, step="one")
    page = looking.open("run/loop")
    expect(page.get_by_text("version 1 (head)")).to_be_visible()
    log.commit({"n": 2}, step="two")
    expect(page.get_by_text("version 2 (head)")).to_be_visible()
    expect(page.get_by_role("treeitem")).to_contain_text("2")
    log.rollback(to=1)
    expect(page.get_by_text("2 timelines")).to_be_visible()


@pytest.mark.parametrize(
    ("slow", "quick"), [("**/versions?*", "**/runs/loop?*"), ("**/runs/loop?*", "**/versions?*")]
)
def test_changes_during_a_request_are_loaded_after_it(
    store: Holdfast, looking: Tab, slow: str, quick: str
) -> None:
    log = store.history("loop")
    log.commit({"n": 1}, step="one")
    page = looking.open("run/loop")
    versions = page.get_by_role("list", name="Versions").get_by_role("listitem")
    expect(versions).to_have_count(1)
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route(slow, hold)
    log.commit({"n": 2}, step="two")
    while not held:
        page.evaluate("0")  # lets the browser's word come in
    answer = held[0].fetch()
    with page.expect_request(quick):
        log.commit({"n": 3}, step="three")  # the page knows of it, and still waits for the answer
    held[0].fulfill(response=answer)
    expect(versions).to_have_count(3)
    expect(page.get_by_text("version 3 (head)")).to_be_visible()


def test_script_in_a_name_is_not_executed(store: Holdfast, looking: Tab) -> None:
    name = "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    log = store.history(name)
    log.commit({name: name, "html": [name]}, step=name, note=name, tags=["<b>tag"])
    page = looking.open("runs")
    page.get_by_role("link", name="script").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    page.get_by_role("treeitem").nth(0).hover()
    expect(page.get_by_role("treeitem").nth(0)).to_contain_text("onerror")
    page.goto(f"{looking.served.url}/#/compare?a={quote(name, safe='')}%401&b={quote(name, safe='')}")
    expect(page.get_by_text("No difference.")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_text_of_a_million_characters_is_shown(store: Holdfast, looking: Tab) -> None:
    text = "kelp " * 200_000
    store.history("long").commit({"text": text, "after": 1})
    page = looking.open("run/long")
    row = page.get_by_role("treeitem").filter(has_text="text")
    expect(row.get_by_role("button")).to_have_text("… 999,000 more characters")
    row.get_by_role("button").click()
    expect(row.get_by_role("button")).to_have_text("… 899,000 more characters")
    assert len(row.inner_text()) > 100_000
    expect(page.get_by_role("treeitem").filter(has_text="after")).to_be_visible()


def test_result_of_three_million_characters_is_shown(store: Holdfast, looking: Tab) -> None:
    store.history("loop").commit({"n": 1}, step="much", result={"text": "kelp " * 600_000})
    sent: list[int] = []
    looking.page.on("response", lambda answer: sent.append(len(answer.body())))
    page = looking.open("run/loop")
    facts = page.get_by_role("region", name="Version 1")
    facts.get_by_text("{text:").first.click()
    expect(facts.locator("pre")).to_contain_text("(3,000,000 characters)")
    with page.expect_download() as started:
        facts.get_by_role("link", name="all of it, as a file").click()
    assert json.loads(Path(started.value.path()).read_text()) == {"text": "kelp " * 600_000}
    assert max(sent) < 200_000


def test_manual_run_offers_no_workflow_actions(store: Holdfast, looking: Tab) -> None:
    store.history("notes").commit({"n": 1})
    page = looking.open("runs")
    expect(page.get_by_role("button", name="Running 0")).to_be_visible()
    page.get_by_role("button", name="Manual 1").click()
    page.get_by_role("link", name="notes").click()
    expect(page.get_by_text("manual", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Fork…")).to_be_visible()
    for name in ("Pause…", "Cancel…", "Resume…"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_surrogate_pairs_are_shown(store: Holdfast, looking: Tab) -> None:
    text = "".join(f"🌿{number}" for number in range(900))
    store.history("leaves").commit(
        {"text": text, "half": "a\ud800b", 1: "one", "1": "text one", "whole": 1.0, "large": 2**70}
    )
    page = looking.open("run/leaves")
    row = page.get_by_role("treeitem").filter(has_text="text")
    row.get_by_role("button").click()
    expect(row.first).to_contain_text(json.dumps(text, ensure_ascii=False))
    expect(page.get_by_role("treeitem").filter(has_text="half")).to_contain_text("ud800")
    expect(page.get_by_role("treeitem").filter(has_text="whole")).to_contain_text("1.0")
    expect(page.get_by_role("treeitem").filter(has_text="large")).to_contain_text(str(2**70))
    expect(page.get_by_role("treeitem")).to_have_count(6)


def test_state_of_50_mb_is_loaded_by_parts(store: Holdfast, looking: Tab) -> None:
    documents = {
        f"document-{number:05}": {"n": number, "text": f"{number} " * 1100} for number in range(10_000)
    }
    assert len(json.dumps(documents)) > 40_000_000
    store.history("big").commit({"documents": documents})
    sent: list[int] = []
    looking.page.on("response", lambda found: sent.append(int(found.headers.get("content-length", 0))))
    page = looking.open("run/big")
    page.get_by_role("button", name="Open documents").click()
    expect(page.get_by_text("document-00099", exact=True)).to_be_visible()
    page.get_by_role("button", name="… 9,900 more").click()
    expect(page.get_by_text("document-00199", exact=True)).to_be_visible()
    page.get_by_label("A part of the state").fill("documents.document-09999.n")
    page.keyboard.press("Enter")
    expect(page.get_by_role("tree")).to_contain_text("9999")
    # Its differences, and an editor for it, are not sent whole either.
    store.history("big").commit(
        {"documents": {**documents, "document-00000": "\n".join(["again"] * 500_000)}}
    )
    looking.open("run/big?show=difference")
    expect(page.get_by_role("list", name="Differences")).to_contain_text("2,999,999 characters")
    looking.open("run/big?do=fork")
    expect(page.get_by_role("dialog")).to_contain_text("too large to be edited whole")
    assert sum(sent) < 5_000_000


def test_list_of_5000_versions_is_scrolled(store: Holdfast, browser: Browser) -> None:
    log = store.history("many")
    for number in range(5_000):
        with log.edit(step=f"step-{number % 7}") as state:
            state["n"] = number
    with serving(store, where=str(store.where)) as served, tab(browser, served) as found:
        page = found.open("run/many")
        expect(page.get_by_text("version 5000 (head)")).to_be_visible()
        assert page.locator(".version-row").count() < 120
        _scroll_until(page, "Versions", 'button[title^="version 1 of timeline 1"]')
        page.get_by_role("button", name="1 step-0", exact=True).first.click()
        expect(page.get_by_text("Steps to version 1", exact=True)).to_be_visible()
        assert page.locator(".version-row").count() < 120
        # One that is far from what is read at first, by its address and by the slider.
        found.open("run/many?version=17")
        page.reload()
        expect(page.get_by_text("Steps to version 17", exact=True)).to_be_visible()
        expect(page.get_by_role("treeitem")).to_contain_text("16")
        page.get_by_label("Choose a version").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("treeitem")).to_contain_text("17")
        found.check()


def test_list_of_10000_runs_is_scrolled(store: Holdfast, browser: Browser) -> None:
    for number in range(10_000):
        store.history(f"run-{number:05}").commit({"n": number})
    with serving(store, where=str(store.where)) as served, tab(browser, served) as found:
        page = found.open("runs")
        expect(page.get_by_role("link", name="run-09999")).to_be_visible()
        _scroll_until(page, "Runs", 'a[href$="/run-00000"]')
        assert page.locator(".run-row").count() < 120
        # What happens to one far down in the list is seen there.
        store.history("run-00003").commit({"n": 3}, step="further")
        expect(page.get_by_role("link", name="run-00003")).to_contain_text("further")
        page.get_by_label("Search runs").fill("run-00017")
        expect(page.get_by_role("link", name="run-00017")).to_be_visible()
        expect(page.locator(".run-row")).to_have_count(1)
        found.check()


def _scroll_until(page: Page, label: str, wanted: str) -> None:
    """Scroll to the end of a list again and again, as it grows, until something is there."""
    page.wait_for_function(
        """([label, wanted]) => {
            const list = document.querySelector(`[role=list][aria-label=${label}]`);
            if (list.querySelector(wanted)) return true;
            list.scrollTop = list.scrollHeight;
        }""",
        arg=[label, wanted],
    )


def test_tabs_share_one_connection(store: Holdfast, looking: Tab) -> None:
    store.history("first").commit({"n": 1})
    looking.open("runs")
    more = [looking.page.context.new_page() for _ in range(7)]
    for page in more:
        page.goto(f"{looking.served.url}/#/run/first")
        expect(page.get_by_text("version 1 (head)")).to_be_visible()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
    store.history("first").commit({"n": 2})
    for page in more:
        expect(page.get_by_text("version 2 (head)")).to_be_visible()
    looking.page.close()  # the one that listened for all
    expect(more[0].get_by_text("live", exact=True)).to_be_visible()
    store.history("first").commit({"n": 3})
    for page in more:
        expect(page.get_by_text("version 3 (head)")).to_be_visible()


def test_corrupt_version_is_reported_and_the_rest_is_shown(tmp_path: Path, browser: Browser) -> None:
    where = tmp_path / "runs.db"
    with holdfast.open(where, durability="fast") as hf:
        log = hf.history("hurt")
        for number in range(3):
            log.commit({"n": number, "marker": f"marked text {number}" * 3})
    _flip(where, b"marked text 1")
    with (
        holdfast.open(where, durability="fast") as hf,
        serving(hf, where=str(where)) as served,
        tab(browser, served) as found,
    ):
        page = found.open("run/hurt?version=2")
        expect(page.get_by_label("State").get_by_role("alert")).to_contain_text("version 2 of run 'hurt'")
        expect(page.get_by_label("Timelines").get_by_role("button")).to_have_count(3)
        found.open("run/hurt?version=3")
        expect(page.locator(".step-row.error")).to_contain_text("damaged")
        expect(page.get_by_role("treeitem").filter(has_text="marker")).to_contain_text("marked text 2")
        found.check()


def _flip(where: Path, wanted: bytes) -> None:
    """Change a bit of a value in the file."""
    with Database(where) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(where.read_bytes())
    place = content.index(wanted)
    content[place] ^= 1
    where.write_bytes(content)


def test_killed_server_is_reported(tmp_path: Path, browser: Browser) -> None:
    where = tmp_path / "runs.db"
    with holdfast.open(where) as hf:
        hf.history("first").commit({"n": 1})
    process, reported = _serve(where, 0)
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(reported["launch"])
        expect(page.get_by_role("link", name="first")).to_be_visible()
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
        expect(page.get_by_text("not connected")).to_be_visible()
        # A request that was under way fails with a note of its own.
        expect(page.get_by_role("alert").first).to_contain_text("The server does not respond")
        expect(page.get_by_role("link", name="first")).to_be_visible()  # what was shown stays
        with holdfast.open(where) as hf:
            hf.history("second").commit({"n": 2})
        port = int(reported["url"].rsplit(":", 1)[1])
        process, reported = _serve(where, port)
        page.goto(reported["launch"])
        expect(page.get_by_role("link", name="second")).to_be_visible()
        context.close()
    finally:
        process.kill()
        process.wait(DEADLINE)


def _serve(where: Path, port: int) -> tuple[subprocess.Popen[str], dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "--store", str(where), "--port", str(port), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_unauthenticated_browser_shows_what_to_do(browser: Browser, served: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(served.url)
    expect(page.get_by_role("alert").first).to_contain_text("open the address that it printed")
    context.close()


def test_damaged_version_is_marked(store: Holdfast, looking: Tab, tmp_path: Path) -> None:
    log = store.history("loop")
    for number in range(1, 6):
        log.commit({"n": number}, step=f"step-{number}")
    with Database(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE journal SET step = 'other' WHERE number = 3")
    connection.close()
    found = looking.served.get("/runs/loop/versions", annotations=True)["versions"]
    assert [version["damaged"] for version in found] == [False, False, True, False, False]
    assert found[2]["step"] is None
    page = looking.open("run/loop")
    row = page.locator(".step-row.error")
    expect(row).to_contain_text("damaged")
    expect(row).to_contain_text("holdfast verify")
    expect(page.locator(".step-row")).to_have_count(5)
    row.click()
    expect(page.get_by_role("alert").first).to_contain_text("version 3")
