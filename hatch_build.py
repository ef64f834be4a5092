"""Build hook: adds the web page to wheels and source archives.

The page is built by npm where it is missing or older than its sources. Without npm, or if npm fails, the package is
built without the page, and a message on standard error says so; HOLDFAST_REQUIRE_PAGE=1 (`make wheel`) makes that an
error. Editable installs are left alone: `make page` builds the page for those.

Invariant: a page that was complete stays complete, whatever npm does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Seconds for `npm install` and for the build, each.
_TIMEOUT = 600
#: Without a network, npm fails after seconds instead of minutes.
_NPM_SETTINGS = {"npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}
_REMEDY = "install Node.js 20 or newer, then repeat this command"


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page before the package is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page if that is needed and possible."""
        if version == "editable":
            return
        page = Path(self.root, "src", "holdfast", "web", "page")
        sources = Path(self.root, "page")
        if _is_complete(page) and not _is_stale(page, sources):
            return
        problem = _build(sources, page)
        if problem is None:
            return
        if os.environ.get("HOLDFAST_REQUIRE_PAGE", "0") not in ("", "0"):
            raise SystemExit(f"the web page cannot be built: {problem}; {_REMEDY}")
        if _is_complete(page):
            _warn(f"the web page may be older than its sources: {problem}; {_REMEDY}")
        else:
            _warn(f"building Holdfast WITHOUT the web page of `holdfast ui`: {problem}; {_REMEDY}")


def _is_complete(page: Path) -> bool:
    """Is the page there, with every file that it names?"""
    index = page / "index.html"
    return index.is_file() and all(
        (page / name).is_file() for name in re.findall(r"assets/[\w.-]+", index.read_text())
    )


def _is_stale(page: Path, sources: Path) -> bool:
    """Was a source changed after the page was built?"""
    built = (page / "index.html").stat().st_mtime
    modules = sources / "node_modules"
    return any(
        path.stat().st_mtime > built
        for path in sources.rglob("*")
        if path.is_file() and modules not in path.parents
    )


def _build(sources: Path, page: Path) -> str | None:
    """Build the page; return what went wrong."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm was not found"
    if not (sources / "package.json").is_file():
        return "the sources of the page are missing"
    try:
        _run(sources, npm, "install", "--no-progress", "--loglevel=error")
        # A folder that is never packed, in case this process is killed.
        with tempfile.TemporaryDirectory(dir=sources / "node_modules") as folder:
            new, old = Path(folder, "new"), Path(folder, "old")
            _run(sources, npm, "run", "build", "--", "--logLevel", "warn", "--outDir", str(new))
            if not _is_complete(new):
                return "npm built an incomplete page"
            os.utime(new / "index.html")
            if page.exists():
                shutil.move(page, old)
            shutil.move(new, page)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def _run(folder: Path, *command: str) -> None:
    """Run a command, its output on standard error: standard output belongs to the build frontend."""
    subprocess.run(  # noqa: S603 - npm of the person who builds, with fixed arguments
        command,
        cwd=folder,
        env={**os.environ, **_NPM_SETTINGS},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        timeout=_TIMEOUT,
        check=True,
    )


def _warn(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)
