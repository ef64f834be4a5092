"""LangGraph's own conformance suite in full: on each store, over the asynchronous and over the blocking methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from holdfast.integrations.langgraph import HoldfastSaver

pytest_plugins = ["postgres_fixtures"]

_CAPABILITIES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class Blocking(BaseCheckpointSaver[Any]):
    """The blocking methods of a saver under the names of the asynchronous ones."""

    def __init__(self, saver: HoldfastSaver) -> None:
        super().__init__()
        self.saver = saver

    async def aget_tuple(self, config: Any) -> Any:
        return self.saver.get_tuple(config)

    async def alist(self, config: Any, **how: Any) -> AsyncIterator[Any]:
        for item in self.saver.list(config, **how):
            yield item

    async def aput(self, *args: Any) -> Any:
        return self.saver.put(*args)

    async def aput_writes(self, *args: Any, **how: Any) -> None:
        self.saver.put_writes(*args, **how)

    async def adelete_thread(self, thread_id: str) -> None:
        self.saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self.saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        self.saver.prune(thread_ids, strategy=strategy)


@pytest.mark.parametrize("methods", ["asynchronous", "blocking"])
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_saver_passes_langgraph_conformance_suite(
    store: str, methods: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = {"memory": ":memory:", "sqlite": str(tmp_path / "runs.db")}.get(store)
    with HoldfastSaver(where or request.getfixturevalue("url")) as saver:

        @checkpointer_test(name=f"{store} {methods}")
        async def made() -> AsyncIterator[Any]:
            yield saver if methods == "asynchronous" else Blocking(saver)

        report = asyncio.run(validate(made))
        assert saver.hf.verify().ok
    assert {name: result.failures for name, result in report.results.items() if result.failures} == {}
    assert {name: result.tests_passed for name, result in report.results.items()} == _CAPABILITIES
    assert sum(_CAPABILITIES.values()) == 81
