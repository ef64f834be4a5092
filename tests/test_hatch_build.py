"""A wheel is refused where it would be without the page."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INTERFACE = "hatchling.builders.hooks.plugin.interface"


class Builder:
    """What the builder gives to a hook, as far as this one asks for it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook's class. The builder is in an environment of its own whenever a wheel is made, and not in this one."""
    module = ModuleType(INTERFACE)
    module.BuildHookInterface = Builder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, INTERFACE, module)
    return runpy.run_path(str(ROOT / "hatch_build.py"))["PageHook"]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "holdfast" / "web" / "page"
    (folder / "assets").mkdir(parents=True)
    (folder / "assets" / "index-1.js").write_text("")
    (folder / "index.html").write_text('<script src="./assets/index-1.js"></script>')
    return folder


def test_a_wheel_with_the_page_is_made(hook: Any, tmp_path: Path, page: Path) -> None:
    hook(tmp_path).initialize("standard", {})


@pytest.mark.parametrize("missing", ["index.html", "assets/index-1.js"])
def test_a_wheel_without_the_page_is_refused(hook: Any, tmp_path: Path, page: Path, missing: str) -> None:
    (page / missing).unlink()
    with pytest.raises(SystemExit, match="make page"):
        hook(tmp_path).initialize("standard", {})


def test_whoever_works_on_it_builds_the_page_beside(hook: Any, tmp_path: Path) -> None:
    hook(tmp_path).initialize("editable", {})


def test_the_builder_is_told_of_both() -> None:
    """The hook is called for wheels, and what is not in the repository is packed all the same."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["hooks"]["custom"]["path"] == "hatch_build.py"
    assert build["artifacts"] == ["src/holdfast/web/page/**"]
