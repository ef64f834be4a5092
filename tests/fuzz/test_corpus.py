"""The inputs that a fuzzer has found, replayed: those that once failed, and those that reach different code."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests_in_process
from mutation import Mutator
from seeds import SEEDS
from targets import TARGETS, check

CORPUS = Path(__file__).with_name("corpus")


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    requests_in_process.close()


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_finds_no_failure(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        try:
            check(TARGETS[name], file.read_bytes())
        except BaseException as error:
            raise AssertionError(f"{name}/{file.name}: {error!r:.300}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_mutations_find_no_failure(name: str) -> None:

    rng = random.Random(name)
    seeds = list(SEEDS[name]())
    mutator = Mutator(seeds)
    for seed in rng.sample(seeds, min(len(seeds), 40)):
        check(TARGETS[name], seed)
        made = mutator.mutate(seed, 20_000, rng, lambda data, most: data[: len(data) // 2])
        try:
            check(TARGETS[name], made)
        except BaseException as error:
            raise AssertionError(f"{name} {made!r:.2000}: {error!r:.300}") from error
