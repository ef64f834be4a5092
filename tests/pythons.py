"""Find the interpreters of the Python versions that Holdfast supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache

#: Oldest first, as pyproject.toml says.
SUPPORTED = ("3.11", "3.12", "3.13")


@cache
def other_pythons() -> tuple[str, ...]:
    """Return the paths of interpreters of the other supported versions, as far as this machine has them."""
    found = []
    for version in SUPPORTED:
        python = shutil.which(f"python{version}")
        if python is None or version == f"{sys.version_info[0]}.{sys.version_info[1]}":
            continue
        # pyenv installs a launcher for each version, which works only if that version is selected.
        done = subprocess.run(
            [python, "-c", "import sys; print(sys.executable)"],
            env={**os.environ, "PYENV_VERSION": version},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            found.append(done.stdout.strip())
    return tuple(found)


if __name__ == "__main__":
    print(*other_pythons(), sep="\n")
