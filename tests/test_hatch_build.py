"""The wheel: it is refused without the page, and with it brings all that is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = Path("src", "holdfast", "web", "page")
_EDITABLE = "from hatchling.build import build_editable; build_editable('.')"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What a wheel is made from, as far as it is needed here, with a small page."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / PAGE / "assets").mkdir(parents=True)
    (tmp_path / PAGE / "assets" / "index-1.js").write_text("")
    (tmp_path / PAGE / "index.html").write_text('<script src="./assets/index-1.js"></script>')
    # As in a checkout, where the page is not kept.
    (tmp_path / ".gitignore").write_text(f"/{PAGE}/\n")
    (tmp_path / "src" / "holdfast" / "__init__.py").write_text("")
    return tmp_path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked."""
    if not (ROOT / PAGE / "index.html").is_file():
        pytest.skip("the page is not built here: make page (needs Node.js)")
    folder = tmp_path_factory.mktemp("wheel")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def build(project: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_a_wheel_with_the_page_is_made(project: Path) -> None:
    done = build(project, project / "dist")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((project / "dist").glob("*.whl"))) as wheel:
        assert {"holdfast/web/page/index.html", "holdfast/web/page/assets/index-1.js"} <= set(
            wheel.namelist()
        )


@pytest.mark.parametrize("missing", ["index.html", "assets/index-1.js"])
def test_a_wheel_without_the_page_is_refused(project: Path, missing: str) -> None:
    (project / PAGE / missing).unlink()
    done = build(project, project / "dist")
    assert done.returncode != 0
    assert "make page" in done.stderr


def test_whoever_works_on_it_builds_the_page_beside(project: Path) -> None:
    (project / PAGE / "index.html").unlink()
    subprocess.run([sys.executable, "-c", _EDITABLE], cwd=project, check=True, capture_output=True)


def test_the_first_program_of_the_readme_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    found = re.search(r'```python title="letter.py"\n(.*?)```', (ROOT / "README.md").read_text(), re.S)
    assert found
    (tmp_path / "letter.py").write_text(found[1])
    assert call(installed, tmp_path, "letter.py") == ""
    assert "facts about kelp" in call(installed, tmp_path, "-m", "holdfast", "show", "letter", "--result")
    where = call(installed, tmp_path, "-c", "import holdfast; print(holdfast.__file__)")
    assert Path(where).is_relative_to(installed)


def test_the_page_comes_with_the_wheel(installed: Path, tmp_path: Path) -> None:
    call(installed, tmp_path, "-m", "holdfast", "init", "runs.db", "--yes")
    command = [sys.executable, "-m", "holdfast", "--store", "runs.db", "serve", "--port", "0", "--json"]
    server = subprocess.Popen(command, cwd=tmp_path, env=environment(installed), stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with urllib.request.urlopen(url) as answer:
            assets = re.findall(r"assets/[\w.-]+", answer.read().decode())
        assert len(assets) == 3
        for each in assets:
            with urllib.request.urlopen(f"{url}/{each}") as answer:
                assert answer.status == 200
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


def test_the_program_and_what_it_needs_are_named(installed: Path) -> None:
    (about,) = installed.glob("*.dist-info")
    assert "holdfast = holdfast.cli:main" in (about / "entry_points.txt").read_text()
    needs = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", (about / "METADATA").read_text(), re.M)
    assert {"click", "msgspec", "rich", "starlette", "uvicorn", "zstandard"} <= set(needs)


def environment(installed: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(installed)}


def call(installed: Path, folder: Path, *arguments: str) -> str:
    """What a program says that finds Holdfast in the wheel."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(installed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
