"""The check of the project's language finds what it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci" / "check_words.py"


def checked(path: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, CHECK, path], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("prose.md", "Plain.\n\nThen the run goes on with the next step.\n", 3),
        ("docstring.py", '"""Return the head.\n\nWhoever writes next is told.\n"""\n', 3),
        ("comment.py", "# What somebody wants of the run.\n", 1),
        ("message.py", 'raise ValueError(f"{name} is no run")\n', 1),
        ("name.py", "def tell_owner(run):\n    return run\n", 1),
        ("place.md", "The file stands in a folder.\n", 1),
        ("neighbour.py", "#: The artifacts that are beside a store.\n", 1),
        ("report.md", "A line tells the number of runs.\n", 1),
        ("subject.py", 'def f():\n    """What a run has spent."""\n', 2),
        ("stopped.md", "The worker gave up.\n", 1),
        ("label.tsx", "export const label = 'Frozen runs';\n", 1),
    ],
)
def test_words_of_the_old_dialect_are_found(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    code, found = checked(path)
    assert code == 1
    assert any(f"{name}:{line}: " in each for each in found)


def test_plain_english_passes(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        '"""Return the head version.\n\nThere is no run without one. A * stands for any run.\n"""\n'
        "\n\ndef head():\n    return file.tell()\n"
    )
    assert checked(path) == (0, [])


def test_code_in_documentation_is_not_prose(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("Call `file.tell()`.\n\n```python\nnobody = 1\n```\n")
    assert checked(path) == (0, [])
