"""Circuit breakers in the store: a step that keeps failing is not called for a while, by any run or process.

Invariant: of many callers that want to try a half-open breaker, one is admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import BreakerOpen, StaleVersion
from holdfast.struct_types import resolved
from holdfast.workflow.definition import Step
from holdfast.workflow.policy import BreakerState, after_failure, after_success
from holdfast.workflow.policy import admit as admitted

if TYPE_CHECKING:
    from holdfast.execution.engine_context import EngineContext


def read(engine: EngineContext, name: str) -> tuple[BreakerState, int]:
    """Return the breaker of a step, and its revision."""
    found = engine.store.value(f"breaker:{name}")
    if found is None:
        return BreakerState(), 0
    return msgspec.msgpack.decode(found[0], type=resolved(BreakerState)), found[1]


def admit(engine: EngineContext, definition: Step) -> None:
    """Admit an attempt, or raise `BreakerOpen`."""
    policy = definition.breaker
    assert policy is not None
    while True:
        state, revision = read(engine, definition.name)
        may, after = admitted(policy, state, engine.context.clock())
        if not may:
            raise BreakerOpen(
                f"step {definition.name!r} failed {state.failures} times in a row and is left alone for "
                f"{policy.reset:g} s: find out why it fails, then resume the run",
                step=definition.name,
            )
        if after is state or _put(engine, definition.name, after, revision):
            return


def note(engine: EngineContext, definition: Step, error: BaseException | None) -> None:
    """Record the outcome of an attempt."""
    policy = definition.breaker
    assert policy is not None
    while True:
        state, revision = read(engine, definition.name)
        now = engine.context.clock()
        after = after_success(policy, state, now) if error is None else after_failure(policy, state, now)
        if after is state or _put(engine, definition.name, after, revision):
            return


def _put(engine: EngineContext, name: str, state: BreakerState, revision: int) -> bool:
    try:
        engine.store.set_value(f"breaker:{name}", msgspec.msgpack.encode(state), revision)
    except StaleVersion:
        return False
    return True
