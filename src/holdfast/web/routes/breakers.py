"""Circuit breakers: list them; close one by hand."""

from __future__ import annotations

from holdfast.operator_view.records import BreakerView, breaker_view
from holdfast.web.operation import Actor, Body, OperationTable, Role
from holdfast.web.service import Service

TABLE = OperationTable("breakers")


class ResetBody(Body):
    """Who closes it."""

    actor: Actor | None = None


@TABLE.add("GET", "/breakers", Role.VIEWER)
def list_breakers(service: Service) -> list[BreakerView]:
    """List the circuit breakers of steps that have failed."""
    return [breaker_view(breaker) for breaker in service.hf.breakers()]


@TABLE.add("POST", "/breakers/{name}/reset", Role.OPERATOR)
def reset_breaker(service: Service, name: str, body: ResetBody) -> BreakerView:
    """Close a circuit breaker, and let the runs that wait for it try again."""
    return breaker_view(service.hf.reset_breaker(name, actor=body.actor))
