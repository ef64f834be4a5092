"""Fuzz a target with coverage feedback: `python tests/fuzz/fuzz.py codec --seconds 3600`. Needs `atheris`.

An input that reaches new code is kept in the folder `--found`, where the next search starts from; copy the small ones
to the corpus. One that fails is written to the corpus at once, one for each place of failure, and the search continues;
the exit code then is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from hashlib import sha256
from pathlib import Path
from typing import Any

import atheris

CORPUS = Path(__file__).with_name("corpus")
#: Bytes of an input.
MOST = {"codec": 20_000, "path": 20_000, "pack": 20_000, "snapshot": 20_000, "bundle": 10_000, "http": 20_000}

with atheris.instrument_imports(include=["holdfast"]):
    import requests_in_process
    from mutation import Mutator
    from seeds import SEEDS
    from targets import TARGETS, check


class Search:
    """Runs one target on what libFuzzer gives it, and writes down what fails."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.count = 0
        self.failures: set[str] = set()
        self._began = time.monotonic()
        self._seconds = seconds
        self._target = TARGETS[name]
        self._mutator = Mutator(list(SEEDS[name]()))

    def __call__(self, data: bytes) -> None:
        self.count += 1
        try:
            check(self._target, data)
        except (Exception, RecursionError) as error:
            self._failed(data, error)
        if time.monotonic() - self._began > self._seconds:
            self._end()

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        return self._mutator.mutate(data, most, random.Random(seed), atheris.Mutate)

    def _failed(self, data: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if "holdfast/" in frame.filename
        ]
        place = f"{type(error).__name__} {ours[-1] if ours else frames[-1].lineno} {ours[0] if ours else ''}"
        if isinstance(error, AssertionError):
            place += f" {frames[-1].lineno}"
        if place in self.failures or len(self.failures) > 200:
            return
        self.failures.add(place)
        file = write(CORPUS / self.name, data, "failed-")
        print(f"FAILED {self.name} {place}: {error!r:.300}\n  {file}", flush=True)

    def _end(self) -> None:
        seconds = time.monotonic() - self._began
        print(
            f"{self.name}: {self.count} inputs in {seconds:.0f} s, {len(self.failures)} failures", flush=True
        )
        requests_in_process.close()
        # libFuzzer would report an ordinary exit as a failure.
        os._exit(bool(self.failures))


def write(folder: Path, data: bytes, prefix: str = "") -> Path:
    """Write an input to a folder under a name of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{prefix}{sha256(data).hexdigest()[:16]}"
    file.write_bytes(data)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--found", type=Path)
    options = parser.parse_args()
    name = options.target
    found = options.found or Path(tempfile.mkdtemp(prefix=f"holdfast-fuzz-{name}-"))
    for data in SEEDS[name]():
        write(found, data, "seed-")
    search = Search(name, options.seconds)
    arguments: list[Any] = [
        sys.argv[0], str(found), str(CORPUS / name), f"-max_len={MOST[name]}",
        "-timeout=300", "-rss_limit_mb=3000", "-print_final_stats=0", "-verbosity=0", f"-artifact_prefix={found}/",
    ]  # fmt: skip
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    atheris.Setup(arguments, search, custom_mutator=search.mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
