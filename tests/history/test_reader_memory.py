"""What was read of a run goes when nobody uses it: a process that executes thousands of runs would otherwise spend a
fifth of its time on looking for what it can let go."""

from __future__ import annotations

import gc
from weakref import ref

import holdfast


def test_reader_is_not_part_of_a_reference_cycle() -> None:
    with holdfast.open(":memory:") as hf:
        log = hf.history("run")
        for number in range(5):
            log.commit({"n": number, "list": list(range(100))})
        assert log.at(2).state["n"] == 1
        log.blame("n")
        reader = ref(hf._context._readers["run"])
        assert reader() is not None
        gc.disable()
        try:
            del log
            hf.delete("run")
            assert reader() is None
        finally:
            gc.enable()
