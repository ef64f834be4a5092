"""Refuses to make a wheel without the web page: `holdfast serve` of such a wheel would have nothing to show.

Editable installs are let through: there the page is built beside, by `make setup`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Looks for the built page before anything is packed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Stop the build where the page is missing."""
        built = Path(self.root, "src", "holdfast", "web", "page")
        if version != "editable" and not _is_whole(built):
            raise SystemExit(
                "the web page is not built: run `make page` (it needs Node.js 20 or newer), then try again"
            )


def _is_whole(page: Path) -> bool:
    """Is the page there, with every file that it names?"""
    index = page / "index.html"
    return index.is_file() and all(
        (page / name).is_file() for name in re.findall(r"assets/[\w.-]+", index.read_text())
    )
