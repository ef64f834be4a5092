"""Parallel actions of Burr: each of their applications has its own copy of the persister."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from burr.core import Application, State, action
from burr.core.graph import GraphBuilder
from burr.core.parallelism import MapStates, RunnableGraph
from burr_apps import Builder

from holdfast import AlreadyExists, Holdfast
from holdfast.integrations.burr import AsyncHoldfastPersister, HoldfastPersister


@action(reads=["n"], writes=["n"])
def add(state: State[Any]) -> State[Any]:
    return state.update(n=state["n"] + 1)


#: Numbers that `double` fails for.
BROKEN: set[int] = set()


@action(reads=["n"], writes=["n"])
def double(state: State[Any]) -> State[Any]:
    if state["n"] in BROKEN:
        raise RuntimeError("no power")
    return state.update(n=state["n"] * 2)


#: Not typed as it is meant.
graph_builder: Any = GraphBuilder
GRAPH = graph_builder().with_actions(add=add, double=double).with_transitions(("add", "double")).build()


class Both(MapStates):
    """Runs `add` and `double` with 1 and with 11."""

    def action(self, state: State[Any], inputs: dict[str, Any]) -> RunnableGraph:
        return RunnableGraph(GRAPH, entrypoint="add", halt_after=["double"])

    def states(self, state: State[Any], context: Any, inputs: dict[str, Any]) -> Generator[State[Any]]:
        for number in (1, 11):
            yield state.update(n=number)

    def reduce(self, state: State[Any], states: Any) -> State[Any]:
        return state.update(results=sorted(each["n"] for each in states))

    @property
    def reads(self) -> list[str]:
        return ["n"]

    @property
    def writes(self) -> list[str]:
        return ["n", "results"]


class BothLater(Both):
    def is_async(self) -> bool:
        return True

    async def reduce(self, state: State[Any], states: Any) -> State[Any]:  # type: ignore[override]
        return state.update(results=sorted([each["n"] async for each in states]))


STATE: dict[str, Any] = {"n": 0}


def builder(persister: HoldfastPersister | AsyncHoldfastPersister, work: Any) -> Any:
    made = Builder().with_actions(work=work()).with_transitions(("work", "work"))
    return made.with_identifiers(app_id="app").with_state_persister(persister)


def initialized(persister: HoldfastPersister | AsyncHoldfastPersister, work: Any) -> Any:
    return builder(persister, work).initialize_from(
        persister, resume_at_next_action=True, default_state=STATE, default_entrypoint="work"
    )


class Recording(HoldfastPersister):
    """Notes the actions that are saved."""

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        self.saved: list[str] = []

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        self.saved.append(args[3])


class AsyncRecording(AsyncHoldfastPersister):
    """Notes the actions that are saved."""

    def __init__(self, hf: Holdfast) -> None:
        super().__init__(hf)
        self.saved: list[str] = []

    async def save(self, *args: Any, **kwargs: Any) -> None:
        await super().save(*args, **kwargs)
        self.saved.append(args[3])


def test_subclass_of_a_persister_saves_the_applications_of_a_parallel_action(hf: Holdfast) -> None:
    persister = Recording(hf)
    app: Application[Any] = initialized(persister, Both).build()
    app.step()
    assert app.state["results"] == [4, 24]
    assert sorted(persister.saved) == ["add", "add", "double", "double", "work"]
    assert sum(len(hf.history(run.id).versions()) for run in hf.runs()) == 5


def test_subclass_of_an_async_persister_saves_the_applications_of_a_parallel_action(hf: Holdfast) -> None:
    async def run() -> None:
        persister = AsyncRecording(hf)
        app: Application[Any] = await initialized(persister, BothLater).abuild()
        await app.astep()
        assert app.state["results"] == [4, 24]
        assert sorted(persister.saved) == ["add", "add", "double", "double", "work"]

    asyncio.run(run())
    assert sum(len(hf.history(run.id).versions()) for run in hf.runs()) == 5


def fail_once(app: Application[Any]) -> None:
    BROKEN.add(12)
    try:
        with pytest.raises(RuntimeError, match="no power"):
            app.step()
    finally:
        BROKEN.clear()


def test_parallel_action_is_retried_by_an_initialized_application(hf: Holdfast) -> None:
    app: Application[Any] = initialized(HoldfastPersister(hf), Both).build()
    fail_once(app)
    app.step()
    assert app.state["results"] == [4, 24]


def test_retry_of_a_parallel_action_advises_to_initialize_the_application(hf: Holdfast) -> None:
    persister = HoldfastPersister(hf)
    app: Application[Any] = builder(persister, Both).with_entrypoint("work").with_state(**STATE).build()
    fail_once(app)
    before = {run.id: run.head for run in hf.runs() if run.id != "burr/app"}
    with pytest.raises(AlreadyExists, match=r"exists already: continue it with initialize_from"):
        app.step()
    assert {run.id: run.head for run in hf.runs() if run.id != "burr/app"} == before
