"""A run that is due again while its last execution, in the same worker, is still about to end goes on when that has.

The lease is longer than any test: whoever waited for it would never come to an end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import monitor_stage as s
import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast, step, workflow
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.run_writer import RunWriter
from holdfast.fleet.worker import Worker
from holdfast.model.run_detail import PendingRollback, detail_of, encode_detail
from holdfast.store.protocol import Append, Claim

pytest_plugins = ["postgres_fixtures"]
PATIENCE = 60.0


@workflow(name="again_plain")
def plain() -> int:
    return int(holdfast.ask("first?")) + int(holdfast.ask("second?"))


@workflow(name="again_async")
async def asynchronous() -> int:
    return int(await holdfast.ask("first?")) + int(await holdfast.ask("second?"))


def take_back(result: str) -> None:
    """Something to be undone."""


@step(name="again_order", compensate=take_back)
def order() -> str:
    return "ordered"


@workflow(name="again_ordering")
def ordering() -> str:
    order()
    return str(holdfast.ask("go on?"))


@pytest.fixture(params=["sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url")
    with holdfast.open(where, lease=3600) as opened:
        yield opened


class Gate:
    """Keeps whoever comes first waiting until the run has been claimed a second time."""

    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims = 0
        self.claimed = threading.Event()
        self.passed = False
        claim = hf._store.claim

        def counting(wanted: Claim) -> Any:
            found = claim(wanted)
            self.claims += len(found)
            if self.claims >= 2:
                self.claimed.set()
            return found

        monkeypatch.setattr(hf._store, "claim", counting)

    def hold(self) -> None:
        if not self.passed:
            self.passed = True
            assert self.claimed.wait(PATIENCE)


def before(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, owner: Any, name: str, late: Callable[..., bool]
) -> None:
    """Let the gate stand before a method, where that is called so late."""
    method = getattr(owner, name)

    def held(self: Any, *args: Any, **how: Any) -> Any:
        if late(self, *args, **how):
            gate.hold()
        return method(self, *args, **how)

    monkeypatch.setattr(owner, name, held)


def answered(hf: Holdfast, run: holdfast.Run) -> int:
    """Answer both questions, and let the workers bring it to its end."""
    for number in (1, 2):
        (prompt,) = s.wait_until(hf.inbox)
        hf.answer(prompt.id, number, resume=False)
    s.wait_until(lambda: run.status == "completed")
    result: int = run.result
    return result


PLACES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "it has ended, and only its place is not free": (Worker, "_ended", lambda *_: True),
    "nobody knows yet that it is over": (EngineContext, "release", lambda *_: True),
    "it has not heard yet that its last write was done": (
        RunWriter, "_settle", lambda self, *given, **_: getattr(given[-1], "status", "") == "suspended",
    ),
}  # fmt: skip


@pytest.mark.parametrize("flow", [plain, asynchronous], ids=["plain", "async"])
@pytest.mark.parametrize("place", PLACES)
def test_run_released_late_is_claimed_again_at_once(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, place: str, flow: Any
) -> None:
    if flow is asynchronous and place != "it has not heard yet that its last write was done":
        pytest.skip("the gate would stand in the event loop that is to go on")
    gate = Gate(hf, monkeypatch)
    before(monkeypatch, gate, *PLACES[place])
    run = hf.enqueue(flow)
    with hf.worker(monitor=False, poll=0.02):
        assert answered(hf, run) == 3
    assert gate.passed
    assert gate.claims >= 2


def test_worker_claims_a_run_again_after_finishing_its_rollback(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker finishes a rollback, which leaves the run in its queue, and claims it again before that has ended."""
    run = hf.enqueue(ordering)
    with hf.worker(monitor=False, poll=0.02):
        s.wait_until(hf.inbox)
    found = hf._store.run(run.id)
    assert found is not None
    facts = detail_of(found)
    facts.rollback = PendingRollback(to=1, reason="to be finished", then="queued")
    after = replace(found, status="queued", revision=found.revision + 1, detail=encode_detail(facts))
    hf._store.append(Append(expect=found, run=after))
    gate = Gate(hf, monkeypatch)
    before(monkeypatch, gate, EngineContext, "release", lambda *_: run.status == "queued")
    with hf.worker(monitor=False, poll=0.02):
        s.wait_until(lambda: run.status == "suspended")
        hf.answer(hf.inbox()[0].id, "yes", resume=False)
        s.wait_until(lambda: run.status == "completed")
    assert gate.passed


def test_two_workers_of_one_engine_execute_a_run_in_turns(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(hf, monkeypatch)
    before(monkeypatch, gate, EngineContext, "release", lambda *_: True)
    run = hf.enqueue(plain)
    narrow: Any = {"monitor": False, "poll": 0.02, "concurrency": 1}
    with hf.worker(**narrow), hf.worker(**narrow):
        assert answered(hf, run) == 3


def test_when_free_calls_back_once(hf: Holdfast) -> None:
    services, told = hf._engine, []
    services.when_free("a", lambda: told.append("free"))
    assert told == ["free"]
    claim = services.claim("a")
    services.when_free("a", lambda: told.append("released"))
    services.release("a", object())
    assert told == ["free"]
    services.release("a", claim)
    services.release("a", claim)
    assert told == ["free", "released"]


def test_when_free_does_not_wait_for_a_closed_event_loop(hf: Holdfast) -> None:
    services, told = hf._engine, []

    async def claim() -> None:
        services.claim("a")

    asyncio.run(claim())
    services.when_free("a", lambda: told.append("free"))
    assert told == ["free"]
