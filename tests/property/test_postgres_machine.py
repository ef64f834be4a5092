"""The same machines on PostgreSQL, with few examples: what differs from SQLite is below the history."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest
import test_keys_machine as keys
import test_runtime_machine as runtime
from hypothesis import HealthCheck, settings
from postgres_server import address, shared
from test_history_machine import EXAMPLES, STEPS, Machine

import holdfast
from holdfast import Holdfast
from holdfast.store.postgres.store import PostgresStore

pytestmark = pytest.mark.slow


class PostgresMachine(Machine):
    """Two engines on one schema."""

    def __init__(self) -> None:
        self.schema = f"machine_{uuid4().hex[:12]}"
        super().__init__()

    def open(self) -> Holdfast:
        return holdfast.open(address(shared(), self.schema), durability="memory", clock=lambda: self.now)

    def teardown(self) -> None:
        super().teardown()
        _drop(self.schema)


class PostgresKeysMachine(keys.Machine):
    """Two engines on one schema."""

    def __init__(self) -> None:
        self.schema = f"machine_{uuid4().hex[:12]}"
        super().__init__()

    def open(self) -> Holdfast:
        return holdfast.open(address(shared(), self.schema), durability="memory")

    def teardown(self) -> None:
        super().teardown()
        _drop(self.schema)


class PostgresRuntimeMachine(runtime.Machine):
    """Engines that run workflows, on one schema."""

    def __init__(self) -> None:
        self.schema = f"machine_{uuid4().hex[:12]}"
        super().__init__()

    def store(self) -> Any:
        return PostgresStore(address(shared(), self.schema), durability="memory", clock=self.now)

    def teardown(self) -> None:
        super().teardown()
        _drop(self.schema)


def _drop(schema: str) -> None:
    with psycopg.connect(shared(), autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


TestPostgresMachine = PostgresMachine.TestCase
TestPostgresMachine.settings = settings(
    max_examples=max(3, EXAMPLES // 4),
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPostgresKeysMachine = PostgresKeysMachine.TestCase
TestPostgresKeysMachine.settings = TestPostgresMachine.settings
TestPostgresRuntimeMachine = PostgresRuntimeMachine.TestCase
TestPostgresRuntimeMachine.settings = settings(runtime.SETTINGS, max_examples=max(3, runtime.EXAMPLES // 15))
