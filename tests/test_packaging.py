"""A wheel and `pip install` of a clean clone give a package that runs the README's program, on every supported Python.

The build hook alone, with a small project, is tested in test_hatch_build.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

import holdfast
from pythons import SUPPORTED, other_pythons

ROOT = Path(__file__).parents[1]
PAGE = Path("src", "holdfast", "web", "page")
PYTHONS = {f"python{sys.version_info[0]}.{sys.version_info[1]}": sys.executable} | {
    Path(path).name: path for path in other_pythons()
}
IS_PAGE_BUILT = (ROOT / PAGE / "index.html").is_file()


class Installation:
    """A new virtual environment, and a folder to work in."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "venv" / "bin"
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the variables of a shell in which the environment is active."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**inherited, "PATH": f"{self._bin}{os.pathsep}{inherited['PATH']}", **variables}

    def run(self, program: str, *arguments: object, code: int = 0, **variables: str) -> str:
        """Run a program of the environment in the folder; return its output."""
        command = [str(self._bin / program), *map(str, arguments)]
        environment = self.environment(**variables)
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def check_readme(self) -> None:
        """Let the README's agent crash, and resume it."""
        found = re.search(r'```python title="agent.py"\n(.*?)```', (ROOT / "README.md").read_text(), re.S)
        assert found
        (self._folder / "agent.py").write_text(found[1])
        assert "tool:  book_ferry" in self.run("python", "agent.py", CRASH="1", code=1)
        assert "interrupted" in self.run("holdfast", "runs")
        resumed = self.run("python", "agent.py").splitlines()
        assert (resumed[0], resumed[-1]) == (
            "tool:  book_ferry",
            "You are booked on the 16:10 ferry to Mull.",
        )
        assert "\tfinal\t" in self.run("holdfast", "log", "ferry")
        where = self.run("python", "-c", "import holdfast; print(holdfast.__file__)")
        assert Path(where.strip()).is_relative_to(self._folder)

    def check_page(self) -> None:
        """Fetch the web page and its files from `holdfast serve`."""
        command = [str(self._bin / "holdfast"), "serve", "--port", "0", "--json"]
        with subprocess.Popen(
            command, cwd=self._folder, env=self.environment(), stdout=subprocess.PIPE
        ) as server:
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
                assert server.wait(60) == 0
            finally:
                server.kill()


def without_npm() -> str:
    """Return the search path of this process without the folders that have npm."""
    return os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "npm").exists()
    )


def clone(folder: Path) -> Path:
    """Return a clean clone of this checkout."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder / "clone"], check=True)
    return folder / "clone"


@pytest.fixture(scope="module")
def build_wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """Return a function that builds the wheel of a clean clone, with the page or without it."""
    built: dict[bool, Path] = {}

    def build(with_page: bool) -> Path:
        if with_page not in built:
            folder = tmp_path_factory.mktemp("wheel")
            project = clone(folder)
            if with_page:
                shutil.copytree(ROOT / PAGE, project / PAGE)
                (project / PAGE / "index.html").touch()
            command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
            environment = {**os.environ, "PATH": without_npm()}
            done = subprocess.run(
                command, cwd=project, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert ("WITHOUT the web page" in done.stderr) is not with_page
            (built[with_page],) = folder.glob("*.whl")
        return built[with_page]

    return build


def need_page() -> None:
    if not IS_PAGE_BUILT:
        pytest.skip("the page is not built here: make page (needs Node.js)")


@pytest.mark.parametrize("with_page", [True, False], ids=["page", "no-page"])
def test_wheel_of_a_clone_is_complete(build_wheel: Callable[[bool], Path], with_page: bool) -> None:
    if with_page:
        need_page()
    with zipfile.ZipFile(build_wheel(with_page)) as wheel:
        files = set(wheel.namelist())
        about = f"holdfast-{holdfast.__version__}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
        assert wheel.read(f"{about}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "holdfast = holdfast.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "src/holdfast"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    sources = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    assert sources <= files
    assert ("holdfast/web/page/index.html" in files) is with_page
    assert not [name for name in files if not name.startswith(("holdfast/", about))]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == f">={SUPPORTED[0]}"
    classifiers = metadata.get_all("Classifier") or []
    for version in SUPPORTED:
        assert f"Programming Language :: Python :: {version}" in classifiers
    needed = {
        found[0]
        for line in metadata.get_all("Requires-Dist") or []
        if "extra ==" not in line and (found := re.match(r"[\w-]+", line))
    }
    assert needed == {
        "apsw",
        "click",
        "jsonschema",
        "msgspec",
        "rich",
        "starlette",
        "tzdata",
        "uvicorn",
        "zstandard",
    }


@pytest.mark.parametrize("python", PYTHONS)
def test_installed_wheel_runs_the_readme(
    build_wheel: Callable[[bool], Path], python: str, tmp_path: Path
) -> None:
    installation = Installation(PYTHONS[python], tmp_path)
    wheel = build_wheel(IS_PAGE_BUILT)
    installation.run("pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    assert installation.run("holdfast", "--version") == f"holdfast {holdfast.__version__}\n"
    installation.check_readme()
    if IS_PAGE_BUILT:
        installation.check_page()


@pytest.mark.parametrize("has_npm", [True, False], ids=["npm", "no-npm"])
def test_pip_install_of_a_fresh_clone_runs_the_readme(tmp_path: Path, has_npm: bool) -> None:
    """The commands of the README on a clean machine: the clone has no page yet."""
    if has_npm and shutil.which("npm") is None:
        pytest.skip("needs npm")
    installation = Installation(sys.executable, tmp_path)
    search = os.environ["PATH"] if has_npm else without_npm()
    output = installation.run("pip", "install", "--verbose", clone(tmp_path), PATH=search)
    assert ("WITHOUT the web page" in output) is not has_npm
    installation.check_readme()
    program = "from holdfast.web.page import PageFiles; print(PageFiles().is_built)"
    assert installation.run("python", "-c", program).strip() == str(has_npm)
    if has_npm:
        installation.check_page()
