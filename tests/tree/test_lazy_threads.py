"""Containers of a state that threads share: each child is opened once, and no change is lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from holdfast.tree import frozen as lazy
from holdfast.tree.draft import draft
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import reveal

_THREADS = 4


@pytest.fixture(autouse=True)
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def frozen(value: Any) -> Any:
    return Folder(object()).fold(value, None)


def together(work: Callable[[int], Any]) -> list[Any]:
    start = threading.Barrier(_THREADS)

    def begin(number: int) -> Any:
        start.wait()
        return work(number)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(begin, range(_THREADS)))


def test_threads_that_read_one_state_get_the_same_children() -> None:
    tree = frozen(
        {"dicts": {f"k{n}": {"n": [n]} for n in range(20)}, "lists": [[{"n": n}, [n]] for n in range(20)]}
    )

    def read(state: Any, _: int) -> list[Any]:
        found = [state[key] for key in state] + list(state.values())
        for part in found[:2]:
            found += [part[key] for key in part] if isinstance(part, dict) else part[:]
            found += part.values() if isinstance(part, dict) else iter(part)
        return found

    for _ in range(60):
        first, *others = together(partial(read, reveal(tree, lambda box: box)))
        for other in others:
            assert list(map(id, other)) == list(map(id, first))


def test_changes_that_threads_make_to_one_draft_are_all_kept() -> None:
    tree = frozen({"found": {f"k{n}": {"all": [0]} for n in range(10)}, "log": [[n] for n in range(10)]})
    for _ in range(60):
        shared = draft(tree)

        def change(number: int, shared: Any = shared) -> None:
            for key in range(10):
                shared["found"][f"k{key}"]["all"].append(number)
                shared["log"][key].append(number)
                shared["found"][f"new{number}-{key}"] = number
                shared["log"].append([number])
                shared.setdefault(f"made{key}", []).append(number)

        together(change)
        left = Folder(object()).fold(shared, None)
        everyone = list(range(_THREADS))
        for key in range(10):
            assert sorted(left["found"][f"k{key}"]["all"]) == sorted([0, *everyone])
            assert sorted(left["log"][key][1:]) == everyone
            assert sorted(left[f"made{key}"]) == everyone
        assert len(left["found"]) == len(left["log"]) == 10 + 10 * _THREADS


def test_items_can_move_while_others_are_read() -> None:
    for _ in range(60):
        shared = draft(frozen([{"n": n, "of": [n]} for n in range(40)]))

        def work(number: int, shared: Any = shared) -> list[int]:
            if number:
                return [item["of"][0] for item in map(shared.__getitem__, range(30))]
            return [shared.pop(0)["n"] for _ in range(10)]

        popped, *_ = together(work)
        assert popped == list(range(10))
        assert [item["n"] for item in shared] == [item["of"][0] for item in shared] == list(range(10, 40))


def test_threads_pop_each_key_once() -> None:
    for _ in range(60):
        shared = draft(frozen({f"k{n}": [n] for n in range(20)}))

        def work(number: int, shared: Any = shared) -> list[Any]:
            if number % 2:
                return [found for n in range(20) if (found := shared.pop(f"k{n}", None)) is not None]
            taken = []
            while shared:
                try:
                    taken.append(shared.popitem()[1])
                except KeyError:
                    break
            return taken

        assert sorted(item for each in together(work) for item in each) == [[n] for n in range(20)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_while_another_thread_opens_a_child() -> None:
    shared = draft(frozen({"a": {"b": [1]}}))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lazy.opening:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(shared["a"]["b"][0])
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        done.set()
        thread.join()
