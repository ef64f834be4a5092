"""The documentation site builds without warnings, has no broken links and fetches nothing from other hosts; its
reference pages show the current code; the tests that the guarantees name exist.
"""

from __future__ import annotations

import inspect
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
#: Attributes that make a browser fetch a resource.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}
_URL_IN_STYLE = re.compile(r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)")
_NAMED_TEST = re.compile(r"`(tests/[\w/]*)(\.py)?(?:::(\w+))?`")


class Page(HTMLParser):
    """Links, fetched resources and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {name for name in (found.get("id"), found.get("name")) if name}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in FETCHED and found.get(FETCHED[tag]):
            # A browser does not fetch links that only describe the page.
            if tag == "link" and found.get("rel") in ("canonical", "prev", "next", "alternate"):
                self.links.append(str(found["href"]))
            else:
                self.fetched.append(str(found[FETCHED[tag]]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}


def test_links_within_the_site_resolve(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for link in (*page.links, *page.fetched):
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            url = urlsplit(urljoin(f"/{name}", link))
            target = unquote(url.path).lstrip("/") or name
            target = f"{target}index.html" if target.endswith("/") else target
            if not (site / target).is_file():
                broken.append(f"{name}: {link}")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                broken.append(f"{name}: {link} (no such anchor)")
    assert broken == []


def test_site_fetches_nothing_from_other_hosts(site: Path, pages: dict[str, Page]) -> None:
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


def test_site_has_every_page(pages: dict[str, Page]) -> None:
    expected = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")
    }
    assert expected <= set(pages)


def test_reference_has_every_public_name() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    headings = set(re.findall(r"^#+ (\w+)$", text, re.M))
    fields = set(re.findall(r"^- `(\w+)", text, re.M))
    # Internal members that a page leaves out by name.
    left_out = {
        f"{owner}.{name}"
        for owner, names in re.findall(r"<!-- reference: holdfast\.(\w+).* without=([\w,]+)", text)
        for name in names.split(",")
    }
    missing = [name for name in holdfast.__all__ if name not in headings]
    missing += [
        f"{owner}.{name}"
        for owner in ("Holdfast", "History", "Version", "Run")
        for name, member in vars(getattr(holdfast, owner)).items()
        if not name.startswith("_")
        # Attributes that the constructor sets are internal.
        and not inspect.ismemberdescriptor(member)
        and name not in fields
        and f"{owner}.{name}" not in left_out
        and not re.search(rf"\b{owner}\.{name}[(:]", text)
    ]
    assert not missing, missing


def test_pictures_are_up_to_date(tmp_path: Path) -> None:
    pictures = ROOT / "docs" / "pictures"
    script = tmp_path / "draw.py"
    script.write_text((pictures / "draw.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn
    assert drawn == {name: (pictures / name).read_text() for name in drawn}


def test_tests_named_by_the_guarantees_exist() -> None:
    named = _NAMED_TEST.findall((ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 50
    missing = [
        f"{path}{suffix}::{test}"
        for path, suffix, test in named
        if not _exists(ROOT / f"{path}{suffix}", test)
    ]
    assert missing == []


def _exists(path: Path, test: str) -> bool:
    if not test:
        return path.exists()
    return path.is_file() and re.search(rf"^\s*(async )?def {test}\(", path.read_text(), re.M) is not None


def test_reference_pages_show_the_current_code() -> None:
    command = [sys.executable, "docs/write_reference.py", "--check"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_reference_check_finds_a_page_that_is_not_current(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    writer = tmp_path / "docs" / "write_reference.py"
    writer.write_text((ROOT / "docs" / "write_reference.py").read_text())
    page = tmp_path / "docs" / "policies.md"
    page.write_text("before\n<!-- reference: holdfast.Breaker -->\nstale\n<!-- end -->\nafter\n")
    done = subprocess.run([sys.executable, writer, "--check"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "policies.md" in done.stderr
    subprocess.run([sys.executable, writer], check=True)
    text = page.read_text()
    assert text.startswith("before\n<!-- reference")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "- `failures: int = 5`: Failures in a row that open it." in text
    assert "stale" not in text


def test_tables_of_claims_show_the_current_tests() -> None:
    command = [sys.executable, "docs/write_origins.py", "--check"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_claims_check_finds_a_stale_table_and_a_module_without_one(tmp_path: Path) -> None:
    writer = tmp_path / "docs" / "write_origins.py"
    page = tmp_path / "docs" / "coming-from" / "thing.md"
    tests = tmp_path / "tests" / "origins"
    for folder in (page.parent, tests):
        folder.mkdir(parents=True)
    writer.write_text((ROOT / "docs" / "write_origins.py").read_text())
    claim = (
        'class TestOverview:\n    """Overview"""\n\n'
        '    def test_it(self) -> None:\n        """A | holds\n        here.\n\n        More."""\n        assert here\n'
    )
    (tests / "test_thing.py").write_text(claim)
    page.write_text("before\n<!-- claims: tests/origins/test_thing.py -->\nstale\n<!-- end -->\nafter\n")

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, writer, *arguments], check=False, capture_output=True, text=True
        )
        return done.returncode, done.stderr

    assert run("--check") == (
        1,
        "docs/coming-from/thing.md is not current: run python docs/write_origins.py\n",
    )
    assert run() == (0, "")
    assert run("--check") == (0, "")
    text = page.read_text()
    assert "| Overview | A \\| holds here. | `test_it` |" in text
    assert "stale" not in text
    (tests / "test_other.py").write_text(claim)
    assert run("--check")[0] == 1
    (tests / "test_other.py").unlink()
    (tests / "below").mkdir()
    (tests / "below" / "test_more.py").write_text(claim)
    assert run("--check")[0] == 1
    (tests / "below" / "test_more.py").unlink()
    for saying_nothing, problem in (
        (re.sub(r'        """A.*?"""\n', "", claim, flags=re.S), "has no docstring"),
        (claim.replace("assert here", "here()"), "asserts nothing"),
        (claim.replace("    def", "    @pytest.mark.skip\n    def"), "is skipped"),
        (claim.replace("    def", '    @pytest.mark.xfail(reason="later")\n    def'), "may fail"),
    ):
        (tests / "test_thing.py").write_text(saying_nothing)
        code, text = run("--check")
        assert (code, problem in text) == (1, True), text
