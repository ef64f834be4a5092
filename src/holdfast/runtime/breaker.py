"""Circuit breakers in the store: a step that keeps failing is left alone for a while, by all runs and processes.

Invariant: of many that want to try a half-open breaker, one is admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import BreakerOpen, StaleVersion
from holdfast.runtime.definition import Step
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.policy import BreakerState, after_failure, after_success
from holdfast.runtime.policy import admit as admitted
from holdfast.struct_types import resolved

if TYPE_CHECKING:
    from holdfast.runtime.services import Services


def admit(services: Services, definition: Step) -> Flow[None]:
    """Go on, or `BreakerOpen`."""
    yield Do(lambda: _admit(services, definition))


def note(services: Services, definition: Step, error: BaseException | None) -> Flow[None]:
    """An attempt has ended."""
    if not isinstance(error, BreakerOpen):
        yield Do(lambda: _note(services, definition, error))


def read(services: Services, name: str) -> tuple[BreakerState, int]:
    """The breaker of a step as it is, and its revision."""
    found = services.store.value(f"breaker:{name}")
    if found is None:
        return BreakerState(), 0
    return msgspec.msgpack.decode(found[0], type=resolved(BreakerState)), found[1]


def _admit(services: Services, definition: Step) -> None:
    policy = definition.breaker
    assert policy is not None
    while True:
        state, revision = read(services, definition.name)
        may, after = admitted(policy, state, services.context.clock())
        if not may:
            raise BreakerOpen(
                f"step {definition.name!r} failed {state.failures} times in a row and is left alone for "
                f"{policy.reset:g} s: find out why it fails, then resume the run",
                step=definition.name,
            )
        if after is state or _put(services, definition.name, after, revision):
            return


def _note(services: Services, definition: Step, error: BaseException | None) -> None:
    policy = definition.breaker
    assert policy is not None
    while True:
        state, revision = read(services, definition.name)
        now = services.context.clock()
        after = after_success(policy, state, now) if error is None else after_failure(policy, state, now)
        if after is state or _put(services, definition.name, after, revision):
            return


def _put(services: Services, name: str, state: BreakerState, revision: int) -> bool:
    try:
        services.store.set_value(f"breaker:{name}", msgspec.msgpack.encode(state), revision)
    except StaleVersion:
        return False
    return True
