"""Wheels and source archives: with the page where it can be built, without it elsewhere, and complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = Path("src", "holdfast", "web", "page")
#: The small page of the fixture, as it is packed.
PACKED_PAGE = {"holdfast/web/page/index.html", "holdfast/web/page/assets/index-1.js"}
_EDITABLE = "from hatchling.build import build_editable; build_editable('.')"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a wheel is made from, as far as it is needed here, with a small page."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / PAGE / "assets").mkdir(parents=True)
    (tmp_path / PAGE / "assets" / "index-1.js").write_text("")
    (tmp_path / PAGE / "index.html").write_text('<script src="./assets/index-1.js"></script>')
    # As in a checkout, where the page is not kept.
    (tmp_path / ".gitignore").write_text(f"/{PAGE}/\n")
    (tmp_path / "src" / "holdfast" / "__init__.py").write_text('__version__ = "0.1.0"\n')
    return tmp_path


def build(
    project: Path, folder: Path, target: str = "wheel", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    return subprocess.run(
        command,
        cwd=project,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def packed(folder: Path) -> set[str]:
    """The files of the wheel in a folder."""
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def with_npm(folder: Path, script: str) -> str:
    """A PATH on which `npm` is a shell script."""
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    return f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_wheel_has_the_page_that_was_built(project: Path) -> None:
    done = build(project, project / "dist", PATH="")
    assert done.returncode == 0, done.stderr
    assert packed(project / "dist") >= PACKED_PAGE
    assert "page" not in done.stderr


@pytest.mark.parametrize("missing", ["index.html", "assets/index-1.js"])
def test_wheel_without_npm_lacks_the_page_and_says_so(project: Path, missing: str) -> None:
    (project / PAGE / missing).unlink()
    done = build(project, project / "dist", PATH="")
    assert done.returncode == 0, done.stderr
    assert "WITHOUT the web page" in done.stderr
    assert "npm was not found" in done.stderr
    assert "Node.js" in done.stderr
    assert "holdfast/__init__.py" in packed(project / "dist")


def test_wheel_is_built_without_the_page_if_npm_fails(project: Path, tmp_path: Path) -> None:
    (project / PAGE / "index.html").unlink()
    (project / "page").mkdir()
    (project / "page" / "package.json").write_text("{}")
    done = build(project, project / "dist", PATH=with_npm(tmp_path / "bin", "echo no network >&2; exit 1"))
    assert done.returncode == 0, done.stderr
    assert "no network" in done.stderr
    assert "WITHOUT the web page" in done.stderr
    assert "holdfast/__init__.py" in packed(project / "dist")


def test_wheel_keeps_the_old_page_if_a_newer_one_cannot_be_built(project: Path) -> None:
    (project / "page").mkdir()
    (project / "page" / "package.json").write_text("{}")
    os.utime(project / PAGE / "index.html", (0, 0))
    done = build(project, project / "dist", PATH="")
    assert done.returncode == 0, done.stderr
    assert "older than its sources" in done.stderr
    assert packed(project / "dist") >= PACKED_PAGE


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_release_without_the_page_is_refused(project: Path, target: str) -> None:
    (project / PAGE / "index.html").unlink()
    done = build(project, project / "dist", target, PATH="", HOLDFAST_REQUIRE_PAGE="1")
    assert done.returncode != 0
    assert "npm was not found" in done.stderr
    assert not list((project / "dist").glob("*.*"))


def test_wheel_has_the_license_and_says_what_it_is_for(project: Path) -> None:
    done = build(project, project / "dist", PATH="")
    assert done.returncode == 0, done.stderr
    files = packed(project / "dist")
    assert "holdfast-0.1.0.dist-info/licenses/LICENSE" in files
    with zipfile.ZipFile(next((project / "dist").glob("*.whl"))) as wheel:
        metadata = wheel.read("holdfast-0.1.0.dist-info/METADATA").decode()
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Classifier: Programming Language :: Python :: 3.13\n" in metadata


def test_make_wheel_requires_the_page() -> None:
    (command,) = re.findall(r"^wheel:.*\n\t@(.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert command.startswith("HOLDFAST_REQUIRE_PAGE=1 ")


def test_wheel_of_a_source_archive_with_the_page_needs_no_npm(project: Path, tmp_path: Path) -> None:
    (project / "page").mkdir()
    (project / "page" / "package.json").write_text("{}")
    os.utime(project / "page" / "package.json", (0, 0))
    done = build(project, project / "dist", "sdist", PATH="")
    assert done.returncode == 0, done.stderr
    with tarfile.open(next((project / "dist").glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert (unpacked / "page" / "package.json").is_file()
    done = build(unpacked, tmp_path / "wheel", PATH="", HOLDFAST_REQUIRE_PAGE="1")
    assert done.returncode == 0, done.stderr
    assert packed(tmp_path / "wheel") >= PACKED_PAGE


def test_editable_install_does_not_build_the_page(project: Path) -> None:
    (project / PAGE / "index.html").unlink()
    subprocess.run([sys.executable, "-c", _EDITABLE], cwd=project, check=True, capture_output=True)
