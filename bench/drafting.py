"""How fast a draft is read and changed: a long list of messages, a wide dict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import holdfast
from bench import workload
from bench.measure import Bench, Row, medians, note

_MESSAGES = 1_000
_WIDE = 10_000
_TIMES = 60


def draft(bench: Bench) -> Iterator[Row]:
    """Read 1,000 messages of a draft; edit one item of 100 and of 10,000."""
    note("drafts")
    work = f"read {_MESSAGES:,} messages of a draft"
    plain, first, later = medians(_reading(bench) for _ in range(bench.repetitions))
    detail = f"{first * 1e6:.0f} µs, a plain list of plain dicts {plain * 1e6:.0f} µs"
    yield Row(work, "first loop ÷ plain Python", first / plain, "×", detail)
    yield Row(work, "later loops ÷ plain Python", later / plain, "×", f"{later * 1e6:.0f} µs", at_most=1.5)
    for name, change in (("list", _edit_list), ("dict", _edit_dict)):
        few, many = medians(
            (_editing(bench, name, 100, change), _editing(bench, name, _WIDE, change))
            for _ in range(bench.repetitions)
        )
        yield Row(
            f"edit one item of a {name}", f"{_WIDE:,} items ÷ 100 items", many / few, "×",
            f"{many * 1e6:.0f} µs and {few * 1e6:.0f} µs of processor time",
        )  # fmt: skip


def _reading(bench: Bench) -> tuple[float, float, float]:
    """Seconds of processor time for a loop over a plain list, over a new draft, and over it once more."""
    said = workload.messages(_MESSAGES)
    with bench.place() as folder, holdfast.open(folder / "runs.db") as hf:
        log = hf.history("run")
        log.commit({"messages": said})
        plain = min(_took(lambda: _prompt(said)) for _ in range(_TIMES))
        first = later = 1.0
        for _ in range(_TIMES):
            with log.edit() as state:
                messages = state["messages"]
                first = min(first, _took(partial(_prompt, messages)))
                later = min(later, _took(partial(_prompt, messages)))
        return plain, first, later


def _editing(bench: Bench, name: str, size: int, change: Callable[[Any, int], None]) -> float:
    """Seconds of processor time for a version that changes one item."""
    items: Any = [{"role": "user", "content": f"message {at}", "n": at} for at in range(size)]
    if name == "dict":
        items = {f"k{at}": item for at, item in enumerate(items)}
    with bench.place() as folder, holdfast.open(folder / "runs.db", durability="fast") as hf:
        log = hf.history("run")
        log.commit({"items": items})
        found = []
        for number in range(_TIMES):
            start = time.process_time()
            with log.edit() as state:
                change(state["items"], number * 37 % size)
            found.append(time.process_time() - start)
    return sorted(found)[_TIMES // 2]


def _prompt(messages: Any) -> list[Any]:
    """As a model call takes them."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _edit_list(items: Any, at: int) -> None:
    items[at]["n"] = -1 - at


def _edit_dict(items: Any, at: int) -> None:
    items[f"k{at}"]["n"] = -1 - at


def _took(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start
