"""Drafts against plain Python containers, and frozen containers against C code that writes into them.

`HOLDFAST_EXAMPLES=1000` looks deeper than a quick test run does.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draft_programs import NUMBERS, PROGRAMS, apply, states
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machine_values import exactly, plain

import holdfast
from holdfast import FrozenStateChanged, thaw

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "60"))
_settings = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_settings
@given(state=states(), programs=st.lists(PROGRAMS, min_size=1, max_size=3))
def test_draft_behaves_like_plain_containers(state: Any, programs: list[Any]) -> None:
    expected = plain(state)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with holdfast.open(path, durability="memory") as hf:
            log = hf.history("run")
            log.commit(state)
            for program in programs:
                before = thaw(log.head.state)
                with log.edit() as draft:
                    given_by_draft = apply(draft, program)
                    in_memory = thaw(draft)
                    assert exactly(thaw(log.head.state), before), "others see nothing of a draft"
                assert exactly(given_by_draft, apply(expected, program))
                # A commit stores values: what was one object in two places is two.
                expected = plain(expected)
                assert exactly(in_memory, expected)
                assert exactly(thaw(log.head.state), expected)
            assert log.verify().ok
        with holdfast.open(path) as hf:
            assert exactly(thaw(hf.history("run").head.state), expected)


ATTACKS: dict[str, Callable[[Any, Any], Any]] = {
    "heappush": lambda s, v: heapq.heappush(s["heap"], v),
    "heappop": lambda s, v: heapq.heappop(s["heap"]),
    "heapify": lambda s, v: heapq.heapify(s["heap"]),
    "list.append": lambda s, v: list.append(s["records"], {"n": v}),
    "list.sort": lambda s, v: list.sort(s["rows"]),
    "list.clear": lambda s, v: list.clear(s["records"]),
    "nested list": lambda s, v: list.append(s["rows"][0], v),
    "dict.__setitem__": lambda s, v: dict.__setitem__(s, "heap", v),
    "dict in a loop": lambda s, v: [dict.__setitem__(r, "n", "by C") for r in s["records"]],
    "dict by index": lambda s, v: dict.clear(s["records"][0]),
    "dict of values": lambda s, v: [dict.__setitem__(r, "new", v) for r in s["wide"].values()],
    "dict in a tuple": lambda s, v: [dict.__setitem__(inner, "k", "by C") for _, inner in s["pairs"]],
    "set": lambda s, v: s["seen"].add(99),
    "deque": lambda s, v: s["queue"].append(v),
    "bytearray": lambda s, v: s["raw"].append(1),
    "dataclass": lambda s, v: s["profile"].notes.append(v),
    "dataclasses": lambda s, v: s["profiles"][0].notes.append("changed"),
}


@_settings
@given(
    state=states(),
    attacks=st.lists(st.sampled_from(sorted(ATTACKS)), min_size=1, max_size=4),
    value=NUMBERS,
    program=PROGRAMS,
)
def test_frozen_state_written_by_c_code_is_seen_by_its_reader_alone(
    state: Any, attacks: list[str], value: Any, program: list[Any]
) -> None:
    expected = plain(state)
    with holdfast.open(":memory:") as hf:
        log = hf.history("run")
        log.commit(state)
        version = log.head
        document = version.history.export(1)
        for name in attacks:
            try:
                ATTACKS[name](version.state, value)
            except (IndexError, KeyError, TypeError, AttributeError):
                continue
        for reader in (log.head, log.at(1), hf.history("run").head, hf.get("run").head):
            assert exactly(thaw(reader.state), expected)
        assert exactly(version.copy(), expected)
        assert log.export(version)["state"] == document["state"]
        try:
            again = log.commit(version.state)
        except FrozenStateChanged:
            assert log.head.number == 1
        else:
            # Nothing was written past a method: only objects that are the reader's own were changed.
            assert exactly(thaw(again.state)["records"], expected["records"])
            assert exactly(thaw(again.state)["heap"], expected["heap"])
            log.rollback(to=1)
        with log.edit() as draft:
            apply(draft, program)
        apply(expected, program)
        assert exactly(thaw(log.head.state), plain(expected))
        assert log.verify().ok
