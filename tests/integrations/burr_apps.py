"""Small applications of Burr for tests."""

from __future__ import annotations

from typing import Any

from burr.core import Application, ApplicationBuilder, State, action, default

from holdfast.integrations.burr import AsyncHoldfastPersister, HoldfastPersister

#: Not typed as it is meant.
Builder: Any = ApplicationBuilder


@action(reads=["count", "log"], writes=["count", "log"])
def count(state: State[Any]) -> State[Any]:
    return state.update(count=state["count"] + 1).append(log=f"count {state['count'] + 1}")


@action(reads=["count", "log", "broken"], writes=["log"])
def report(state: State[Any]) -> State[Any]:
    if state["broken"]:
        raise RuntimeError("no printer")
    return state.append(log=f"report {state['count']}")


def builder(app_id: str | None, partition_key: str | None = None, sequence_id: int | None = None) -> Any:
    return (
        Builder()
        .with_actions(count=count, report=report)
        .with_transitions(("count", "report"), ("report", "count", default))
        .with_identifiers(app_id=app_id, partition_key=partition_key, sequence_id=sequence_id)
    )


def persisted(builder: Any, persister: HoldfastPersister | AsyncHoldfastPersister, **options: Any) -> Any:
    """Return the builder of an application that is initialized from a persister and saved by it."""
    return builder.initialize_from(
        persister,
        resume_at_next_action=True,
        default_state={"count": 0, "log": [], "broken": False},
        default_entrypoint="count",
        **options,
    ).with_state_persister(persister)


def build(
    persister: HoldfastPersister,
    app_id: str | None = "app",
    partition_key: str | None = None,
    sequence_id: int | None = None,
    **options: Any,
) -> Application[Any]:
    made: Application[Any] = persisted(
        builder(app_id, partition_key, sequence_id), persister, **options
    ).build()
    return made


def steps(app: Application[Any], number: int) -> list[str]:
    done = []
    for _ in range(number):
        ran = app.step()
        assert ran is not None
        done.append(ran[0].name)
    return done
