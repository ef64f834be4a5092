"""The pages: they build without a warning, every link in them leads somewhere, nothing is fetched from other hosts, and
the tests that the promises name are there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

import holdfast

ROOT = Path(__file__).parent.parent
#: Attributes of tags that make a browser fetch something by itself.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
_URL_IN_STYLE = re.compile(r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)")
_NAMED_TEST = re.compile(r"`(tests/[\w/]*)(\.py)?(?:::(\w+))?`")


class Page(HTMLParser):
    """What a page links to, fetches, and can be pointed at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.places |= {name for name in (found.get("id"), found.get("name")) if name}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in FETCHED and found.get(FETCHED[tag]):
            # Of links, those that only say where a page belongs are not fetched.
            if tag == "link" and found.get("rel") in ("canonical", "prev", "next", "alternate"):
                self.links.append(str(found["href"]))
            else:
                self.fetched.append(str(found[FETCHED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_within_the_site_leads_somewhere(site: Path, pages: dict[str, Page]) -> None:
    lost = []
    for name, page in pages.items():
        for link in (*page.links, *page.fetched):
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            place = urlsplit(urljoin(f"/{name}", link))
            target = unquote(place.path).lstrip("/") or name
            target = f"{target}index.html" if target.endswith("/") else target
            if not (site / target).is_file():
                lost.append(f"{name}: {link}")
            elif place.fragment and target in pages and unquote(place.fragment) not in pages[target].places:
                lost.append(f"{name}: {link} (no such place on that page)")
    assert lost == []


def test_nothing_is_fetched_from_other_hosts(site: Path, pages: dict[str, Page]) -> None:
    foreign = [
        f"{name}: {link}"
        for name, page in pages.items()
        for link in page.fetched
        if urlsplit(link).netloc and urlsplit(link).scheme != "data"
    ]
    for path in [*site.rglob("*.css"), *site.rglob("*.html"), *site.rglob("*.svg")]:
        for match in _URL_IN_STYLE.finditer(path.read_text()):
            if urlsplit(match[1] or match[2]).netloc:
                foreign.append(f"{path.relative_to(site)}: {match[0]}")
    assert foreign == []


def test_every_page_is_in_the_site(pages: dict[str, Page]) -> None:
    wanted = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")
    }
    assert wanted <= set(pages)


def test_everything_public_is_in_the_reference(pages: dict[str, Page]) -> None:
    told = set().union(*(page.places for name, page in pages.items() if name.startswith("reference/")))
    methods = [
        f"{owner}.{name}"
        for owner in ("Holdfast", "History", "Version", "Run")
        for name in dir(getattr(holdfast, owner))
        if not name.startswith("_")
    ]
    ends = {place.rpartition(".")[2] for place in told} | {".".join(place.split(".")[-2:]) for place in told}
    missing = [name for name in (*holdfast.__all__, *methods) if name not in ends]
    assert not missing, missing


def test_the_pictures_are_as_they_are_drawn(tmp_path: Path) -> None:
    pictures = ROOT / "docs" / "pictures"
    script = tmp_path / "draw.py"
    script.write_text((pictures / "draw.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn
    assert drawn == {name: (pictures / name).read_text() for name in drawn}


def test_the_tests_that_the_promises_name_are_there() -> None:
    named = _NAMED_TEST.findall((ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 50
    missing = [
        f"{path}{suffix}::{test}"
        for path, suffix, test in named
        if not _is_there(ROOT / f"{path}{suffix}", test)
    ]
    assert missing == []


def _is_there(path: Path, test: str) -> bool:
    if not test:
        return path.exists()
    return path.is_file() and re.search(rf"^\s*(async )?def {test}\(", path.read_text(), re.M) is not None
