"""A fork of a fork stays readable when the run at the far end goes, also for those who were reading it."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast


@pytest.mark.parametrize("by_the_reader", [True, False])
def test_fork_of_a_fork_is_readable_while_its_first_origin_is_deleted(
    tmp_path: Path, *, by_the_reader: bool
) -> None:
    with holdfast.open(tmp_path / "a.db") as writer, holdfast.open(tmp_path / "a.db") as reader:
        log = writer.history("a")
        for n in range(10):
            with log.edit() as state:
                state[f"k{n}"] = {"text": "x" * 600, "n": n}
        writer.fork("a@10", "b")
        writer.fork("b@1", "c")
        assert reader.history("c").head.get("k0.n") == 0
        (reader if by_the_reader else writer).delete("a")
        assert [reader.history("c").head.get(f"k{n}.n") for n in range(10)] == list(range(10))
        assert reader.verify().ok
